"""Signed requests that the network delivers again: refused by the same process, harmless at another or after a restart.

The nonces of a process end with it. What a request has changed is then found in the store: the same request again gets
the same answer, or is refused, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from client_sdk.identity import DeviceKey
from client_sdk.protocol.names import Route
from client_sdk.tensors import to_bytes
from tests.coordinator.certified import key_id, key_of
from tests.coordinator.service.wire import Sent, Wire, everything, kind, signed
from tests.coordinator.world import LEARNER, World

UPDATE = Route.UPDATE.format(run="marks", round=1, attempt=0)


class Recording:
    """A world whose requests go over the wire, and are kept."""

    def __init__(self, **plan: Any) -> None:
        self.world = World(4)
        self.world.create(**plan)
        self.wire = Wire(self.world.coordinator)
        self.wires = [self.wire]

    def ask(self, key: DeviceKey, method: str, path: str, message: Any = None, **more: Any) -> Sent:
        """Sends a request, which must be answered, lets the coordinator settle, and returns what was sent."""
        request = signed(key, method, path, message, at=self.world.clock.at, **more)
        answer = self.wire.send(request)
        assert answer.status_code < 400, answer.text
        self.world.settle()
        return request

    def check_in(self, number: int) -> Sent:
        return self.ask(self.world.keys[number], "POST", Route.CHECK_IN, check_in())

    def cohort(self) -> list[int]:
        """Everybody checks in; who was selected."""
        for number in range(4):
            self.check_in(number)
        return self.world.cohort()

    def elsewhere(self) -> list[Wire]:
        """Another replica, and the coordinator after a restart."""
        replica = Wire(self.world.replica())
        self.world.boot()
        restarted = Wire(self.world.coordinator)
        self.wires += [replica, restarted]
        return [replica, restarted]

    def replayed(self, request: Sent, *, answers: str = "") -> None:
        """The same process refuses the request as a replay. Elsewhere it gets the same answer again (``answers``
        empty), or is refused so, and nothing changes."""
        first = everything(self.world)
        assert kind(self.wire.send(request)) in ("replayed-request", "unregistered")
        for wire in self.elsewhere():
            answer = wire.send(request)
            assert kind(answer) == answers, answer.text
            self.world.settle()
            assert everything(self.world) == first
            assert kind(wire.send(request)) in ("replayed-request", answers or "replayed-request")


def check_in() -> dict[str, Any]:
    return {"examples": 10, "learners": {LEARNER: "1"}, "policy": {}, "hold_s": 0}


@pytest.fixture
def recording() -> Iterator[Recording]:
    made = Recording()
    yield made
    for wire in made.wires:
        wire.close()


def test_a_registration(recording: Recording) -> None:
    world, key = recording.world, key_of("new")
    certificate = world.authority.certificate(key, at=world.clock.at)
    message = {"certificate": certificate.encoded.hex(), "examples": 7, "label": "ward 7"}
    first = recording.ask(key, "POST", Route.REGISTER, message)
    recording.replayed(first)
    renewed = world.authority.certificate(key, at=world.clock.at + 1)
    world.coordinator.identities.register_device(renewed)()
    recording.replayed(first, answers="not-certified")


def test_a_registration_of_a_worker(recording: Recording) -> None:
    world, key = recording.world, key_of("new")
    certificate = world.authority.certificate(key, at=world.clock.at, holder="worker")
    recording.replayed(
        recording.ask(key, "POST", Route.REGISTER_WORKER, {"certificate": certificate.encoded.hex(), "label": "c"})
    )


def test_a_device_that_left_is_not_registered_again_by_a_replay(recording: Recording) -> None:
    world, key = recording.world, key_of("new")
    message = {"certificate": world.authority.certificate(key, at=world.clock.at).encoded.hex()}
    registered = recording.ask(key, "POST", Route.REGISTER, message)
    left = recording.ask(key, "POST", Route.LEAVE)
    recording.replayed(left, answers="unregistered")
    for wire in recording.elsewhere():
        assert kind(wire.send(registered)) == "revoked-key"
        assert world.store.device_by_key(key_id(key).hex()) is None


def test_a_check_in_that_was_answered_with_an_assignment(recording: Recording) -> None:
    number = recording.cohort()[0]
    again = recording.check_in(number)
    recording.replayed(again)


def test_a_check_in_of_who_has_reported_changes_no_round(recording: Recording) -> None:
    """It is as if the device had checked in again: it may be selected for a later round, which then misses it."""
    requests = {number: recording.check_in(number) for number in range(4)}
    number = recording.world.cohort()[0]
    recording.ask(recording.world.keys[number], "PUT", UPDATE, body=recording.world.body(number))
    recording.replayed(requests[number])
    waits = {recording.world.index(row.device) for row in recording.world.store.waiting(recording.world.clock.at)}
    assert waits <= {number}


def test_a_withdrawal_and_the_report_that_training_began(recording: Recording) -> None:
    number = recording.cohort()[0]
    key, where = recording.world.keys[number], {"run": "marks", "round": 1}
    began = recording.ask(key, "POST", Route.STARTED.format(**where), {"attempt": 0})
    recording.replayed(began)
    left = recording.ask(key, "POST", Route.WITHDRAWN.format(**where), {"attempt": 0, "reason": "the battery is low"})
    recording.replayed(left)
    before = everything(recording.world)
    for wire in recording.elsewhere():
        wire.send(began)
        assert everything(recording.world) == before, "who has withdrawn trains no more"


def test_an_update_counts_once(recording: Recording) -> None:
    number = recording.cohort()[0]
    sent = recording.ask(recording.world.keys[number], "PUT", UPDATE, body=recording.world.body(number))
    recording.replayed(sent)
    reported = [row for row in recording.world.store.events("marks", 0) if row.kind == "Reported"]
    assert len(reported) == 1


def test_reads(recording: Recording) -> None:
    number = recording.cohort()[0]
    key = recording.world.keys[number]
    digest = recording.world.coordinator.operators.run("marks").checkpoint
    recording.replayed(recording.ask(key, "GET", Route.CHECKPOINT.format(digest=digest)))
    recording.replayed(recording.ask(key, "GET", Route.OUTCOME.format(run="marks", round=1)))


@pytest.fixture
def center() -> Iterator[Recording]:
    """A round that waits for a worker."""
    made = Recording(datacenter={"data": "proxy", "patience": 1, "lease_s": 40, "max_s": 300})
    made.world.pass_time(11)
    made.world.worker()
    yield made
    for wire in made.wires:
        wire.close()


def test_the_requests_of_a_worker(center: Recording) -> None:
    key, where = center.world.worker_keys[0], {"run": "marks", "round": 2}
    poll = {"instance": "i1", "learners": {LEARNER: "1"}, "data": ["proxy"], "nproc": 1, "hold_s": 0}
    center.replayed(center.ask(key, "POST", Route.LEASES, poll))
    beat = {"attempt": 1, "fence": 1, "step": 3, "metrics": {"loss": 0.5}}
    center.replayed(center.ask(key, "POST", Route.HEARTBEAT.format(**where), beat))
    trained = to_bytes(center.world.model())
    path = Route.RESULT.format(**where, attempt=1)
    report = '{"fence": 1, "steps": 9, "examples": 90}'
    center.replayed(center.ask(key, "PUT", path, body=trained, result=report))


def test_the_end_of_a_lease_ends_no_other(center: Recording) -> None:
    key, where = center.world.worker_keys[0], {"run": "marks", "round": 2}
    poll = {"instance": "i1", "learners": {LEARNER: "1"}, "data": ["proxy"], "nproc": 1, "hold_s": 0}
    center.ask(key, "POST", Route.LEASES, poll)
    over = {"attempt": 1, "fence": 1, "failed": False, "reason": "moved"}
    end = center.ask(key, "POST", Route.LEASE_END.format(**where), over)
    center.ask(key, "POST", Route.LEASES, {**poll, "instance": "i2"})
    center.replayed(end, answers="lease-lost")
