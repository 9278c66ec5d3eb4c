"""A run with secure rounds in memory: the engine, the rounds, and real devices whose memory is kept as bytes. No
socket, no threads, no clock but the one that is set here.

What is durable is the log of events (as JSON), and the blobs. ``Crash`` can happen at every point where something
becomes durable: before an event, after it, after a blob. Then the state is read from its JSON, what is pending is
performed again, blobs that nothing refers to are swept, and devices without an answer send the same again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeVar, assert_never, get_args

import numpy as np

from client_sdk import codecs
from client_sdk.protocol.problems import ProblemError
from client_sdk.protocol.secure import Stage
from client_sdk.secagg.actions import Transmit
from client_sdk.secagg.errors import Refusal, SecaggError, SpentOnCheckpoint
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import lane_dtype
from client_sdk.secagg.quantize import rounding_key
from client_sdk.secagg.shares import SharePair
from client_sdk.tensors import from_bytes, to_bytes
from coordinator.blobs import Blobs, MemoryBlobs
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine import state as states
from coordinator.engine.plan import Plan
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import Aggregator
from coordinator.runtime.commits import Commits
from coordinator.runtime.secure_rounds import SecureRounds
from coordinator.secure.announcing import Authority, run_digest
from coordinator.secure.arrived import ArrivedMessage, ShortMessage
from coordinator.secure.performing import Make, SecureRun
from coordinator.store.memory import MemoryStore
from coordinator.store.port import FenceLost
from tests.client_sdk.secagg.attempt import digest
from tests.client_sdk.secagg.fleet import LEARNER, Member, fleet

E = TypeVar("E")
STAGES: tuple[Stage, ...] = ("advertise", "share", "mask", "survivors", "unmask")


class Crash(BaseException):
    """The coordinator's process is gone."""


@dataclass
class Points:
    """Counts the points at which a coordinator can die, and kills it at one of them."""

    at: frozenset[int] = frozenset()
    passed: int = 0

    def here(self) -> None:
        self.passed += 1
        if self.passed - 1 in self.at:
            raise Crash


class WatchedBlobs(MemoryBlobs):
    """Remembers all bytes that were ever kept."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def add(self, digest: str, data: bytes) -> None:
        super().add(digest, data)
        self.world.ever[digest] = data
        self.world.points.here()

    def delete(self, digest: str) -> None:
        super().delete(digest)
        self.world.points.here()


class Log:
    """``SecureRun``: the state is the fold of the events, and both go through JSON."""

    def __init__(self, world: World, start: RunState, todo: list[fx.Action]) -> None:
        self.world, self.state, self.todo = world, start, todo
        self.digest = run_digest("run-1", created_at=1000.0, init=world.start, plan_digest=world.plan.digest)

    @property
    def known(self) -> RunState:
        return self.state

    @property
    def recent(self) -> RunState:
        return self.state

    def short_messages(self, digests: Collection[str]) -> Mapping[str, bytes]:
        return {digest: self.world.short[digest].content for digest in digests if digest in self.world.short}

    def enter(self, make: Make, short: ShortMessage | None = None) -> Callable[[], list[fx.Effect]]:
        return lambda: self.submit(make, short)

    def submit(self, make: Make, short: ShortMessage | None = None) -> list[fx.Effect]:
        points = self.world.points
        points.here()
        event = make(self.state, self.world.at)
        if event is None:
            return []
        event = ev.from_json(event.kind, event.at, json.loads(json.dumps(ev.to_json(event))))
        following, effects = rounds.step(self.state, event)
        refused = any(isinstance(effect, fx.Refused) for effect in effects)
        self.world.effects += effects
        if following is not self.state and not refused:
            self.world.events.append(event)
            self.world.saved = json.dumps(states.to_json(following))
            self.world.keep(event, effects, short)
            self.state = following
        points.here()
        self.todo += [effect for effect in effects if isinstance(effect, _ACTIONS)]
        return effects


class Fenced:
    """What a commit needs of the log. The fence is durable."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def state(self) -> RunState:
        return self.world.log.state

    def take_fence(self, wanted: Callable[[RunState], bool]) -> int | None:
        if not wanted(self.world.log.state):
            return None
        self.world.fence += 1
        self.world.points.here()
        return self.world.fence

    def submit(self, make: Any, *, fence: int | None = None) -> list[fx.Effect]:
        if fence is not None and fence != self.world.fence:
            raise FenceLost("another process has taken the commit")
        return self.world.log.submit(lambda state, at: make(None, state, at))


_ACTIONS = get_args(fx.Action)


@dataclass(eq=False, repr=False)
class Phone:
    """A device and the request it is at. ``stops``: the message that it never sends."""

    member: Member
    stops: Stage | None = None
    late_s: float = 0.0
    """How much later than the others it joins a round."""
    bend: Callable[[Transmit, World], Transmit] | None = None
    """What a cheating device makes of what it would say."""
    forgetful: bool = False
    """Every two messages it is started again."""
    gone: bool = False
    head: AttemptHeader | None = None
    answered: bool = False
    left: bytes = b""
    """The header of an attempt in which this device takes no part any more."""
    not_before: float = 0.0
    refusals: list[str] = field(default_factory=list)
    secrets: set[bytes] = field(default_factory=set)
    """All that the device ever held in secret."""
    pairs: list[SharePair] = field(default_factory=list)
    """The shares that it ever held."""

    @property
    def name(self) -> str:
        return self.member.device.device

    def __repr__(self) -> str:
        return f"Phone({self.name})"

    def turn(self, world: World) -> bool:
        """One request. Whether anything came of it."""
        if self.gone or world.at < self.not_before:
            return False
        try:
            if self.forgetful and self.head is not None:
                self.restart()
                return self._join(world) and all(self._turn(world) for _ in range(4) if self.head is not None)
            return self._turn(world)
        except ProblemError as error:
            self.refusals.append(f"{error.kind}: {error}")
            return self._leave()
        finally:
            self._remember()

    def _turn(self, world: World) -> bool:
        if self.head is None:
            return self._join(world)
        message = self.member.outgoing
        assert message is not None
        if not self.answered:
            if message.stage == self.stops:
                self.gone = True
                return True
            world.hear(self, message)
            self.answered = True
            return True
        body = world.requests.answer(self.name, self.head.round, self.head.attempt, message.stage)
        return body is not None and self._received(world, body)

    def _join(self, world: World) -> bool:
        state = world.log.state
        body = None
        try:
            body = world.requests.header(self.name, state.round_number)
        except ProblemError as error:
            self.refusals.append(f"{error.kind}: {error}")
        opened = state.current.collecting_at
        if body is None or body == self.left or opened is None:
            return False
        if world.at < opened + self.late_s:
            self.not_before = opened + self.late_s
            return False
        self.head, self.answered = AttemptHeader.parse(body), False
        try:
            self.member.start(self.head, world.at)
        except SpentOnCheckpoint as error:
            head = self.head
            self._stop(error)
            world.requests.spent(self.name, head.round, head.attempt)
            return True
        except Refusal as refusal:
            if refusal.retry_s is not None:
                self.head, self.not_before = None, world.at + refusal.retry_s
                return False
            return self._stop(refusal)
        except SecaggError as error:
            return self._stop(error)
        return True

    def _received(self, world: World, body: bytes) -> bool:
        assert self.head is not None
        try:
            message = self.member.tell(body, world.at)
        except SecaggError as error:
            return self._stop(error)
        self.answered = False
        return self._leave() if message is None else True

    def _stop(self, error: SecaggError) -> bool:
        self.refusals.append(str(error))
        return self._leave()

    def _leave(self) -> bool:
        if self.head is not None:
            self.left = self.head.encoded
            self.member.disk = self.member.memory.ended(self.left).encoded
        self.head = None
        return True

    def restart(self) -> None:
        """A fresh process: its memory is what was kept."""
        self.head, self.answered, self.left = None, False, b""

    def _remember(self) -> None:
        for live in self.member.memory.live.values():
            if live.secrets is not None:
                keys = (live.secrets.share_key.private, live.secrets.mask_key.private)
                self.secrets |= {*keys, live.secrets.self_mask}
            for pair in live.held.values():
                self.secrets |= {pair.self_mask, pair.mask_key}
                self.pairs.append(pair)


class World:
    """``n`` devices, one run."""

    def __init__(
        self,
        n: int = 5,
        *,
        dimension: int = 5,
        crash: int | Iterable[int] | None = None,
        blobs: Blobs | None = None,
        rounds_: int = 1,
        secure: dict[str, Any] | None = None,
        **sections: Any,
    ) -> None:
        self.n, self.at = n, 1000.0
        self.members, self.authority = fleet(n, dimension)
        self.phones = [Phone(member) for member in self.members]
        self.points = Points()
        self.ever: dict[str, bytes] = {}
        self.short: dict[str, ShortMessage] = {}
        """Durable, by digest."""
        self.blobs = blobs or WatchedBlobs(self)
        self.model = {"w": np.linspace(-1, 1, dimension).astype(np.float32)}
        self.start = self.blobs.put(to_bytes(self.model))
        self.plan = _plan(n, rounds_, secure or {}, sections)
        self.dimension = dimension
        self._encode()
        self.events: list[ev.Event] = []
        self.effects: list[fx.Effect] = []
        self.crashes = self.fence = 0
        begun = rounds.begin("run-1", self.plan, self.start)
        self.saved = json.dumps(states.to_json(begun))
        self._boot([])
        self.log.submit(lambda state, at: ev.Created(at=at))
        self.crash_at(crash)

    def _encode(self) -> None:
        """Encode what the members put in for round 1."""
        name = self.plan.task.codec
        for phone in self.phones:
            seed = codecs.seed_for(name, self.plan.digest, 1)
            phone.member.values = codecs.linear(name).forward(phone.member.values, seed)

    # ------------------------------------------------------------ the coordinator

    @property
    def state(self) -> RunState:
        return self.log.state

    def _boot(self, todo: list[fx.Action]) -> None:
        saved = states.from_json(json.loads(self.saved))
        assert saved is not None
        self.log = Log(self, saved, todo)
        self.aggregator = Aggregator(self.blobs, self.plan, self.start, roles={})
        commits: Any = Commits(SimpleNamespace(log=lambda run: Fenced(self), store=MemoryStore(), blobs=self.blobs))  # type: ignore[arg-type]
        self._secure(self.log, commits)

    def keep(self, event: ev.Event, effects: Iterable[fx.Effect], short: ShortMessage | None) -> None:
        """What the event's transaction does to short messages."""
        if short is not None and any(isinstance(effect, fx.Accepted) for effect in effects):
            self.short[short.digest] = short
            self.ever[short.digest] = short.content
        if isinstance(event, ev.Discarded):
            self.short = {digest: kept for digest, kept in self.short.items() if kept.round != event.round}

    def _secure(self, log: SecureRun, commits: Commits) -> None:
        self.secure = SecureRounds(
            "run-1", log, self.blobs, lambda: self.aggregator, self._authority, commits, workers=1
        )
        self.requests = self.secure.requests

    def _authority(self, until: float | None = None) -> Authority:
        return Authority.of(self.authority.trusted, self.authority.revocations, at=0, until=until)

    def crash_at(self, points: int | Iterable[int] | None) -> None:
        """Counted from now."""
        self.points.at = frozenset([points] if isinstance(points, int) else points or ())
        self.points.passed = 0

    def reboot(self) -> None:
        """A new process on what is durable."""
        self.crashes += 1
        self._boot([])
        self.log.todo += rounds.pending(self.state)
        for found in set(self.blobs.digests()) - self._referred():
            self.blobs.delete(found)
        for phone in self.phones:
            phone.answered = False

    def _recover(self) -> None:
        """A new process, and yet another where that one dies while it sweeps."""
        while True:
            try:
                return self.reboot()
            except Crash:
                pass

    def _referred(self) -> set[str]:
        state = self.state
        kept = {self.start, state.checkpoint}
        kept |= {effect.digest for effect in self.effects if isinstance(effect, fx.RecordCheckpoint)}
        kept |= set(state.secure.blobs) if state.secure is not None else set()
        return kept.union(*state.leftovers.values())

    def perform(self, action: fx.Action) -> None:
        match action:
            case fx.Draw():
                self._draw(action)
            case fx.Announce() | fx.Gather() | fx.Open() | fx.CommitSum() | fx.Advance() | fx.Discard():
                self.secure.perform(action)
            case fx.Wake() | fx.Offer() | fx.SendAnswers() | fx.Return():
                pass  # hints: devices that wait ask again
            case fx.Fold() | fx.Commit():
                raise AssertionError(f"a secure round asks for no {action}")
            case _:
                assert_never(action)

    def draw(self, chosen: list[str], state: RunState) -> tuple[list[str], dict[str, Any]]:
        """(cohort, what the event says of the pool): the first of those who may be chosen, and nothing."""
        return chosen[: state.plan.cohort.select], {}

    def _draw(self, action: fx.Draw) -> None:
        def drawn(state: RunState, at: float) -> ev.Event | None:
            if state.phase != "selecting" or state.round_number != action.round or state.deadline is None:
                return None
            waiting = [phone.name for phone in self.phones if not phone.gone]
            chosen = [name for name in waiting if name not in state.spent and name not in state.barred]
            if len(chosen) < state.plan.cohort.select and at < state.deadline:
                return None
            cohort, pool = self.draw(chosen, state)
            return ev.Drawn(
                at=at,
                round=state.round_number,
                cohort=tuple((name, 100) for name in cohort),
                waiting=len(chosen),
                **pool,
                unspendable=len(waiting) - len(chosen),
            )

        self.log.submit(drawn)

    def hear(self, phone: Phone, message: Transmit) -> None:
        """A message arrives as it would by HTTP."""
        assert phone.head is not None
        if phone.bend is not None:
            message = phone.bend(message, self)
        arrived = ArrivedMessage(
            device=phone.name,
            round=phone.head.round,
            attempt=phone.head.attempt,
            stage=message.stage,
            body=message.body,
            signature=message.signature,
            certificate=message.blob if message.stage == "advertise" else b"",
        )
        if message.stage != "mask":
            self.requests.receive(arrived)()
            return
        with self.blobs.spool(1 << 20) as spool:
            spool.write(message.blob)
            self.requests.receive(replace(arrived, vector=spool))()

    # ------------------------------------------------------------ the play

    def step(self) -> bool:
        """The next action, or else a request of each device. Whether anything came of it."""
        if self.log.todo:
            self.perform(self.log.todo[0])
            del self.log.todo[0]
            return True
        turns = [phone.turn(self) for phone in self.phones]
        return any(turns) or bool(self.log.todo)

    def wait(self) -> None:
        """Lets time pass to the next moment at which something may happen."""
        later = [phone.not_before for phone in self.phones if phone.not_before > self.at and not phone.gone]
        moments = later + ([self.state.deadline] if self.state.deadline is not None else [])
        assert moments, f"nothing can happen any more in {self.state.phase}"
        self.at = max(self.at, min(moments))
        if self.state.deadline is not None and self.at >= self.state.deadline:
            self.log.submit(lambda state, at: ev.Tick(at=at))

    def play(self, done: Callable[[World], bool] | None = None, most: int = 5000) -> World:
        """Until ``done``, or the run is over."""
        for _ in range(most):
            try:
                if (done is not None and done(self)) or (self.state.over and not self.log.todo):
                    return self
                if not self.step():
                    self.wait()
            except Crash:
                self._recover()
        raise AssertionError(f"no end in sight: {self.state.phase}, round {self.state.round_number}")

    # ------------------------------------------------------------ what came of it

    def every(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def happened(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def reasons(self) -> list[str]:
        """Why rounds were abandoned."""
        return [row.reason for row in self.every(fx.RecordRound) if row.status == "abandoned"]

    def header(self, round: int = 1, attempt: int | None = None) -> AttemptHeader:
        """Of the last attempt of a round, or of this one."""
        found = [event for event in self.happened(ev.Announced) if event.round == round]
        return AttemptHeader.parse(bytes.fromhex(found[-1 if attempt is None else attempt].header))

    def lanes_of(self, name: str, header: AttemptHeader, bits: int) -> Any:
        """What a device put in before any mask."""
        member = next(phone.member for phone in self.phones if phone.name == name)
        key = rounding_key(digest(name), header.digest)
        return header.quantizer.lanes(member.values, member.weight, bits, key)

    def survivors(self, version: int = 1) -> list[str]:
        """Whose vectors are in a checkpoint, as its row says."""
        row = next(row for row in self.every(fx.RecordCheckpoint) if row.version == version)
        return [item.device for item in row.contributions]

    def integer_sum(self, version: int = 1, round: int = 1) -> Any:
        """The survivors' lanes added as integers."""
        header = self.header(round)
        bits = header.lane_bits(self.roster_size(round))
        rows = [self.lanes_of(name, header, bits).astype(np.uint64) for name in self.survivors(version)]
        return np.sum(rows, axis=0).astype(lane_dtype(bits))

    def roster_size(self, round: int = 1) -> int:
        """Devices of the last roster of a round."""
        return len([event for event in self.happened(ev.Rostered) if event.round == round][-1].groups[0].order)

    def weights(self) -> Any:
        return from_bytes(self.blobs.open(self.state.checkpoint).read())["w"]

    def expected_weights(self) -> Any:
        """The first committed model by the formula, out of the integer sum."""
        header, total = self.header(), self.integer_sum().astype(np.float64)
        count, values, levels = total[-1], total[: header.dimension], header.quantizer.levels
        weight = sum(digit * 2 ** (header.q * place) for place, digit in enumerate(total[header.dimension : -1]))
        step = 2 * header.max_abs / levels * (header.weight_cap / weight)
        mean = ((values - count * levels / 2) * step).astype(np.float32)
        read = codecs.linear(self.plan.task.codec).back(
            lambda start, size: mean[start : start + size], self.dimension, header.codec_seed
        )
        return self.model["w"] + read(0, self.dimension)

    def texts(self) -> Iterable[str]:
        """All that is durable beside blobs."""
        yield self.saved
        for event in self.events:
            yield json.dumps(ev.to_json(event))

    def assert_clean(self) -> None:
        """After a terminal state: no secret anywhere, and no blob but checkpoints and what a round under way has."""
        assert {*self.blobs.digests(), *self.short} <= self._referred()
        assert not self.state.leftovers
        texts = "\n".join(self.texts())
        there = [self.blobs.open(digest).read() for digest in self.blobs.digests()]
        there += [kept.content for kept in self.short.values()]
        for phone in self.phones:
            for secret in phone.secrets:
                assert secret.hex() not in texts
                assert not any(secret in body for body in there)


def _plan(n: int, rounds_: int, secure: dict[str, Any], sections: dict[str, Any]) -> Plan:
    base: dict[str, Any] = {
        "name": "secure",
        "task": {"learner": LEARNER},
        "cohort": {"select": n, "goal": n, "quorum": 0.5, "select_s": 10, "collect_s": 60},
        "aggregation": {"weighting": "examples", "weight_cap": 1000, "partial": "refuse"},
        "finish": {"rounds": rounds_},
        "secure": {
            "max_norm": 4.0,
            "max_abs": 1.0,
            "minimum_cohort": 3,
            "reserve": 0,
            "exchange_s": 60,
            "quiet_s": 60,
            **secure,
        },
    }
    for name, section in sections.items():
        base[name] = {**base.get(name, {}), **section}
    return Plan.parse(base)
