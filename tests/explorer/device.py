"""One device: the real ``participate`` session and its real record, with the faults of devices.

It performs the session's actions against the explorer's network and authority, by its own clock, and can vanish after
any of them, for a while or for good, and come back with its record or an older copy of it. A device whose key is
revoked stops for good. One whose certificate has expired gets a new enrolment token from a person.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any, assert_never

import numpy as np

from client_sdk.device.actions import (
    Action,
    Answered,
    Certify,
    Failed,
    Fetch,
    Fetched,
    FetchList,
    ListFetched,
    Load,
    Recall,
    Reply,
    RequestRefused,
    Save,
    Send,
    Settle,
    Sketch,
    Sketched,
    Sleep,
    Spend,
    Train,
    Trained,
    Unreachable,
    perform_stored,
)
from client_sdk.device.policy import shown
from client_sdk.device.session import Session, participate
from client_sdk.device.states import key_of
from client_sdk.device.storage import MemoryStorage
from client_sdk.protocol.devices import Assignment, CheckIn, Registered, Started, Wait
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem, ProblemError, problem
from client_sdk.protocol.secure import SecureSigned, SecureWait
from client_sdk.secagg.actions import Keep
from tests.explorer.certifying import PERSON_S, UNCERTIFIED, certify
from tests.explorer.faults import Broken
from tests.explorer.follow import TrackedRun
from tests.explorer.holders import Holder, holder_of, token_of
from tests.explorer.leaving import leaving, try_again
from tests.explorer.network import Network
from tests.explorer.plans import KEEPS, LEARNER
from tests.explorer.private import require_paid
from tests.explorer.request import Answer
from tests.explorer.secure.part import SecurePart
from tests.explorer.sender import RequestSender
from tests.explorer.world import World

URL = "http://explorer"
HOLD_S = 25.0
BROKEN = 0.3
"""The part of the held requests over HTTP whose connection breaks."""
OLD_COPIES = 6
CLOCKS_OFF_S = (15.0, 40.0, 400.0, 90_000.0)
"""By how many seconds a clock may be wrong."""


class ExplorerDevice:
    def __init__(self, world: World, network: Network, number: int, holder: Holder, learner: str = LEARNER) -> None:
        self.world, self._network = world, network
        self.number = number
        self.name = f"d{number}"
        self.holder = holder
        self.sender = RequestSender(world, network, holder)
        self.examples = 1 + (number * 7) % 60
        self.storage = MemoryStorage()
        self.secure = SecurePart(world, self.name, holder, self._also) if world.shape.secure else None
        self.up = False
        self.dead = False
        self.life = 0
        self.trainings = 0
        self._session: Session | None = None
        self._tokens = 0
        """How many enrolment tokens it has had, beyond the first."""
        self._waiting_for = 0
        self._read = ("", b"")
        """Digest and bytes of the checkpoint that this process fetched last."""
        self._models: dict[str, bytes] = {}
        """Digest -> bytes of each that it has fetched, of secure rounds."""
        self._fetched = False
        """Whether that is what it did last."""
        self.former: list[MemoryStorage] = []
        """What it had stored as the devices that have left."""
        self._leaves = False
        self._copies: list[Any] = []
        self._sent: dict[tuple[str, str, int, int], str] = {}
        self.trained_from: list[tuple[str, str, int, int]] = []
        """(id, run, round, round of the state that it began with), of plans by which devices keep one; 0: none."""
        self.told: dict[str, set[tuple[int, str]]] = {}
        """Run -> (round, digest) of each answer that has left it, of runs with noise."""
        self._is_set_back = False
        """Whether the coordinator's folder was set back."""
        self._is_copied = False
        """Whether its storage was copied or set back, so that nobody can say which state it should have."""
        halves = {KEEPS["name"]: "1"} if world.shape.plan.get("strategy") == KEEPS else {}
        self._offer = CheckIn(examples=self.examples, learners={learner: "1"}, strategies=halves, hold_s=HOLD_S)

    # ------------------------------------------------------------ life and death

    def start(self) -> None:
        if self.up or self.dead or self._leaves:
            return
        self.life += 1
        self.up = True
        self._read = ("", b"")
        self._fetched = False
        self.sender.restarted()
        record = self.storage.load()
        certified = record is not None and record.certificate and not self.world.authority.short
        secure: dict[str, Any] = {"signer": self.holder.key}
        if self.secure is not None:
            part = self.secure
            secure = {"signer": part.signer, "entropy": part.entropy, "primitives": part.primitives}
        self._session = participate(
            record,
            coordinator=URL,
            offer=self._offered,
            enrolment_token=None if certified else token_of(self._tokens),
            label=self.name,
            at=self.sender.now(),
            **secure,
        )
        self._advance(lambda: next(self._session))  # type: ignore[arg-type]

    def _offered(self) -> CheckIn:
        return self._offer if self.secure is None else self.secure.offer(self._offer, self.storage.load_secure())

    def vanish(self, back_after_s: float | None) -> None:
        """The process dies. None: for good."""
        if not self.up:
            return
        self.world.log(f"{self.name} vanishes" + (" for good" if back_after_s is None else ""))
        self.up = False
        self.life += 1
        if self._session is not None:
            self._session.close()
        if back_after_s is None:
            self.dead = True
            return
        self.world.agenda.after(back_after_s, self._come_back)

    def restart(self) -> None:
        """Its process dies, and another one starts at once. Rounds that it was in may come again."""
        if self.up and self._session is not None:
            self._session.close()
        self.up, self.life = False, self.life + 1
        self._is_set_back = True
        self.start()

    def leave(self) -> None:
        """Its owner takes it out of the coordinator, which forgets it; later it comes back as a new device. Somebody
        tries whether its old identity still works."""
        authority = self.world.authority
        if self.dead or self.registered is None or self.holder.key_id in authority.revoked or authority.short:
            return
        self._leaves = True
        if self.up and self._session is not None:
            self._session.close()
        self.up, self.life = False, self.life + 1
        self.world.log(f"{self.name} leaves")
        leaving(self.world, self.sender, lambda: self._begin_anew(self.sender))

    def _begin_anew(self, before: RequestSender) -> None:
        if before is not self.sender or self.dead:
            return
        record = self.storage.load()
        if record is not None:
            try_again(self.world, before, record.certificate)
        self._leaves = False
        self.former.append(self.storage)
        self.holder = holder_of(f"device-{self.number}-{len(self.former)}")
        self.storage, ledger = MemoryStorage(), self.storage.ledger
        self.storage.ledger = ledger  # that of its data goes on
        self.sender = RequestSender(self.world, self._network, self.holder)
        self._copies, self._sent = [], {}
        if self.world.shape.secure:
            self.secure = SecurePart(self.world, self.name, self.holder, self._also)
        self.world.agenda.after(self.world.chance.between("anew", 0.5, 20.0), self.start)

    def _come_back(self) -> None:
        if self.up or self.dead:
            return
        if self._copies and self.world.shape.control == "set-back" and self.world.stormy:
            self.storage, self._is_copied = self._copies[0], True
            self.world.log(f"{self.name} is set back, with its memory of secure rounds")
        elif self._copies and self.world.strikes("device-old-record", self.name):
            memory, ledger = self.storage.load_secure(), self.storage.ledger
            self.storage, self._is_copied = copy_of(self.world.chance.pick("copy", self._copies)), True
            self.storage.keep(lambda _: memory)
            self.storage.ledger = ledger
            self._sent.clear()
            self.world.log(f"{self.name} comes back with an older copy of its record")
        else:
            self.world.log(f"{self.name} comes back")
        self.start()

    def _dies(self, where: str) -> bool:
        if not self.world.strikes("device-crash", f"{self.name} {where}"):
            return False
        self.vanish(self.world.chance.between("away", 0.1, 60.0))
        return True

    def _breaks(self, ticket: tuple[int, int]) -> None:
        """The connection of a held request breaks: the process has died, or asks anew while nobody knows that yet."""
        if ticket != (self.life, self._waiting_for) or not self.up:
            return
        if self.world.chance.unit("dies") < 0.5:
            self.vanish(self.world.chance.between("away", 0.1, 3.0))
        else:
            self.world.log(f"the connection of {self.name} breaks")
            self._resume(ticket, Unreachable("The connection broke.", self.sender.now()))

    def _vanishes(self, action: Action) -> bool:
        """Whether the device vanishes in an exchange of a secure round, before it sends or while it waits."""
        if not isinstance(action, Send) or not isinstance(action.message, SecureSigned | SecureWait):
            return False
        if not self.world.strikes("secure-vanish", f"{self.name} {action.path.get('stage', 'header')}"):
            return False
        self.vanish(self.world.chance.between("vanished", 0.5, 45.0))
        return True

    # ------------------------------------------------------------ the session

    def _advance(self, step: Callable[[], Action]) -> None:
        """Advances the session to its next action and performs it."""
        while True:
            try:
                action = step()
            except StopIteration:
                raise Broken("no-bug", f"the session of {self.name} ended by itself") from None
            except ProblemError as error:
                self._stops(error)
                return
            except Exception as error:
                raise Broken("no-bug", f"the session of {self.name} raised {error!r}") from error
            if isinstance(action, Sketch):
                step = self._sending(self._sketched(action))
                continue
            if not isinstance(action, Save | Keep | Spend | Load | Recall | Settle):
                break
            if self._dies("before save"):
                return
            before = self.storage.load_secure()
            reply = perform_stored(self.storage, action, self.sender.now())
            if self.secure is not None:
                self.secure.kept(self.storage, before)
            if "device-old-record" in self.world.possible or self.world.shape.control:
                self._copies = [*self._copies[1 - OLD_COPIES :], copy_of(self.storage)]
            if self._dies("after save"):
                return
            step = self._sending(reply)
        self._perform(action)

    def _sketched(self, action: Sketch) -> Sketched:
        if self.secure is None:
            raise TypeError("a device of plain rounds sketches a model")
        digest = action.assignment.checkpoint.digest
        self._read = (digest, self._models[digest])  # the signed model was fetched after it
        return self.secure.sketched(action.assignment, self._models, self.sender.now(), first=action.first)

    def _stops(self, error: ProblemError) -> None:
        """The session has ended: rightly where its key is revoked, or its certificate was not renewed in time."""
        world, kind = self.world, error.problem.kind
        world.log(f"{self.name} stops: {kind}: {error}")
        if kind == "revoked-key" and self.holder.key_id in world.authority.revoked:
            self.vanish(None)
        elif kind in UNCERTIFIED and self.holder.id in world.authority.short:
            self._tokens += 1
            self.vanish(PERSON_S)
        else:
            raise Broken("no-bug", f"{self.name} had to stop: {kind}: {error}") from error

    def _sending(self, reply: Reply) -> Callable[[], Action]:
        session = self._session
        return lambda: session.send(reply)  # type: ignore[union-attr]

    def _perform(self, action: FetchList | Certify | Send | Fetch | Train | Sleep) -> None:
        world = self.world
        self._waiting_for += 1
        ticket = (self.life, self._waiting_for)
        if self._dies(type(action).__name__.lower()):
            return
        if self._vanishes(action):
            return
        match action:
            case FetchList() if self.secure is not None:
                way_s = world.chance.between("list-way", 0.002, 0.1)
                world.agenda.after(
                    way_s, self._resume, ticket, ListFetched(self.secure.listed(action), self.sender.now())
                )
            case FetchList():
                raise TypeError("a device of plain rounds asked for a revocation list")
            case Sleep():
                wait_s = world.chance.between(f"sleep {self.name}", action.min_s, action.max_s)
                world.agenda.after(wait_s, self._resume, ticket, None)
            case Train():
                self._train(action, ticket)
            case Certify():
                certify(world, self.sender, action, self.name, lambda reply: self._resume(ticket, reply))
            case Fetch() | Send():
                self._require_in_time(action)
                update = action.update if isinstance(action, Send) else None
                body = self._update(action, update) if update and isinstance(action, Send) else b""
                if isinstance(action, Send) and action.octets is not None and self.secure is not None:
                    memory = self.storage.load_secure()
                    if action.path.get("stage") == "mask" and (attempt := self.secure.attempt_of(action, memory)):
                        self._tells(str(action.path["run"]), int(action.path["round"]), attempt)
                    action = self.secure.sent(action, memory)
                    body = action.octets or b""
                held = isinstance(action, Send) and isinstance(action.message, CheckIn | SecureWait)
                broken = held and world.shape.http and world.stormy and world.chance.unit("breaks") < BROKEN
                if broken or (held and world.strikes("device-crash", f"{self.name} waits")):
                    world.agenda.after(world.chance.between("breaks-s", 0.1, 6.0), self._breaks, ticket)
                self.sender.send(
                    action,
                    lambda answer: self._answered(ticket, action, answer),
                    body=body,
                    hold_s=HOLD_S if held else 0.0,
                    gone=lambda: ticket != (self.life, self._waiting_for) or not self.up,
                )
            case _:
                assert_never(action)

    def _require_in_time(self, action: Fetch | Send) -> None:
        """A device that has just fetched the checkpoint begins to train only before the round's deadline."""
        fetched, self._fetched = self._fetched, False
        record = self.storage.load()
        if not (fetched and isinstance(action, Send) and isinstance(action.message, Started)):
            return
        if record is None or record.assignment is None:
            raise Broken("deadline", f"{self.name} begins to train, and has no assignment")
        late_s = self.sender.now() - (record.assigned_at + record.assignment.report_within_s)
        if late_s >= 0:
            raise Broken("deadline", f"{self.name} begins to train {late_s} s after the round's deadline")

    def _also(self, send: Send, body: bytes) -> None:
        """Sends a request beside those of the session. Its answer is of no interest."""

        def ignore(_: Answer) -> None:
            """It is dropped."""

        self.sender.send(send, ignore, body=body)

    def asks_for_work(self) -> None:
        """Checks in once, beside its session, and does not wait: it has its place in the pool for a minute."""
        message = shown(self._offered()).changed(hold_s=0.0)
        self._also(Send(method="POST", route=Route.CHECK_IN, answers=(Assignment, Wait), message=message), b"")

    def _update(self, action: Send, digest: str) -> bytes:
        """Returns the saved update that the record names. In one round a device sends the same bytes each time."""
        record = self.storage.load()
        if record is None or record.update_digest != digest or record.registered is None:
            raise Broken("receipt", f"{self.name} sends an update that its record does not name")
        place = (
            record.registered.device,
            str(action.path["run"]),
            int(action.path["round"]),
            int(action.path["attempt"]),
        )
        again = self._is_set_back or (place[1], place[2], place[0]) in self.world.asked_again
        if self._sent.setdefault(place, digest) != digest and not again:
            raise Broken("receipt", f"{self.name} sends other bytes than before in {place}")
        self._tells(place[1], place[2], digest)
        return self.storage.update(digest).read()

    def _tells(self, run: str, round: int, answer: str) -> None:
        """An answer leaves the device. In a run with noise its own ledger has it."""
        record = self.storage.load()
        if record is None or record.assignment is None or record.assignment.privacy is None:
            return
        told = self.told.setdefault(run, set())
        told.add((round, answer))
        terms = record.assignment.privacy
        require_paid(self.name, self.storage.ledger, run, told, 1 / (2 * terms.noise**2))

    def may_take_part(self, run: TrackedRun) -> bool:
        """Whether the device, and the run with noise, allow that it is drawn for the run now."""
        private, mine = run.private, [one for one in self.storage.ledger.spent if one.last.run == run.run]
        knows = run.plan["task"]["learner"] in self._offer.learners
        if private is None or self.dead or not knows or self.holder.id in private.out(run.version):
            return False
        last = max((one.last.version for one in mine), default=-private.apart)
        rests = last < run.version < last + private.apart
        return sum(one.rounds for one in mine) < private.answers and not rests

    def _answered(self, ticket: tuple[int, int], action: Send | Fetch, answer: Answer) -> None:
        at = self.sender.now()
        reply: Reply
        if answer is None:
            reply = Unreachable("No answer came.", at)
        elif isinstance(answer, Problem):
            reply = RequestRefused(answer, at)
        elif isinstance(answer, bytes):
            reply = self._received(action, answer)
        else:
            reply = Answered(answer, at)
        self._resume(ticket, reply)

    def _received(self, action: Send | Fetch, body: bytes) -> Reply:
        at = self.sender.now()
        if self.world.strikes("corrupt", "checkpoint"):
            body = body[:-1] + bytes([body[-1] ^ 1])
        assert isinstance(action, Fetch)  # only a fetch is answered with bytes
        if hashlib.sha256(body).hexdigest() != action.checkpoint.digest:
            return RequestRefused(problem("digest-mismatch", "The checkpoint's bytes changed on the way.").problem, at)
        self._read = (action.checkpoint.digest, body)
        if self.secure is not None:
            self._models[action.checkpoint.digest] = body
        self._fetched = True
        return Fetched(at)

    def _resume(self, ticket: tuple[int, int], reply: Reply) -> None:
        if ticket != (self.life, self._waiting_for) or not self.up:
            return
        if isinstance(reply, Answered) and self.world.trace is not None:
            self.world.log(f"{self.name} receives {text_of(reply.message)}")
        self._advance(self._sending(reply))

    def _train(self, action: Train, ticket: tuple[int, int]) -> None:
        world, assignment = self.world, action.assignment
        self.trainings += 1
        now = self.sender.now()
        left_s = min(max(0.0, action.due_at - now), assignment.report_within_s)  # its clock may have fallen since
        seconds = world.chance.between("train-s", 0.2, 3.0)
        if world.strikes("device-slow", self.name):
            seconds = left_s * world.chance.between("slow-s", 0.7, 2.0)
        if world.strikes("device-cannot", self.name):
            reply: Reply = Failed("The device ran out of memory.", now + seconds)
        else:
            partial = world.strikes("device-partial", self.name)
            invalid = world.strikes("device-invalid", self.name)
            body = self._trained(assignment, partial, invalid)
            reply = Trained(body, not partial, now + seconds, self._state(assignment))
        world.agenda.after(seconds, self._resume, ticket, reply)

    def _state(self, assignment: Assignment) -> dict[str, Any] | None:
        """What it keeps for the run, where the task has a strategy by which it does."""
        if assignment.task.strategy is None:
            return None
        kept = self.storage.states.current(key_of(URL, assignment.run))
        if not self._is_copied:
            began = 0 if kept is None else int(kept.tensors["round"][0])
            self.trained_from.append((assignment.device, assignment.run, assignment.round, began))
        return {"round": np.array([assignment.round], np.int32)}

    def _trained(self, assignment: Assignment, partial: bool, invalid: bool) -> bytes:
        """``invalid``: the last value is not a number."""
        if self.secure is not None:
            return self.secure.trained(assignment, self.number, self.examples, self._read[1], self.trainings, invalid)
        body = self.make(assignment, partial=partial, variant=self.trainings)
        return body[:-4] + b"\xff" * 4 if invalid else body  # NaN, as float32 and as float16

    def make(self, assignment: Assignment, *, partial: bool = False, variant: int = 0, mark: float = 1.0) -> bytes:
        """An update for this assignment: a mark in the lane of this device and round. ``variant`` makes other bytes."""
        return self.world.register.body_of(
            number=self.number,
            run=assignment.run,
            round=assignment.round,
            attempt=assignment.attempt,
            codec=assignment.task.codec,
            examples=self.examples,
            partial=partial,
            variant=variant,
            mark=mark,
            parent=self._read[0] or "none",
        )

    def twin(self) -> ExplorerDevice:
        """A second process of this device, with a copy of its storage: no owner does that, and it must be seen."""
        other = ExplorerDevice(self.world, self._network, self.number, self.holder)
        other.storage, other._is_copied, self._is_copied = copy_of(self.storage), True, True
        return other

    @property
    def registered(self) -> Registered | None:
        record = self.storage.load()
        return record.registered if record is not None else None


def copy_of(storage: MemoryStorage) -> MemoryStorage:
    """A storage with what this one has now."""
    twin = MemoryStorage()
    record = storage.load()
    twin._record, twin._updates, twin._history = record, dict(storage._updates), list(storage._history)
    twin._secure, twin.ledger = storage._secure, storage.ledger
    twin._states = copy.deepcopy(storage._states)
    return twin


def text_of(message: object) -> str:
    """An answer in a line of the trace."""
    kind = type(message).__name__.lower()
    shown = [
        f"{name} {getattr(message, name)}"
        for name in ("run", "round", "result", "reason")
        if getattr(message, name, "")
    ]
    return " ".join([kind, *shown])
