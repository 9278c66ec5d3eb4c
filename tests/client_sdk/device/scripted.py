"""A coordinator in memory that keeps the protocol's promises to one device, and a driver that can be crashed: for tests
of the SDK.

``ScriptedCoordinator.handle`` takes a request as the wire has it and gives status and body, so the same script stands
behind the pure session and, in ``http_script``, behind a real socket.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, assert_never

from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.identity_keys import key_id
from client_sdk.device.actions import (
    Action,
    Answered,
    Certify,
    Failed,
    Fetch,
    Fetched,
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
from client_sdk.device.record import Record
from client_sdk.device.storage import MemoryStorage
from client_sdk.identity import DeviceKey, key_of
from client_sdk.protocol.devices import (
    Assignment,
    CheckIn,
    CheckpointRef,
    Noted,
    Outcome,
    Receipt,
    Registered,
    Registration,
    Task,
    Wait,
    Withdrawal,
)
from client_sdk.protocol.names import Message
from client_sdk.protocol.problems import ProblemError, parse_problem, problem
from client_sdk.secagg.actions import Keep
from tests.client_sdk.device.scripted_authority import START, ScriptedAuthority

LEARNER = "clinic:risk"
CHECKPOINT = b"not really tensors, but bytes with a digest"


class Crash(Exception):
    """The device lost its power here."""


@dataclass
class Round:
    number: int
    open: bool = True
    update: bytes | None = None
    sent: list[bytes] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    started: int = 0


class ScriptedCoordinator:
    """Gives one device ``rounds`` rounds, one after the other; a round ends when its update or a withdrawal came."""

    def __init__(
        self,
        rounds: int = 2,
        task: Task | None = None,
        checkpoint: bytes = CHECKPOINT,
        authority: ScriptedAuthority | None = None,
        **assignment: Any,
    ) -> None:
        self.authority = authority if authority is not None else ScriptedAuthority()
        self.rounds = [Round(number) for number in range(1, rounds + 1)]
        self.task = task or Task(learner=LEARNER, learner_version="1.0")
        self.checkpoint = checkpoint
        self.assignment = assignment
        self.known: dict[str, Certificate] = {}
        """Key id -> its certificate; the newest registration is that of the one device."""
        self.registrations = 0
        self.inside = False
        self.requests: list[tuple[str, str]] = []
        self.wait = Wait(reason="No round needs this device now.", min_s=5, max_s=10)
        self.interfere: Callable[[str, str], ProblemError | None] = lambda method, path: None

    @property
    def now(self) -> Round | None:
        return next((one for one in self.rounds if one.open), None)

    def handle(self, method: str, path: str, signer: str, body: bytes) -> tuple[int, bytes]:
        self.requests.append((method, path))
        try:
            trouble = self.interfere(method, path)
            if trouble is not None:
                raise trouble
            answer = self._answer(method, path, signer, body)
        except ProblemError as error:
            return error.status, error.problem.model_dump_json().encode()
        return 200, answer if isinstance(answer, bytes) else answer.model_dump_json().encode()

    def _answer(self, method: str, path: str, signer: str, body: bytes) -> Message | bytes:
        parts = path.strip("/").split("/")
        if (method, path) == ("POST", "/v1/devices"):
            return self._register(Registration.model_validate_json(body), signer)
        if signer not in self.known:
            raise problem("unregistered", "This key is not registered here.")
        if (method, path) == ("POST", "/v1/devices/left"):
            del self.known[signer]
            return Noted()
        if (method, path) == ("POST", "/v1/checkins"):
            CheckIn.model_validate_json(body)
            return self.offered() if self.now is not None else self.wait
        if parts[1] == "checkpoints":
            return self.checkpoint
        one = self.rounds[int(parts[4]) - 1]
        match parts[5]:
            case "started":
                if not one.open:
                    raise problem("late", "This round is over.")
                one.started += 1
                return Noted()
            case "withdrawn":
                one.withdrawn.append(Withdrawal.model_validate_json(body).reason)
                one.open = False
                return Noted()
            case "outcome":
                return self._outcome(one)
            case "attempts":
                return self._report(one, body)
            case _:
                raise problem("unknown-round", path)

    @property
    def device(self) -> str:
        return next(reversed(self.known.values())).id if self.known else "d0"

    def _register(self, request: Registration, signer: str) -> Registered:
        certificate = Certificate.parse(bytes.fromhex(request.certificate))
        certificate.require_signed(self.authority.issuer.trusted)
        assert certificate.key_id.hex() == signer, "the certified key signs its registration"
        self.known = {key: known for key, known in self.known.items() if known.id != certificate.id}
        self.known[signer] = certificate
        self.registrations += 1
        return Registered(device=certificate.id, examples_cap=100, authority_inside=self.inside)

    def offered(self) -> Assignment:
        assert self.now is not None
        given: dict[str, Any] = {
            "run": "run-1",
            "round": self.now.number,
            "device": self.device,
            "checkpoint": CheckpointRef(
                version=0, digest=hashlib.sha256(self.checkpoint).hexdigest(), bytes=len(self.checkpoint)
            ),
            "plan_digest": "ab" * 32,
            "task": self.task,
            "report_within_s": 600,
            "max_update_bytes": 1_000_000,
        }
        return Assignment(**(given | self.assignment))

    def _outcome(self, one: Round) -> Outcome:
        base: dict[str, Any] = {"run": "run-1", "round": one.number, "device": self.device}
        if one.update is not None:
            return Outcome(result="counted", digest=hashlib.sha256(one.update).hexdigest(), version=1, **base)
        return Outcome(result="pending" if one.open else "dropped", reason="" if one.open else "It closed.", **base)

    def _report(self, one: Round, body: bytes) -> Receipt:
        one.sent.append(body)
        if one.update is None and not one.open:
            raise problem("late", "This round is over.")
        if one.update is not None and one.update != body:
            raise problem("duplicate", "Another update came first.")
        one.update = body
        one.open = False
        digest = hashlib.sha256(body).hexdigest()
        return Receipt(run="run-1", round=one.number, attempt=0, device=self.device, digest=digest, weight=7)


def offer(**changes: Any) -> CheckIn:
    """What the device under test has."""
    return CheckIn(**({"examples": 60, "learners": {LEARNER: "1.0"}} | changes))


class Driver:
    """Performs actions against a script. Crashes at the given counts of actions, before or after performing the
    action."""

    def __init__(self, coordinator: ScriptedCoordinator, storage: MemoryStorage | None = None) -> None:
        self.coordinator = coordinator
        self.storage = storage if storage is not None else MemoryStorage()
        self.clock = START
        self.signer: DeviceKey | None = None
        """The device's key, where it is kept outside its record."""
        self.trainings = 0
        self.performed: list[Action] = []
        self.crashes: dict[int, str] = {}
        self.trained: Callable[[Train], Reply] | None = None
        self.lost: set[int] = set()
        self.fetched: Callable[[Fetch], Reply] | None = None

    def crash_at(self, crashes: Iterable[tuple[int, str]]) -> Driver:
        self.crashes = dict(crashes)
        return self

    @property
    def sleeps(self) -> list[Sleep]:
        return [action for action in self.performed if isinstance(action, Sleep)]

    def drive(self, session: Any) -> int:
        """Drive to the end. Returns what the session returns; raises Crash where a test has set it."""
        reply: Reply = None
        while True:
            try:
                action = session.send(reply)
            except StopIteration as end:
                return int(end.value)
            place = len(self.performed)
            if self.crashes.get(place) == "before":
                self.performed.append(action)
                raise Crash
            reply = self.perform(action)
            self.performed.append(action)
            if self.crashes.get(place) == "after":
                raise Crash

    def perform(self, action: Action) -> Reply:
        self.clock += 0.01
        match action:
            case Save() | Keep() | Spend() | Recall() | Settle():
                return perform_stored(self.storage, action, self.clock)
            case Sleep():
                self.clock += action.max_s
                return None
            case Fetch():
                return self.fetched(action) if self.fetched is not None else Fetched(self.clock)
            case Sketch():
                return Sketched(b"", b"", self.clock)
            case Train():
                self.trainings += 1
                if self.trained is not None:
                    return self.trained(action)
                body = f"round {action.assignment.round}, training {self.trainings}".encode()
                return Trained(body, True, self.clock)
            case Certify():
                reply = self.coordinator.authority.perform(action, self._saved, self._key, self.clock)
                return self._unless_lost(reply)
            case Send():
                return self._send(action)
            case _:
                assert_never(action)

    @property
    def _saved(self) -> Record:
        saved = self.storage.load()
        assert saved is not None, "nothing is sent before the key was saved"
        return saved

    @property
    def _key(self) -> DeviceKey:
        key = self.signer or key_of(self._saved.key_seed)
        assert key is not None
        return key

    def _unless_lost(self, reply: Reply) -> Reply:
        return Unreachable("the network is gone", self.clock) if len(self.performed) in self.lost else reply

    def _send(self, action: Send) -> Reply:
        if action.update is not None:
            with self.storage.update(action.update) as file:
                body = file.read()
        else:
            body = action.message.model_dump_json().encode() if action.message is not None else b""
        signer = key_id(bytes.fromhex(self._key.public_hex)).hex()
        status, answer = self.coordinator.handle(action.method, action.url, signer, body)
        if len(self.performed) in self.lost:
            return self._unless_lost(None)
        if status >= 400:
            return RequestRefused(parse_problem(status, answer), self.clock)
        content = json.loads(answer)
        for kind in action.answers:
            if len(action.answers) == 1 or kind.model_fields["kind"].default == content.get("kind"):
                return Answered(kind.model_validate(content), self.clock)
        raise AssertionError(f"no answer to {action}")


def failing(reason: str) -> Callable[[Train], Reply]:
    return lambda train: Failed(reason, 1001.0)
