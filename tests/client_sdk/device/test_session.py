"""The session against a scripted coordinator: whole rounds, and a crash at every step of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.device.actions import Certify, Save, Send, Train
from client_sdk.protocol.devices import CheckIn, Policy, Registration, Wait
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.secure import SECURE_VERSION
from tests.client_sdk.device.scripted import Crash, Driver, ScriptedCoordinator, offer
from tests.client_sdk.device.scripted_authority import START
from tests.client_sdk.device.sessions import entropy, run


def test_two_rounds_without_trouble() -> None:
    coordinator = ScriptedCoordinator(rounds=2)
    driver = Driver(coordinator)
    assert run(driver, 2) == 2
    assert [one.update for one in coordinator.rounds] == [b"round 1, training 1", b"round 2, training 2"]
    history = driver.storage.history()
    assert [(entry.round, entry.result, entry.weight) for entry in history] == [(1, "receipt", 7), (2, "receipt", 7)]
    assert history[0].update_digest == hashlib.sha256(b"round 1, training 1").hexdigest()
    assert history[0].plan_digest == "ab" * 32
    assert START < history[0].joined_at <= history[0].ended_at
    record = driver.storage.load()
    assert record is not None
    assert record.assignment is None
    assert record.update_digest is None


def test_a_save_comes_before_each_send_that_it_protects() -> None:
    driver = Driver(ScriptedCoordinator(rounds=1))
    run(driver)
    saved = {"key": False, "certificate": False, "registered": False, "assignment": False, "update": ""}
    for action in driver.performed:
        if isinstance(action, Save):
            saved = {
                "key": bool(action.record.key_seed),
                "certificate": bool(action.record.certificate),
                "registered": action.record.registered is not None,
                "assignment": action.record.assignment is not None,
                "update": action.record.update_digest or "",
            }
        elif isinstance(action, Certify):
            assert saved["key"]
            assert not saved["certificate"]
        elif isinstance(action, Send):
            assert saved["certificate"]
            assert saved["registered"] == (action.route is not Route.REGISTER)
            if action.route in (Route.STARTED, Route.UPDATE):
                assert saved["assignment"]
            if action.route is Route.UPDATE:
                assert saved["update"] == action.update
        elif isinstance(action, Train):
            assert saved["assignment"]


def steps_without_crash() -> int:
    driver = Driver(ScriptedCoordinator(rounds=2))
    run(driver, 2)
    return len(driver.performed)


def live_through(crashes: list[tuple[int, str]]) -> tuple[ScriptedCoordinator, Driver]:
    """A device that loses its power at each of these counts of actions, and is started again each time."""
    coordinator = ScriptedCoordinator(rounds=2)
    driver = Driver(coordinator).crash_at(crashes)
    draw = entropy()
    for _ in range(len(crashes) + 1):
        left = 2 - len(driver.storage.history())
        if left == 0:
            break
        try:
            run(driver, left, draw=draw)
        except Crash:
            continue
    return coordinator, driver


def check(coordinator: ScriptedCoordinator, driver: Driver) -> None:
    """Exactly one update counts in each round; whatever was sent for it were the same bytes; one identity; true
    history."""
    assert len({one.update for one in coordinator.rounds}) == 2
    for one in coordinator.rounds:
        assert one.update is not None
        assert one.update.startswith(f"round {one.number},".encode())
        assert set(one.sent) == {one.update}
        assert one.withdrawn == []
    assert len(coordinator.known) == 1
    assert len(coordinator.authority.holders) == 1
    history = driver.storage.history()
    assert [(entry.round, entry.result) for entry in history] == [(1, "receipt"), (2, "receipt")]
    sums = [hashlib.sha256(one.update or b"").hexdigest() for one in coordinator.rounds]
    assert [entry.update_digest for entry in history] == sums


def every_crash() -> Iterator[tuple[int, str]]:
    for place in range(steps_without_crash()):
        yield place, "before"
        yield place, "after"


@pytest.mark.parametrize("crash", list(every_crash()), ids=lambda crash: f"{crash[1]}-{crash[0]}")
def test_a_crash_at_any_yield_loses_nothing_and_counts_nothing_twice(crash: tuple[int, str]) -> None:
    check(*live_through([crash]))


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from(["before", "after"])), max_size=12))
def test_any_sequence_of_crashes_loses_nothing_and_counts_nothing_twice(crashes: list[tuple[int, str]]) -> None:
    check(*live_through(sorted(dict(crashes).items())))


@given(
    lost=st.sets(st.integers(0, 60)),
    troubles=st.lists(st.sampled_from(["busy", "internal", "disk-full", "truncated", "digest-mismatch"]), max_size=20),
    places=st.sets(st.integers(0, 60), max_size=20),
    crashes=st.lists(st.tuples(st.integers(1, 80), st.sampled_from(["before", "after"])), max_size=6),
)
def test_lost_answers_and_passing_trouble_only_cost_time(
    lost: set[int], troubles: list[str], places: set[int], crashes: list[tuple[int, str]]
) -> None:
    coordinator = ScriptedCoordinator(rounds=2, report_within_s=1e6)
    pending = dict(zip(sorted(places), troubles, strict=False))
    seen = iter(range(10**6))
    coordinator.interfere = lambda method, path: (
        problem(kind, "Not now.") if (kind := pending.get(next(seen))) is not None else None
    )
    driver = Driver(coordinator).crash_at(crashes)
    driver.lost = lost
    draw = entropy()
    for _ in range(len(crashes) + 1):
        if left := 2 - len(driver.storage.history()):
            try:
                run(driver, left, draw=draw)
            except Crash:
                continue
    check(coordinator, driver)


def test_no_action_shows_a_secret_when_it_is_printed() -> None:
    driver = Driver(ScriptedCoordinator(rounds=1))
    run(driver)
    (certify,) = [action for action in driver.performed if isinstance(action, Certify)]
    assert certify.token is not None
    for secret in (certify.token.text, certify.token.secret.hex(), repr(certify.token.secret)):
        assert secret not in repr(certify)


@pytest.mark.parametrize(
    ("policy", "examples"),
    [(Policy(), 60), (Policy(secure_only=True), 0), (Policy(plain=()), 0), (Policy(plain=("a:b",)), 60)],
)
def test_a_device_says_how_many_examples_it_has_where_its_data_may_go_in_clear(policy: Policy, examples: int) -> None:
    driver = Driver(ScriptedCoordinator(rounds=0))
    driver.coordinator.wait = Wait(reason="No.", min_s=1, max_s=1)
    driver.coordinator.interfere = lambda method, path: (
        problem("revoked-key", "It ends here.") if "/v1/checkins" in path and _asked(driver) else None
    )
    with pytest.raises(ProblemError):
        run(driver, offer=offer(policy=policy))
    said = [action.message for action in driver.performed if isinstance(action, Send)]
    registration, check_in = (next(one for one in said if isinstance(one, kind)) for kind in (Registration, CheckIn))
    assert (registration.examples, check_in.examples) == (examples, examples)
    assert check_in.secure == SECURE_VERSION


def _asked(driver: Driver) -> bool:
    return any(isinstance(action, Send) and action.route is Route.CHECK_IN for action in driver.performed)
