"""How a worker becomes known, and stays so through its leases: certificate, registration, renewal."""

from __future__ import annotations

from typing import Any

import pytest

from client_sdk.credentials.certificate import Certificate
from client_sdk.device.actions import Fetched, Save
from client_sdk.device.enrolling import REGISTRATIONS
from client_sdk.device.record import Record
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.workers import LeaseRenewed
from coordinator.authority.issuer import DAY_S
from coordinator.datacenter.worker_session import NEW, WorkerAction, WorkerReply, work
from tests.client_sdk.device.scripted_authority import START, ScriptedAuthority
from tests.coordinator.datacenter.test_worker_session import KNOWN, LEASE, RECEIPT, TRAINED, Script, progress


def fresh(**rules: Any) -> Script:
    """A worker that nobody knows."""
    script = Script(**rules)
    script.record = None
    return script


def enrolled(**rules: Any) -> Script:
    """A worker that has taken one lease."""
    script = fresh(**rules)
    script.play()
    script.log.clear()
    return script


def record_of(script: Script) -> Record:
    assert script.record is not None
    return script.record


def certificate_of(script: Script) -> Certificate:
    return Certificate.parse(bytes.fromhex(record_of(script).certificate))


def test_a_new_worker_enrols_and_registers_before_it_polls() -> None:
    script = fresh()
    assert script.play()[0].result == "committed"
    assert script.log == ["enrol", "register", "poll", "fetch", "train", "result", "committed"]
    assert certificate_of(script).holder == "worker"
    script.log.clear()
    script.play()
    assert script.log[0] == "poll"


def test_a_devices_token_makes_no_worker() -> None:
    script = fresh()
    script.authority = ScriptedAuthority("device")
    with pytest.raises(ProblemError, match="is for a device; a worker needs"):
        script.play()


def test_a_worker_without_certificate_and_token_says_what_is_missing() -> None:
    with pytest.raises(ProblemError, match="quorate authority token --worker") as refused:
        next(work(None, list, coordinator="https://c.example"))  # type: ignore[arg-type]
    assert str(refused.value) == NEW


def test_the_key_is_saved_before_the_authority_is_asked_and_the_certificate_before_it_is_presented() -> None:
    script = fresh()
    saved: list[Record] = []
    genuine = script.perform

    def perform(action: WorkerAction) -> WorkerReply:
        if isinstance(action, Save):
            saved.append(action.record)
            script.log.append("save")
        return genuine(action)

    script.perform = perform  # type: ignore[method-assign]
    script.play()
    assert script.log[:5] == ["save", "enrol", "save", "register", "save"]
    assert [(bool(one.key_seed), bool(one.certificate), one.registered is not None) for one in saved] == [
        (True, False, False),
        (True, True, False),
        (True, True, True),
    ]


@pytest.mark.parametrize("where", ["poll", "fetch", "train", "result"])
def test_a_coordinator_that_does_not_know_the_key_gets_the_certificate_again_and_the_lease_goes_on(where: str) -> None:
    unknown = problem("unregistered", "This key is not registered here.")
    rules: dict[str, Any] = {
        "poll": {"poll": [LEASE, unknown, LEASE]},
        "fetch": {"fetch": [*Script().rules["fetch"], unknown, *Script().rules["fetch"]]},
        "train": {
            "train": [TRAINED, [progress(1), progress(2), TRAINED]],
            "heartbeat": [unknown, LeaseRenewed(ends_in_s=40)],
        },
        "result": {"result": [RECEIPT, unknown, RECEIPT]},
    }[where]
    script = enrolled(**rules)
    (ended,) = script.play()
    assert ended.result == "committed"
    assert script.log.count("register") == 1
    assert "enrol" not in script.log
    assert "halt" not in script.log


@pytest.mark.parametrize("where", ["fetch", "result"])
def test_repro_tries_without_an_answer_are_not_counted_as_registrations(where: str) -> None:
    """A coordinator that was away for many tries, and came back without the key, ended the session."""
    end = {"fetch": [Fetched(1.0)], "result": [RECEIPT]}[where]
    unknown = problem("unregistered", "This key is not registered here.")
    script = enrolled(**{where: [end[0], *["no route"] * REGISTRATIONS, unknown, *end]})
    (ended,) = script.play()
    assert ended.result == "committed"
    assert script.log.count("register") == 1


def test_a_key_that_stays_unknown_ends_the_session() -> None:
    script = enrolled(poll=[LEASE, problem("unregistered", "No.")])
    with pytest.raises(ProblemError, match=r"No\."):
        script.play()


def test_a_certificate_is_renewed_before_a_poll_in_the_second_half_of_its_time() -> None:
    script = enrolled()
    first = certificate_of(script)
    script.at = START + 50 * DAY_S
    script.authority.at = int(script.at)
    session_start = script.at
    script.play_from(session_start)
    assert script.log[:3] == ["renew", "register", "poll"]
    assert certificate_of(script).not_after > first.not_after
    assert certificate_of(script).id == first.id


def test_an_expired_certificate_in_the_middle_of_a_lease_costs_no_training() -> None:
    expired = problem("expired-certificate", "It has expired.")
    script = enrolled(result=[RECEIPT, expired, RECEIPT])
    script.at = START + 44.9 * DAY_S
    script.rules["train"] = [[progress(1), TRAINED]]
    genuine = script.perform

    def perform(action: WorkerAction) -> WorkerReply:
        script.at = max(script.at, START + 46 * DAY_S) if script.log[-1:] == ["train"] else script.at
        return genuine(action)

    script.perform = perform  # type: ignore[method-assign]
    (ended,) = script.play_from(script.at)
    assert ended.result == "committed"
    assert script.log.count("train") == 1
    assert [name for name in script.log if name in ("renew", "register")] == ["renew", "register"]


def test_a_worker_at_another_coordinator_registers_there_with_the_same_certificate() -> None:
    script = enrolled()
    first = record_of(script)
    script.record = first.changed(coordinator="https://elsewhere.example")
    script.play()
    assert script.log[:2] == ["register", "poll"]
    assert record_of(script).certificate == first.certificate
    assert record_of(script).coordinator == KNOWN.coordinator
