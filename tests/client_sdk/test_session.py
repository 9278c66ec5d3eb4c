"""The session against a scripted coordinator: every crash, every refusal, every kind of waiting."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.actions import Failed, Fetched, Refused, Save, Send, Sleep, Train, Trained, Unreachable, Unreadable
from client_sdk.asking import ENROLMENTS, Pacing
from client_sdk.identity import DeviceKey
from client_sdk.problems import PROBLEMS, ProblemError, problem
from client_sdk.protocol import CheckIn, Policy, Route, Task
from client_sdk.session import Session, participate
from client_sdk.storage import MemoryStorage
from tests.client_sdk.scripted import LEARNER, TOKEN, Crash, Driver, ScriptedCoordinator, failing, offer

URL = "http://coordinator.test"


def entropy() -> Any:
    """A stream that never gives the same bytes twice, so that a second key would show."""
    counter = iter(range(1_000_000))
    return lambda count: hashlib.sha512(str(next(counter)).encode()).digest()[:count]


def session(driver: Driver, rounds: int | None = 1, draw: Any = None, **changes: Any) -> Session:
    given_offer: CheckIn = changes.pop("offer", offer())
    settings: dict[str, Any] = {
        "coordinator": URL,
        "offer": lambda: given_offer,
        "enrolment_token": TOKEN,
        "rounds": rounds,
        "entropy": draw or entropy(),
    }
    return participate(driver.storage.load(), **(settings | changes))


def run(driver: Driver, rounds: int | None = 1, **changes: Any) -> int:
    return driver.drive(session(driver, rounds, **changes))


def test_two_rounds_without_trouble() -> None:
    coordinator = ScriptedCoordinator(rounds=2)
    driver = Driver(coordinator)
    assert run(driver, 2) == 2
    assert [one.update for one in coordinator.rounds] == [b"round 1, training 1", b"round 2, training 2"]
    history = driver.storage.history()
    assert [(entry.round, entry.result, entry.weight) for entry in history] == [(1, "receipt", 7), (2, "receipt", 7)]
    assert history[0].update_digest == hashlib.sha256(b"round 1, training 1").hexdigest()
    assert history[0].plan_digest == "ab" * 32
    assert 1000.0 < history[0].joined_at <= history[0].ended_at
    record = driver.storage.load()
    assert record is not None
    assert record.assignment is None
    assert record.update_digest is None


def test_a_save_comes_before_each_send_that_it_protects() -> None:
    driver = Driver(ScriptedCoordinator(rounds=1))
    run(driver)
    saved = {"key": False, "enrolled": False, "assignment": False, "update": ""}
    for action in driver.performed:
        if isinstance(action, Save):
            saved = {
                "key": bool(action.record.key_seed),
                "enrolled": action.record.enrolled is not None,
                "assignment": action.record.assignment is not None,
                "update": action.record.update_digest or "",
            }
        elif isinstance(action, Send):
            assert saved["key"]
            assert saved["enrolled"] == (action.route is not Route.ENROL)
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
    assert len(coordinator.keys) == 1
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


# ------------------------------------------------------------ enrolment


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


# ------------------------------------------------------------ waiting


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


def test_an_old_protocol_ends_the_session_wherever_it_is_told() -> None:
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


# ------------------------------------------------------------ refusals and withdrawals


def withdrawal(driver: Driver, **changes: Any) -> str:
    assert run(driver, **changes) == 1
    (reason,) = driver.coordinator.rounds[0].withdrawn
    (entry,) = driver.storage.history()
    assert entry.result == "withdrawn"
    assert entry.reason == reason
    assert entry.update_digest is None
    return reason


def test_policy_is_checked_before_training() -> None:
    driver = Driver(ScriptedCoordinator(rounds=1))
    reason = withdrawal(driver, offer=offer(policy=Policy(learners=("other:thing",))))
    assert reason == f"This device's owner allows these learners only: other:thing. The plan wants {LEARNER}."
    assert driver.trainings == 0
    assert driver.coordinator.rounds[0].started == 0


def test_after_a_withdrawal_the_device_rests_before_it_checks_in_again() -> None:
    driver = Driver(ScriptedCoordinator(rounds=2))
    assert run(driver, 2, offer=offer(policy=Policy(secure_only=True))) == 2
    assert [(sleep.min_s, sleep.max_s) for sleep in driver.sleeps] == [(30, 90)]


def test_failed_training_withdraws_with_its_sentence_on_one_line() -> None:
    driver = Driver(ScriptedCoordinator(rounds=1))
    driver.trained = failing("ValueError: the loss is\nnot finite")
    assert withdrawal(driver) == "ValueError: the loss is not finite"


def test_a_long_reason_is_cut_to_what_the_protocol_takes() -> None:
    driver = Driver(ScriptedCoordinator(rounds=1))
    driver.trained = failing("x" * 2000)
    assert len(withdrawal(driver)) == 500


def test_partial_work_is_sent_or_withdrawn_as_the_plan_says() -> None:
    for partial, sent in (("full", True), ("examples_seen", True), ("refuse", False)):
        driver = Driver(ScriptedCoordinator(rounds=1, partial=partial))
        driver.trained = lambda train: Trained(b"half", False, 1001.0)
        run(driver)
        assert (driver.coordinator.rounds[0].update is not None) == sent
        assert bool(driver.coordinator.rounds[0].withdrawn) == (not sent)


def test_an_update_longer_than_allowed_is_not_sent() -> None:
    driver = Driver(ScriptedCoordinator(rounds=1, max_update_bytes=10))
    assert withdrawal(driver) == "The update has 19 bytes; the coordinator takes 10."


def test_a_withdrawal_is_repeated_after_a_crash() -> None:
    driver = Driver(ScriptedCoordinator(rounds=1))
    driver.trained = failing("no memory")
    steps = Driver(ScriptedCoordinator(rounds=1))
    steps.trained = driver.trained
    run(steps)
    place = next(i for i, a in enumerate(steps.performed) if isinstance(a, Send) and a.route is Route.WITHDRAWN)
    driver.crash_at([(place, "before")])
    with pytest.raises(Crash):
        run(driver)
    assert withdrawal(driver) == "no memory"
    assert driver.trainings == 1


def test_a_round_that_ended_meanwhile_is_dropped_after_a_crash_without_training_anew() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)
    probe = Driver(ScriptedCoordinator(rounds=1))
    run(probe)
    place = next(i for i, action in enumerate(probe.performed) if isinstance(action, Train))
    driver.crash_at([(place, "after")])
    with pytest.raises(Crash):
        run(driver)
    coordinator.rounds[0].open = False
    assert run(driver) == 1
    assert [(entry.result, entry.reason) for entry in driver.storage.history()] == [("dropped", "It closed.")]
    assert driver.trainings == 1


def test_when_training_would_begin_too_late_the_coordinator_says_so() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)

    def close(fetch: Any) -> Fetched:
        coordinator.rounds[0].open = False
        return Fetched(driver.clock)

    driver.fetched = close
    assert run(driver) == 1
    assert driver.storage.history()[0].result == "dropped"
    assert driver.trainings == 0


def test_a_late_update_is_recorded_as_refused_with_its_digest() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)

    def late(train: Train) -> Trained:
        coordinator.rounds[0].open = False
        return Trained(b"too late", True, driver.clock)

    driver.trained = late
    assert run(driver) == 1
    (entry,) = driver.storage.history()
    assert (entry.result, entry.reason) == ("refused", "This round is over.")
    assert entry.update_digest == hashlib.sha256(b"too late").hexdigest()


def test_a_lost_receipt_of_a_round_that_closed_is_not_told_as_a_refusal() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    answered = iter([None, problem("late", "This round is over.")])
    coordinator.interfere = lambda method, path: next(answered, None) if method == "PUT" else None
    driver = Driver(coordinator)
    probe = Driver(ScriptedCoordinator(rounds=1))
    run(probe)
    driver.lost = {i for i, a in enumerate(probe.performed) if isinstance(a, Send) and a.route is Route.UPDATE}
    run(driver)
    (entry,) = driver.storage.history()
    assert entry.result == "receipt"
    assert entry.reason == "The receipt was lost; the update was counted."


def test_an_update_that_came_second_is_recorded_as_refused_although_the_first_was_counted() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)

    def overtaken(train: Train) -> Trained:
        coordinator.rounds[0].update = b"sent by this device's old disk, which was restored since"
        coordinator.rounds[0].open = True
        return Trained(b"trained again", True, driver.clock)

    driver.trained = overtaken
    run(driver)
    (entry,) = driver.storage.history()
    assert (entry.result, entry.reason) == ("refused", "Another update came first.")
    assert entry.update_digest == hashlib.sha256(b"trained again").hexdigest()


def test_a_receipt_for_other_bytes_is_no_receipt() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    genuine = coordinator._report
    coordinator._report = lambda one, body: genuine(one, body).model_copy(  # type: ignore[method-assign]
        update={"digest": "cd" * 32}
    )
    driver = Driver(coordinator)
    run(driver)
    (entry,) = driver.storage.history()
    assert entry.result == "refused"
    assert "other bytes" in entry.reason


@pytest.mark.parametrize("kind", [kind for kind, fixed in PROBLEMS.items() if fixed.advice == "drop"])
def test_every_final_refusal_of_an_update_ends_the_round_and_deletes_the_copy(kind: str) -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    coordinator.interfere = lambda method, path: problem(kind, "Because.") if method == "PUT" else None
    driver = Driver(coordinator)
    assert run(driver) == 1
    (entry,) = driver.storage.history()
    assert (entry.result, entry.reason) == ("refused", "Because.")
    record = driver.storage.load()
    assert record is not None
    assert record.update_digest is None


def test_an_error_page_of_something_in_between_does_not_cost_the_update() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)
    pages = iter([(403, b"<html>Log in to this hotel</html>"), (404, b'{"detail": "Not Found"}')])
    genuine = coordinator.handle

    def hotel(method: str, path: str, token: str, body: bytes) -> tuple[int, bytes]:
        page = next(pages, None) if method == "PUT" else None
        return page if page is not None else genuine(method, path, token, body)

    coordinator.handle = hotel  # type: ignore[method-assign]
    run(driver)
    assert coordinator.rounds[0].update == b"round 1, training 1"
    assert len(driver.sleeps) == 2


def test_after_the_deadline_an_error_page_is_final_so_that_no_device_hangs() -> None:
    coordinator = ScriptedCoordinator(rounds=1, report_within_s=100)
    driver = Driver(coordinator)
    genuine = coordinator.handle
    coordinator.handle = lambda method, path, token, body: (  # type: ignore[method-assign]
        (413, b"<html>too large</html>") if method == "PUT" else genuine(method, path, token, body)
    )
    assert run(driver) == 1
    assert driver.storage.history()[0].result == "refused"


# ------------------------------------------------------------ the checkpoint


def fetches(*replies: Any) -> tuple[Driver, Any]:
    driver = Driver(ScriptedCoordinator(rounds=1))
    given_replies = iter(replies)
    driver.fetched = lambda fetch: next(given_replies)
    return driver, given_replies


MISMATCH = Refused(problem("digest-mismatch", "It was another.").problem, 1001.0)


def test_a_checkpoint_with_the_wrong_digest_is_fetched_once_more() -> None:
    driver, _ = fetches(MISMATCH, Fetched(1002.0))
    run(driver)
    assert driver.coordinator.rounds[0].update is not None


def test_two_wrong_checkpoints_withdraw() -> None:
    driver, left = fetches(MISMATCH, MISMATCH, Fetched(1002.0))
    assert withdrawal(driver) == "Twice the checkpoint was not what had been announced. It was another."
    assert len(list(left)) == 1


def test_a_checkpoint_that_is_gone_withdraws() -> None:
    driver, _ = fetches(Refused(problem("unknown-checkpoint", "Deleted.").problem, 1001.0))
    assert withdrawal(driver) == "The checkpoint cannot be fetched. Deleted."


def test_a_full_disk_on_the_device_withdraws() -> None:
    driver, _ = fetches(Failed("This device cannot keep the checkpoint: No space left on device.", 1001.0))
    assert "No space left" in withdrawal(driver)


def test_a_checkpoint_is_asked_for_until_the_deadline_and_no_longer() -> None:
    driver, _ = fetches(Unreachable("gone", 1001.0), Unreachable("gone", 1500.0), Unreachable("gone", 1700.0))
    assert withdrawal(driver) == "The round's deadline passed before the checkpoint was here."
    assert len(driver.sleeps) == 2


def test_a_checkpoint_that_came_after_the_deadline_is_not_trained() -> None:
    driver, _ = fetches(Fetched(5000.0))
    assert "deadline passed before this device could train" in withdrawal(driver)
    assert driver.trainings == 0


def test_an_assignment_that_this_sdk_cannot_read_is_declined() -> None:
    coordinator = ScriptedCoordinator(rounds=2)
    driver = Driver(coordinator)
    genuine = driver.perform
    told = iter([Unreadable("run-1", 1, 0, "the plan asks for task.quantum", 1001.0)])

    def perform(action: Any) -> Any:
        if isinstance(action, Send) and action.route is Route.CHECK_IN:
            unreadable = next(told, None)
            if unreadable is not None:
                return unreadable
        return genuine(action)

    driver.perform = perform  # type: ignore[method-assign]
    assert run(driver) == 1
    assert coordinator.rounds[0].withdrawn == ["the plan asks for task.quantum"]
    assert coordinator.rounds[1].update is not None


def test_the_storage_can_be_moved_to_another_process() -> None:
    """A session needs nothing but the record: two drivers, one storage."""
    storage = MemoryStorage()
    coordinator = ScriptedCoordinator(rounds=2, task=Task(learner=LEARNER))
    run(Driver(coordinator, storage))
    run(Driver(coordinator, storage))
    assert [entry.round for entry in storage.history()] == [1, 2]
    assert coordinator.enrolments == 1
