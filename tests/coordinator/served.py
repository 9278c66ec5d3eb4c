"""Secure rounds over HTTP: a coordinator behind its service, and real devices (``SecureDevice``) whose every request is
signed and goes over the wire. No clock but the standing one, no threads: ``play`` asks one device after another until
nothing changes any more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import numpy as np

from client_sdk.credentials.certificate import RevocationList
from client_sdk.protocol.devices import CheckIn, Policy
from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import FIVE_EXCHANGES, SECURE_HEADER, SECURE_VERSION, SecureSigned, Stage
from client_sdk.secagg.actions import Transmit
from client_sdk.secagg.consent import Expected
from client_sdk.secagg.device import SecureDevice
from client_sdk.secagg.header import AttemptHeader
from client_sdk.tensors import Tensors
from tests.client_sdk.bounds import any_work
from tests.client_sdk.secagg.attempt import entropy
from tests.client_sdk.secagg.fleet import POLICY, Member, expected
from tests.coordinator.service.wire import Sent, Wire, kind, signed
from tests.coordinator.world import LEARNER, World

RUN = "secret"
SECTION: dict[str, Any] = {
    "max_norm": 4.0,
    "max_abs": 1.0,
    "minimum_cohort": 3,
    "reserve": 0,
    "exchange_s": 20,
    "quiet_s": 20,
    "weight_cap": 100,
}
STAGES: tuple[Stage, ...] = FIVE_EXCHANGES


@dataclass(eq=False)
class Phone:
    """One device, and where it is in the round. ``stops``: the message that it never sends."""

    number: int
    member: Member
    stops: Stage | None = None
    head: AttemptHeader | None = None
    sent: bool = False
    through: bool = False
    refused: list[str] = field(default_factory=list)
    """The kinds of problems that it was answered."""


class Served(World):
    """A world whose coordinator performs secure rounds, and the wire to it."""

    def __init__(self, devices: int = 6, *, dimension: int = 5, **more: Any) -> None:
        super().__init__(devices, **more)
        self.dimension = dimension
        self.wire = Wire(self.coordinator)
        self.wires = [self.wire]
        self.phones = [self._phone(number) for number in range(devices)]
        self.log: list[tuple[int, Sent, httpx2.Response]] = []

    def close(self) -> None:
        for wire in self.wires:
            wire.close()

    def boot(self) -> Any:
        """A new process, also behind the wire."""
        super().boot()
        if hasattr(self, "wires"):
            self.wire = Wire(self.coordinator)
            self.wires.append(self.wire)
        return self.coordinator

    def model(self) -> Tensors:
        return {"w": np.linspace(-1, 1, self.dimension).astype(np.float32)}

    def secure_run(self, **sections: Any) -> str:
        """A strict run of all devices, created as an operator creates it. Its id."""
        n = self.size
        cohort = {"select": n, "goal": n, "quorum": 0.5, "select_s": 10, "collect_s": 60}
        aggregation = {"weighting": "examples", "partial": "refuse", **sections.pop("aggregation", {})}
        plan = {
            "secure": SECTION,
            "aggregation": aggregation,
            "cohort": cohort,
            "name": RUN,
            "finish": {"rounds": 1},
            **sections,
        }
        return self.create(**plan).run

    def message(self, **more: Any) -> CheckIn:
        policy = Policy(secure=any_work(smallest_cohort=3))
        return CheckIn(examples=10, learners={LEARNER: "1"}, policy=policy, hold_s=25, secure=SECURE_VERSION)

    def settle(self) -> None:
        for _ in range(100):
            before = [(run, self.store.head(run)) for run in self.store.run_ids()]
            self.coordinator.tick()
            while (task := self.coordinator.core.take_task()) is not None:
                self.coordinator.perform(task)
            if before == [(run, self.store.head(run)) for run in self.store.run_ids()]:
                return
        raise AssertionError("the coordinator does not come to rest")

    # ------------------------------------------------------------ requests

    def ask(
        self, phone: Phone, method: str, route: str, message: Any = None, *, body: bytes | None = None, **more: Any
    ) -> httpx2.Response:
        """One request of this device, signed now. ``more``: parameters of the path, and of ``signed``."""
        beside = more.pop("beside", None)
        path = str(route).format(**{"run": RUN, "round": 1, "attempt": 0, **more})
        request = signed(self.keys[phone.number], method, path, message, at=self.clock.at, body=body)
        if beside is not None:
            request = request.with_header(SECURE_HEADER, beside.model_dump_json())
        answer = self.wire.send(request)
        self.log.append((phone.number, request, answer))
        assert answer.status_code < 500 or kind(answer) == "busy", answer.text
        return answer

    def header(self, phone: Phone, round: int = 1) -> httpx2.Response:
        return self.ask(phone, "POST", Route.SECURE, {"hold_s": 0}, round=round)

    def tell(self, phone: Phone, message: Transmit, **changes: Any) -> httpx2.Response:
        """Sends a message of an exchange as a device does."""
        assert phone.head is not None
        masked = message.stage == "mask"
        said = SecureSigned(
            signature=message.signature.hex(),
            certificate=message.blob.hex() if message.stage == "advertise" else "",
            body=message.body.hex() if masked else "",
        )
        said = changes.pop("beside", said)
        where = {"round": phone.head.round, "attempt": phone.head.attempt, "stage": message.stage, **changes}
        body = where.pop("body", message.blob if masked else message.body)
        return self.ask(phone, "PUT", Route.SECURE_MESSAGE, body=body, beside=said, **where)

    def answer(self, phone: Phone, stage: Stage) -> httpx2.Response:
        assert phone.head is not None
        where = {"round": phone.head.round, "attempt": phone.head.attempt, "stage": stage}
        return self.ask(phone, "POST", Route.SECURE_ANSWER, {"hold_s": 0}, **where)

    # ------------------------------------------------------------ the play

    def begin(self) -> None:
        """All devices check in; the cohort is drawn and the header announced."""
        self.check_in()
        assert self.state.phase == "collecting", self.state

    @property
    def state(self) -> Any:
        return self.coordinator.core.state(RUN)

    def turn(self, phone: Phone) -> bool:
        """The next request of this device. Whether anything came of it."""
        if phone.through:
            return False
        if phone.head is None:
            found = self.header(phone, self.state.round_number)
            if found.status_code != 200:
                return self._refused(phone, found) if found.status_code != 204 else False
            phone.head, phone.sent = AttemptHeader.parse(found.content), False
            phone.member.start(phone.head, self.clock.at, self.wants(phone.head))
            return True
        message = phone.member.outgoing
        assert message is not None
        if message.stage == phone.stops:
            phone.through = True
            return True
        if not phone.sent:
            told = self.tell(phone, message)
            phone.sent = told.status_code == 200
            return phone.sent or self._refused(phone, told)
        found = self.answer(phone, message.stage)
        if found.status_code == 204:
            return False
        if found.status_code != 200:
            return self._refused(phone, found)
        phone.through = phone.member.tell(found.content, self.clock.at) is None
        phone.sent = False
        return True

    def wants(self, head: AttemptHeader) -> Expected:
        """What a device expects that has fetched the header's list."""
        path = Route.REVOCATION_LIST.format(digest=head.revocations_digest.hex())
        answer = self.wire.send(Sent("GET", path, {}))
        assert answer.status_code == 200, answer.text
        return replace(expected(head), revocations=RevocationList.parse(answer.content))

    def play(self, until: Callable[[], bool] = lambda: False) -> None:
        """Lets all devices go on, in turns, until nothing changes any more, or ``until`` is true."""
        moved = True
        while moved and not until():
            turns = [self.turn(phone) for phone in self.phones]
            moved = any(turns)
            self.settle()

    def play_to_end(self) -> None:
        """Plays until the run is over; where devices are waited for, time passes."""
        for _ in range(12):
            self.play()
            if self.coordinator.operators.run(RUN).status != "running":
                return
            self.pass_time(21)
        raise AssertionError(f"the run does not end: {self.state}")

    def sum_of(self, numbers: Sequence[int]) -> np.ndarray[Any, Any]:
        """The model after one round in which these devices count, to within the rounding of q bits."""
        weights = np.array([self.phones[number].member.weight for number in numbers], np.float64)
        values = np.array([self.phones[number].member.values for number in numbers], np.float64)
        return np.asarray(self.model()["w"] + (weights @ values) / weights.sum())

    def stored(self) -> Mapping[str, bytes]:
        """All blobs, and the messages of the run."""
        found = self.store.messages(RUN, list(self.store.message_rounds(RUN)))
        for digest in self.blobs.digests():
            with self.blobs.open(digest) as file:
                found[digest] = file.read()
        return found

    def _refused(self, phone: Phone, answer: httpx2.Response) -> bool:
        phone.refused.append(kind(answer))
        phone.through = True
        return True

    def _phone(self, number: int) -> Phone:
        key, row = self.keys[number], self.rows[number]
        device = SecureDevice(
            device=row.device,
            certificate=bytes.fromhex(row.certificate),
            signer=key,
            entropy=entropy(("served", number)),
            authority=self.coordinator.identities.trusted()[0],
            policy=POLICY,
        )
        values = np.full(self.dimension, 0.01 * number, np.float32)
        values[number % self.dimension] = 0.9
        return Phone(number, Member(device, values, weight=10 * number + 10))


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
