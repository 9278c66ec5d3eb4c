"""The session before a round: enrolment, tokens that are refused, every kind of waiting."""

from __future__ import annotations

import pytest

from client_sdk.device.actions import Send, Sleep
from client_sdk.device.requests import ENROLMENTS, Pacing
from client_sdk.identity import DeviceKey
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from tests.client_sdk.device.scripted import Crash, Driver, ScriptedCoordinator
from tests.client_sdk.device.sessions import run, session

# ---------------------------------------------------------------- enrolment


def test_enrolment_without_an_answer_is_repeated_with_the_same_key() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)
    driver.lost = {1}
    run(driver)
    assert coordinator.enrolments == 2
    assert len(coordinator.keys) == 1


def test_a_device_without_token_says_what_is_missing() -> None:
    with pytest.raises(ProblemError, match="enrolment token"):
        run(Driver(ScriptedCoordinator()), enrolment_token=None)


def test_a_wrong_enrolment_token_ends_the_session_with_the_coordinators_sentence() -> None:
    with pytest.raises(ProblemError, match="This enrolment token is not valid"):
        run(Driver(ScriptedCoordinator()), enrolment_token="guess")


def test_a_lost_token_is_replaced_by_enrolling_again_and_the_update_still_arrives() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)

    def forget(method: str, path: str) -> None:
        if method == "PUT" and coordinator.enrolments == 1:
            coordinator.token = "rotated"

    coordinator.interfere = forget
    assert run(driver) == 1
    assert coordinator.enrolments == 2
    assert coordinator.rounds[0].update == b"round 1, training 1"
    assert driver.trainings == 1
    enrolments = [sent for sent in driver.performed if isinstance(sent, Send) and sent.route is Route.ENROL]
    assert [sent.token for sent in enrolments] == [None, None]  # a lost token is sent nowhere again


def test_a_token_that_is_refused_however_often_the_device_enrols_ends_the_session() -> None:
    coordinator = ScriptedCoordinator()
    coordinator.interfere = lambda method, path: (
        problem("unauthenticated", "No.") if path == Route.CHECK_IN.value else None
    )
    with pytest.raises(ProblemError, match=r"No\."):
        run(Driver(coordinator))
    assert coordinator.enrolments == 1 + ENROLMENTS


def test_another_coordinator_never_sees_the_first_ones_token() -> None:
    driver = Driver(ScriptedCoordinator(rounds=1))
    run(driver)
    second = ScriptedCoordinator(rounds=1)
    driver.coordinator = second
    driver.performed.clear()
    run(driver, coordinator="http://elsewhere.test")
    tokens = {action.token for action in driver.performed if isinstance(action, Send) and action.token}
    assert tokens == {second.token}
    assert second.rounds[0].update is not None
    assert len(driver.storage.history()) == 2


def test_a_round_given_to_another_id_is_dropped() -> None:
    driver = Driver(ScriptedCoordinator(rounds=1)).crash_at([(6, "after")])
    with pytest.raises(Crash):
        run(driver)
    record = driver.storage.load()
    assert record is not None
    assert record.assignment is not None
    assert record.enrolled is not None
    driver.storage.save(record.model_copy(update={"enrolled": record.enrolled.model_copy(update={"device": "d9"})}))
    run(driver)
    assert [entry.result for entry in driver.storage.history()] == ["dropped"]


def test_a_key_kept_outside_signs_and_never_enters_the_record() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)
    key = DeviceKey.create()
    run(driver, signer=key)
    record = driver.storage.load()
    assert record is not None
    assert record.key_seed == ""
    assert coordinator.keys == [key.public_hex]
    with pytest.raises(ValueError, match="signer"):
        run(driver)


# ---------------------------------------------------------------- waiting


def test_wait_is_slept_within_its_window() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)
    session_ = session(driver)
    coordinator.rounds[0].open = False
    driver.perform(next(session_))
    reply = driver.perform(session_.send(None))
    driver.perform(session_.send(reply))
    reply = driver.perform(session_.send(None))
    sleep = session_.send(reply)
    assert isinstance(sleep, Sleep)
    assert (sleep.min_s, sleep.max_s) == (5, 10)
    assert sleep.reason == "No round needs this device now."
    assert not sleep.trouble


def test_a_wait_of_no_time_that_came_at_once_does_not_make_the_device_spin() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    coordinator.wait = coordinator.wait.model_copy(update={"min_s": 0.0, "max_s": 0.0})
    driver = Driver(coordinator)
    coordinator.rounds[0].open = False
    checks = 0

    def open_at_last(method: str, path: str) -> None:
        nonlocal checks
        checks += path == Route.CHECK_IN.value
        coordinator.rounds[0].open = checks >= 4 and coordinator.rounds[0].update is None

    coordinator.interfere = open_at_last
    run(driver)
    assert [(sleep.min_s, sleep.max_s) for sleep in driver.sleeps] == [(0.2, 0.5)] * 3


def test_waits_double_after_each_failure_and_honour_retry_after() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    answers = iter([None, *[problem("busy", "Full.")] * 3, problem("busy", "Full.", retry_after_s=120)])
    coordinator.interfere = lambda method, path: next(answers, None)
    driver = Driver(coordinator)
    run(driver)
    assert [(sleep.min_s, sleep.max_s) for sleep in driver.sleeps] == [(0.5, 1), (1, 2), (2, 4), (120, 128)]
    assert all(sleep.trouble for sleep in driver.sleeps)


def test_waits_stop_growing() -> None:
    assert Pacing(retry_s=1, retry_most_s=60).backoff(5000) == (30, 60)


@pytest.mark.parametrize(
    ("trouble", "ends"),
    [(problem("conflict", "Still assigned."), False), (problem("invalid-request", "hold_s."), True)],
)
def test_a_conflict_at_check_in_passes_but_an_invalid_check_in_ends_the_session(
    trouble: ProblemError, ends: bool
) -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    answers = iter([None, trouble])
    coordinator.interfere = lambda method, path: next(answers, None)
    if ends:
        with pytest.raises(ProblemError, match="hold_s"):
            run(Driver(coordinator))
    else:
        assert run(Driver(coordinator)) == 1


def test_an_old_protocol_ends_the_session_at_any_request() -> None:
    total = 5
    for place in range(total):
        coordinator = ScriptedCoordinator(rounds=1)
        answers = iter([None] * place + [problem("protocol-version", "This device is too old; upgrade quorate.")])
        coordinator.interfere = lambda method, path, answers=answers: next(answers, None)  # type: ignore[misc]
        driver = Driver(coordinator)
        if place == total - 1:
            assert run(driver) == 1
        else:
            with pytest.raises(ProblemError, match="upgrade"):
                run(driver)
