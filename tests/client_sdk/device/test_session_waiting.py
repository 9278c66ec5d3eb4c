"""The session before a round: every kind of waiting."""

from __future__ import annotations

import pytest

from client_sdk.device.actions import Sleep
from client_sdk.device.requests import Pacing
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from tests.client_sdk.device.scripted import Driver, ScriptedCoordinator
from tests.client_sdk.device.sessions import run, session


def test_wait_is_slept_within_its_window() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)
    session_ = session(driver)
    coordinator.rounds[0].open = False
    reply = None
    while not isinstance(sleep := session_.send(reply), Sleep):
        reply = driver.perform(sleep)
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
