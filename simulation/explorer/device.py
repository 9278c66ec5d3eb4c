"""One device: the real ``participate`` session and its real record, with the faults of devices.

It performs the session's actions against the explorer's network and clock, and can vanish after any of them, for a
while or for good, and come back with its record or an older copy of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, assert_never

from client_sdk.device.actions import (
    Action,
    Answered,
    Failed,
    Fetch,
    Fetched,
    Reply,
    RequestRefused,
    Save,
    Send,
    Sleep,
    Train,
    Trained,
    Unreachable,
)
from client_sdk.device.session import Session, participate
from client_sdk.device.storage import MemoryStorage
from client_sdk.identity import DeviceKey
from client_sdk.protocol.devices import Assignment, CheckIn, Enrolled
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem, ProblemError, problem
from simulation.explorer.faults import Broken
from simulation.explorer.network import Network
from simulation.explorer.request import Answer, SentRequest
from simulation.explorer.shape import LEARNER
from simulation.explorer.world import World

URL = "http://explorer"
HOLD_S = 25.0
OLD_COPIES = 6


class ExplorerDevice:
    def __init__(self, world: World, network: Network, number: int, key: DeviceKey, learner: str = LEARNER) -> None:
        self.world = world
        self.network = network
        self.number = number
        self.name = f"d{number}"
        self.key = key
        self.examples = 1 + (number * 7) % 60
        self.storage = MemoryStorage()
        self.up = False
        self.dead = False
        self.life = 0
        self.trainings = 0
        self._session: Session | None = None
        self._waiting_for = 0
        self._read = ""
        """Digest of the checkpoint that this process fetched last."""
        self._copies: list[Any] = []
        self._sent: dict[tuple[str, str, int, int], str] = {}
        self._offer = CheckIn(examples=self.examples, learners={learner: "1"}, hold_s=HOLD_S)

    # ------------------------------------------------------------ life and death

    def start(self) -> None:
        if self.up or self.dead:
            return
        self.life += 1
        self.up = True
        self._read = ""
        self._session = participate(
            self.storage.load(),
            coordinator=URL,
            offer=lambda: self._offer,
            enrolment_token=self.world.token,
            label=self.name,
            signer=self.key,
            entropy=self.world.chance.entropy(f"key {self.name}"),
        )
        self._advance(lambda: next(self._session))  # type: ignore[arg-type]

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

    def _come_back(self) -> None:
        if self.up or self.dead:
            return
        if self._copies and self.world.strikes("device-old-record", self.name):
            self.storage = _copy(self.world.chance.pick("copy", self._copies))
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

    # ------------------------------------------------------------ the session

    def _advance(self, step: Callable[[], Action]) -> None:
        """Advances the session to its next action and performs it."""
        while True:
            try:
                action = step()
            except StopIteration:
                raise Broken("no-bug", f"the session of {self.name} ended by itself") from None
            except ProblemError as error:
                raise Broken("no-bug", f"{self.name} had to stop: {error.problem.kind}: {error}") from error
            except Exception as error:
                raise Broken("no-bug", f"the session of {self.name} raised {error!r}") from error
            if not isinstance(action, Save):
                break
            if self._dies("before save"):
                return
            self.storage.save(action.record, action.update, action.joined)
            if "device-old-record" in self.world.possible:
                self._copies = [*self._copies[1 - OLD_COPIES :], _copy(self.storage)]
            if self._dies("after save"):
                return
            step = self._sending(None)
        self._perform(action)

    def _sending(self, reply: Reply) -> Callable[[], Action]:
        session = self._session
        return lambda: session.send(reply)  # type: ignore[union-attr]

    def _perform(self, action: Send | Fetch | Train | Sleep) -> None:
        world = self.world
        self._waiting_for += 1
        ticket = (self.life, self._waiting_for)
        if self._dies(type(action).__name__.lower()):
            return
        match action:
            case Sleep():
                wait_s = world.chance.between(f"sleep {self.name}", action.min_s, action.max_s)
                world.agenda.after(wait_s, self._resume, ticket, None)
            case Train():
                self._train(action, ticket)
            case Fetch() | Send():
                update = action.update if isinstance(action, Send) else None
                body = self._update(action, update) if update and isinstance(action, Send) else b""
                request = SentRequest(
                    action, body, gone=lambda: ticket != (self.life, self._waiting_for) or not self.up
                )
                held = isinstance(action, Send) and action.route is Route.CHECK_IN
                self.network.send(
                    request, lambda answer: self._answered(ticket, action, answer), HOLD_S if held else 0.0
                )
            case _:
                assert_never(action)

    def _update(self, action: Send, digest: str) -> bytes:
        """Returns the saved update that the record names. In one round a device sends the same bytes each time."""
        record = self.storage.load()
        if record is None or record.update_digest != digest or record.enrolled is None:
            raise Broken("receipt", f"{self.name} sends an update that its record does not name")
        place = (
            record.enrolled.device,
            str(action.path["run"]),
            int(action.path["round"]),
            int(action.path["attempt"]),
        )
        if self._sent.setdefault(place, digest) != digest:
            raise Broken("receipt", f"{self.name} sends other bytes than before in {place}")
        return self.storage.update(digest).read()

    def _answered(self, ticket: tuple[int, int], action: Send | Fetch, answer: Answer) -> None:
        at = self.world.agenda.now
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
        at = self.world.agenda.now
        if self.world.strikes("corrupt", "checkpoint"):
            body = body[:-1] + bytes([body[-1] ^ 1])
        assert isinstance(action, Fetch)  # noqa: S101 - only a fetch is answered with bytes
        if hashlib.sha256(body).hexdigest() != action.checkpoint.digest:
            return RequestRefused(problem("digest-mismatch", "The checkpoint's bytes changed on the way.").problem, at)
        self._read = action.checkpoint.digest
        return Fetched(at)

    def _resume(self, ticket: tuple[int, int], reply: Reply) -> None:
        if ticket != (self.life, self._waiting_for) or not self.up:
            return
        if isinstance(reply, Answered) and self.world.trace is not None:
            self.world.log(f"{self.name} receives {_text_of(reply.message)}")
        self._advance(self._sending(reply))

    def _train(self, action: Train, ticket: tuple[int, int]) -> None:
        world, assignment = self.world, action.assignment
        self.trainings += 1
        left_s = max(0.0, action.due_at - world.agenda.now)
        seconds = world.chance.between("train-s", 0.2, 3.0)
        if world.strikes("device-slow", self.name):
            seconds = left_s * world.chance.between("slow-s", 0.7, 2.0)
        if world.strikes("device-cannot", self.name):
            reply: Reply = Failed("The device ran out of memory.", world.agenda.now + seconds)
        else:
            partial = world.strikes("device-partial", self.name)
            body = self.make(assignment, partial=partial, variant=self.trainings)
            if world.strikes("device-invalid", self.name):
                body = body[:-4] + b"\xff" * 4  # NaN, as float32 and as float16
            reply = Trained(body, not partial, world.agenda.now + seconds)
        world.agenda.after(seconds, self._resume, ticket, reply)

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
            parent=self._read or "none",
        )

    @property
    def enrolled(self) -> Enrolled | None:
        record = self.storage.load()
        return record.enrolled if record is not None else None


def _copy(storage: MemoryStorage) -> MemoryStorage:
    twin = MemoryStorage()
    record = storage.load()
    twin._record, twin._updates, twin._history = record, dict(storage._updates), list(storage._history)
    return twin


def _text_of(message: object) -> str:
    kind = type(message).__name__.lower()
    shown = [
        f"{name} {getattr(message, name)}"
        for name in ("run", "round", "result", "reason")
        if getattr(message, name, "")
    ]
    return " ".join([kind, *shown])
