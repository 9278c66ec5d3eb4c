"""Devices whose whole sessions are played against the coordinator's real secure rounds, in memory: no socket, no
threads, no clock but the world's. A session can be crashed at any of its actions, and what it sent is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, assert_never

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
    Reply,
    RequestRefused,
    Save,
    Send,
    Sketch,
    Sketched,
    Sleep,
    Spend,
    Train,
    Trained,
    Unreachable,
    perform_stored,
)
from client_sdk.device.contribution import ClearContribution
from client_sdk.device.record import AuthorityRef, Record, Storage
from client_sdk.device.requests import Pacing
from client_sdk.device.session import Session, participate
from client_sdk.device.storage import MemoryStorage
from client_sdk.protocol.devices import (
    Assignment,
    CheckIn,
    CheckpointRef,
    Noted,
    Outcome,
    Policy,
    Registered,
    Started,
    Task,
    Wait,
    Withdrawal,
)
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import ProblemError
from client_sdk.protocol.secure import NotReady, Octets, SecureRefusal, SecureSigned
from client_sdk.secagg.actions import Keep
from client_sdk.secagg.header import task_of
from client_sdk.secagg.memory import Memory
from client_sdk.secagg.origin import First
from client_sdk.tensors import canonical_digest
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.secure.arrived import ArrivedMessage
from tests.client_sdk.bounds import any_work
from tests.client_sdk.secagg.attempt import digest, entropy
from tests.client_sdk.secagg.fleet import LEARNER, Member
from tests.coordinator.secure.world import Phone, World

URL = "http://coordinator.test"
POLICY = Policy(secure=any_work(smallest_cohort=3, smallest_sigma=20))
PACING = Pacing(withdrawn_s=(5, 5), again_s=(3, 3))


class PowerCut(Exception):
    """The device lost its power here."""


class SessionPhone(Phone):
    """A device that plays ``participate``. ``interfere`` may answer a request in the coordinator's place."""

    def __init__(self, member: Member, world: World, storage: Storage | None = None, policy: Policy = POLICY) -> None:
        super().__init__(member)
        self.world = world
        self.storage: Storage = storage if storage is not None else MemoryStorage()
        self.policy = policy
        self.sketch, self.first = b"", First()
        """Of the model that it gets next."""
        self.performed: list[Action] = []
        self.sent: dict[tuple[int, int, str], set[bytes]] = {}
        """(round, attempt, stage) -> all that was sent for it: signature and body."""
        self.trainings = 0
        self.completes = True
        """Whether its time is enough for the whole task."""
        self.failure = ""
        """Why its training fails; empty: it does not."""
        self.crashes: dict[int, str] = {}
        self.lost: set[int] = set()
        """Counts of actions whose answers are lost: the request arrives."""
        self.interfere: Callable[[Send], Reply] = lambda send: None
        self.change: Callable[[Octets, Send], Octets] = lambda found, send: found
        """What a lying coordinator makes of an answer."""
        self.listed: Callable[[FetchList], Reply] = lambda asked: None
        """What is answered in place of the authority's list."""
        self.secure_task: Any = {}
        self.stops_before: str | None = None
        self.session: Session | None = None
        self._action: Action | None = None
        if self.storage.load() is None:
            self.storage.save(self._first_record())

    def _first_record(self) -> Record:
        trusted, signer = self.world.authority.trusted, self.member.device.signer
        return Record(
            key_seed=signer.seed.hex(),  # type: ignore[attr-defined]
            authority=AuthorityRef(url=URL, digest=trusted.digest.hex(), public_key=trusted.public_key.hex()),
            certificate=self.member.device.certificate.hex(),
            coordinator=URL,
            registered=Registered(device=self.name, examples_cap=10_000),
            secret=digest(self.name).hex(),
        )

    @property
    def sends(self) -> list[Send]:
        return [action for action in self.performed if isinstance(action, Send)]

    @property
    def resting(self) -> bool:
        """Whether it takes part in no round, or no more in anything."""
        record = self.storage.load()
        return self.gone or record is None or record.assignment is None

    @property
    def history(self) -> list[tuple[int, str]]:
        return [(entry.round, entry.result) for entry in self.storage.history()]

    def routes(self, route: Route) -> list[Send]:
        return [send for send in self.sends if send.route is route]

    # ------------------------------------------------------------ the world's side

    def turn(self, world: World) -> bool:
        if self.gone or world.at < self.not_before:
            return False
        if self.session is None:
            self.start()
        try:
            return self._go_on()
        except PowerCut:
            self.restart()
            return True

    def start(self, at: float | None = None) -> None:
        self.session = participate(
            self.storage.load(),
            coordinator=URL,
            offer=self.offer,
            entropy=entropy(("session", self.name, len(self.performed))),
            pacing=PACING,
            at=self.world.at if at is None else at,
        )
        self._action = next(self.session)

    def offer(self) -> CheckIn:
        return CheckIn(examples=self.member.weight, learners={LEARNER: "1"}, policy=self.policy)

    def restart(self) -> None:
        """A fresh process on what was stored, as bytes."""
        if self.session is not None:
            self.session.close()
        record = self.storage.load()
        assert record is not None
        self.storage.save(Record.model_validate_json(record.model_dump_json()))
        self.storage.keep(lambda newest: Memory.parse(newest.encoded))
        self.session, self._action = None, None

    def _remember(self) -> None: ...

    def _go_on(self) -> bool:
        """Perform actions until one has to wait. Whether anything came of it."""
        moved = False
        while True:
            assert self.session is not None
            assert self._action is not None
            action = self._action
            if isinstance(action, Send) and action.path.get("stage") == self.stops_before and action.method == "PUT":
                self.gone = True
                return True
            reply = self.perform(action)
            if isinstance(reply, Answered) and isinstance(reply.message, NotReady | Wait):
                return moved  # as if the request was held
            place = len(self.performed)
            self.performed.append(action)
            if self.crashes.get(place) == "after":
                raise PowerCut
            self._action = self.session.send(reply)
            if self.crashes.get(len(self.performed)) == "before":
                self.performed.append(self._action)
                raise PowerCut
            if isinstance(action, Sleep):
                return True
            moved = True

    # ------------------------------------------------------------ performing

    def perform(self, action: Action) -> Reply:
        at = self.world.at
        match action:
            case Save() | Keep() | Spend() | Load():
                return perform_stored(self.storage, action, at)
            case FetchList():
                return self.listed(action) or ListFetched(self.world.authority.revocations, at)
            case Fetch():
                return Fetched(at)
            case Sketch():
                first, tensors = self.first if action.first else First(), bytes.fromhex(self.contribution().tensors)
                return Sketched(self.sketch, tensors, at, 1000, first)
            case Train():
                self.trainings += 1
                secure = action.assignment.secure is not None
                if self.failure:
                    return Failed(self.failure, at)
                return Trained(self.contribution().encoded if secure else b"a plain update", self.completes, at)
            case Sleep():
                self.not_before = at + action.max_s
                return None
            case Send():
                return self._send(action)
            case Certify():
                raise AssertionError("it has a certificate")
            case _:
                assert_never(action)

    def contribution(self) -> ClearContribution:
        tensors = canonical_digest(self.world.blobs.open(self.world.log.state.checkpoint).read())
        delta = {"w": self.member.values.copy()}
        return ClearContribution(delta=delta, examples=self.member.weight, tensors=tensors)

    def _send(self, send: Send) -> Reply:
        if send.method == "PUT":
            assert send.octets is not None
            assert isinstance(send.message, SecureSigned)
            key = (int(send.path["round"]), int(send.path["attempt"]), str(send.path["stage"]))
            self.sent.setdefault(key, set()).add(send.message.model_dump_json().encode() + send.octets)
        early = self.interfere(send)
        if early is not None:
            return early
        try:
            found = self._answer(send)
        except ProblemError as error:
            return RequestRefused(error.problem, self.world.at)
        if len(self.performed) in self.lost:
            return Unreachable("the answer is lost", self.world.at)
        if isinstance(found, Octets):
            found = self.change(found, send)
        return Answered(found, self.world.at)

    def _answer(self, send: Send) -> Message:
        requests, path, said = self.world.requests, send.path, send.message
        if send.route is Route.CHECK_IN:
            return self._check_in()
        number, attempt = int(path["round"]), int(path.get("attempt", 0))
        match said:
            case Started():
                return Noted()
            case SecureSigned():
                self._hear(send, said)
                return Noted()
            case SecureRefusal(spent=True):
                requests.spent(self.name, number, attempt)
                return Noted()
            case SecureRefusal():
                requests.refuse(self.name, number, attempt, said.reason)
                return Noted()
            case Withdrawal():
                self.world.log.submit(
                    lambda _, at: ev.Withdrew(
                        at=at, round=number, attempt=said.attempt, device=self.name, reason=said.reason
                    )
                )
                return Noted()
        if send.route is Route.OUTCOME:
            return self._outcome(number)
        stage: Any = path.get("stage")
        body = (
            requests.header(self.name, number) if stage is None else requests.answer(self.name, number, attempt, stage)
        )
        return NotReady() if body is None else Octets(content=body)

    def _hear(self, send: Send, said: SecureSigned) -> None:
        stage: Any = send.path["stage"]
        octets = send.octets or b""
        arrived = ArrivedMessage(
            device=self.name,
            round=int(send.path["round"]),
            attempt=int(send.path["attempt"]),
            stage=stage,
            body=bytes.fromhex(said.body) if stage == "mask" else octets,
            signature=bytes.fromhex(said.signature),
            certificate=bytes.fromhex(said.certificate),
        )
        if stage != "mask":
            self.world.requests.receive(arrived)()
            return
        with self.world.blobs.spool(1 << 20) as spool:
            spool.write(octets)
            self.world.requests.receive(replace(arrived, vector=spool))()

    def _check_in(self) -> Assignment | Wait:
        state = self.world.log.state
        if state.round is None or state.phase != "collecting" or self.name not in state.current.members:
            return Wait(reason="Not now.", min_s=1, max_s=1)
        if state.current.members[self.name].status == "withdrawn":
            return Wait(reason="It withdrew.", min_s=1, max_s=1)
        plan = state.plan
        assert plan.secure is not None
        checkpoint = CheckpointRef(version=state.version, digest=state.checkpoint, bytes=1)
        task = task_of(plan.terms, weighting=plan.weighting)
        return Assignment(
            run=state.run,
            round=state.round_number,
            attempt=state.current.attempt,
            device=self.name,
            checkpoint=checkpoint,
            plan_digest=plan.digest,
            task=Task.model_validate(plan.task.model_dump()),
            report_within_s=60,
            secure=task.changed(**self.secure_task),
            privacy=plan.privacy_terms,
            max_update_bytes=0,
        )

    def _outcome(self, number: int) -> Outcome:
        world = self.world
        base: dict[str, Any] = {"run": "run-1", "round": number, "device": self.name}
        if world.state.round_number == number and world.state.phase != "idle":
            return Outcome(result="pending", **base)
        for row in world.every(fx.RecordCheckpoint):
            if row.round == number and self.name in {item.device for item in row.contributions}:
                return Outcome(result="counted", version=row.version, **base)
        return Outcome(result="dropped", reason="The round ended without it.", **base)


def world_with(count: int = 1, **settings: Any) -> tuple[World, list[SessionPhone]]:
    """A world whose first ``count`` devices are sessions."""
    world = World(**settings)
    sessions = [SessionPhone(phone.member, world) for phone in world.phones[:count]]
    world.phones[:count] = sessions
    return world, sessions


def finish(world: World, sessions: Sequence[SessionPhone], most: int = 200) -> None:
    """Plays the run to its end, and then lets the sessions hear of it."""
    world.play()
    for _ in range(most):
        if all(phone.resting for phone in sessions):
            return
        turns = [phone.turn(world) for phone in sessions]
        if not any(turns):
            world.at = max(world.at + 1, min(phone.not_before for phone in sessions))
    raise AssertionError([phone.performed[-3:] for phone in sessions if not phone.resting])
