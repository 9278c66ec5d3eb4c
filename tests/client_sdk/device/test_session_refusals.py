"""The session in a round that goes wrong: refusals, withdrawals, checkpoints that cannot be had."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import pytest

from client_sdk.device.actions import Failed, Fetched, RequestRefused, Send, Train, Trained, Unreachable, Unreadable
from client_sdk.device.session import FAILED
from client_sdk.device.storage import MemoryStorage
from client_sdk.protocol.devices import CheckIn, Policy, PrivacyTerms, SecureTask, Task
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import PROBLEMS, Problem, problem
from tests.client_sdk.bounds import any_work
from tests.client_sdk.device.scripted import LEARNER, Crash, Driver, ScriptedCoordinator, failing, offer
from tests.client_sdk.device.sessions import run

# ---------------------------------------------------------------- refusals and withdrawals


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
    assert [(sleep.min_s, sleep.max_s, sleep.trouble) for sleep in driver.sleeps] == [(30, 90, True)], "a warning"


def test_failed_training_withdraws_with_its_sentence_on_one_line() -> None:
    driver = Driver(ScriptedCoordinator(rounds=1))
    driver.trained = failing("ValueError: the loss is\nnot finite")
    assert withdrawal(driver) == "ValueError: the loss is not finite"


class Drawing(ScriptedCoordinator):
    """It gives the device no round of a run that it rests in."""

    def _answer(self, method: str, path: str, signer: str, body: bytes) -> Any:
        if path == "/v1/checkins":
            rests = dict(CheckIn.model_validate_json(body).policy.rests)
            if rests.get("run-1", 0) > self.offered().checkpoint.version:
                return self.wait
        return super()._answer(method, path, signer, body)


def pauses(driver: Driver, *, rounds: int, **changes: Any) -> list[float]:
    """From the end of each round to the beginning of the next one, in whole minutes."""
    assert run(driver, rounds, **changes) == rounds
    history = driver.storage.history()
    return [(b.joined_at - a.ended_at) // 60 for a, b in itertools.pairwise(history)]


MASKED = SecureTask(q=16, max_norm=1.0, max_abs=1.0, weight_cap=1, profile="strict", minimum_cohort=3)


@pytest.mark.parametrize("secure", [None, MASKED])
def test_where_training_fails_again_on_one_model_the_device_takes_part_after_a_growing_time(
    secure: SecureTask | None,
) -> None:
    """The coordinator drew it again each minute, for ever."""
    driver = Driver(Drawing(rounds=20, secure=secure))
    driver.trained = lambda train: Failed("no memory", driver.clock)
    allowed = offer(policy=Policy(secure=any_work(smallest_cohort=3)))
    first, *more = pauses(driver, rounds=9, offer=allowed)
    assert driver.trainings == 9
    assert driver.coordinator.rounds[8].withdrawn == [FAILED if secure else "no memory"]
    assert first == 1, "its rest after each withdrawal"
    assert more == pytest.approx([1, 3, 7, 15, 31, 63, 127], abs=1)


def test_with_the_next_model_it_takes_part_at_once() -> None:
    other = Drawing(rounds=4)
    again = Driver(other)

    def fail(train: Train) -> Any:
        if again.trainings == 3:
            other.assignment["checkpoint"] = other.offered().checkpoint.changed(version=1)
        return Failed("no memory", again.clock)

    again.trained = fail
    assert pauses(again, rounds=4) == [1, 1, 1], "the third time would be 3 minutes, but for the next model"


def test_the_time_after_failures_has_a_limit_and_a_device_that_starts_again_has_had_none() -> None:
    driver = Driver(Drawing(rounds=20))
    driver.trained = lambda train: Failed("no memory", driver.clock)
    assert max(pauses(driver, rounds=12)) == pytest.approx(6 * 60, abs=1)
    at = driver.clock
    assert run(driver, 1) == 1
    assert driver.clock - at < 1


@pytest.mark.parametrize("private", [False, True])
def test_who_withdraws_for_the_moment_s_sake_is_welcome_but_in_a_private_run_nobody_is_told_which(
    private: bool,
) -> None:
    terms = {"privacy": PrivacyTerms(noise=1.0, most_rounds=9)} if private else {}
    driver = Driver(Drawing(rounds=9, report_within_s=0, **terms))
    gaps = pauses(driver, rounds=5)
    assert "deadline passed" in driver.storage.history()[-1].reason
    assert gaps == (pytest.approx([1, 1, 3, 7], abs=1) if private else [1, 1, 1, 1])


def test_what_the_plan_asks_and_the_owner_does_not_allow_is_a_failure_too() -> None:
    driver = Driver(Drawing(rounds=9))
    assert run(driver, 4, offer=offer(policy=Policy(secure_only=True))) == 4
    first, *_, last = driver.storage.history()
    assert last.joined_at - first.ended_at > 5 * 60


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
    longest = Driver(ScriptedCoordinator(rounds=1, max_update_bytes=19))
    run(longest)
    assert longest.coordinator.rounds[0].update == b"round 1, training 1"


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


def test_a_lost_receipt_of_a_round_that_closed_is_not_reported_as_a_refusal() -> None:
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


@pytest.mark.parametrize("kind", ["invalid-update", "too-large", "length-required", "invalid-request"])
def test_repro_an_update_whose_bytes_are_refused_is_trained_once_and_the_device_rests(kind: str) -> None:
    """It was trained and sent again without pause until the deadline: the assignment was still there."""
    coordinator = ScriptedCoordinator(rounds=2)
    refused = iter([problem(kind, "delta holds NaN.")])
    coordinator.interfere = lambda method, path: next(refused, None) if method == "PUT" else None
    driver = Driver(coordinator)
    assert run(driver, 2) == 2
    assert driver.trainings == 2
    first, second = driver.storage.history()
    assert (first.round, first.result, first.reason) == (1, "refused", "delta holds NaN.")
    assert first.update_digest is not None
    assert (second.round, second.result) == (2, "receipt")
    assert [(sleep.min_s, sleep.max_s, sleep.reason) for sleep in driver.sleeps] == [(30, 90, "delta holds NaN.")]


def test_an_update_that_came_too_late_costs_no_rest() -> None:
    coordinator = ScriptedCoordinator(rounds=2)
    refused = iter([problem("late", "This round is over.")])
    coordinator.interfere = lambda method, path: next(refused, None) if method == "PUT" else None
    driver = Driver(coordinator)
    run(driver, 2)
    assert driver.sleeps == []


def test_an_error_page_of_something_in_between_does_not_cost_the_update() -> None:
    coordinator = ScriptedCoordinator(rounds=1)
    driver = Driver(coordinator)
    pages = iter([(403, b"<html>Log in to this hotel</html>"), (404, b'{"detail": "Not Found"}')])
    genuine = coordinator.handle

    def hotel(method: str, path: str, signer: str, body: bytes) -> tuple[int, bytes]:
        page = next(pages, None) if method == "PUT" else None
        return page if page is not None else genuine(method, path, signer, body)

    coordinator.handle = hotel  # type: ignore[method-assign]
    run(driver)
    assert coordinator.rounds[0].update == b"round 1, training 1"
    assert len(driver.sleeps) == 2


def test_after_the_deadline_an_error_page_is_final_so_that_no_device_hangs() -> None:
    coordinator = ScriptedCoordinator(rounds=1, report_within_s=100)
    driver = Driver(coordinator)
    genuine = coordinator.handle
    coordinator.handle = lambda method, path, signer, body: (  # type: ignore[method-assign]
        (413, b"<html>too large</html>") if method == "PUT" else genuine(method, path, signer, body)
    )
    assert run(driver) == 1
    assert driver.storage.history()[0].result == "refused"


# ---------------------------------------------------------------- the checkpoint


def fetches(*replies: Any) -> tuple[Driver, Any]:
    driver = Driver(ScriptedCoordinator(rounds=1))
    given_replies = iter(replies)
    driver.fetched = lambda fetch: next(given_replies)
    return driver, given_replies


MISMATCH = RequestRefused(problem("digest-mismatch", "It was another.").problem, 1001.0)


def test_a_checkpoint_with_the_wrong_digest_is_fetched_once_more() -> None:
    driver, _ = fetches(MISMATCH, Fetched(1002.0))
    run(driver)
    assert driver.coordinator.rounds[0].update is not None


def test_two_wrong_checkpoints_withdraw() -> None:
    driver, left = fetches(MISMATCH, MISMATCH, Fetched(1002.0))
    assert withdrawal(driver) == "Twice the checkpoint was not what had been announced. It was another."
    assert len(list(left)) == 1


def test_a_checkpoint_that_is_gone_withdraws() -> None:
    driver, _ = fetches(RequestRefused(problem("unknown-checkpoint", "Deleted.").problem, 1001.0))
    assert withdrawal(driver) == "The checkpoint cannot be fetched. Deleted."


def test_a_checkpoint_that_an_error_page_replaced_is_asked_for_again() -> None:
    page = Problem(type="about:blank", title="Not Found", status=404)
    assert (page.advice, page.is_ours) == ("drop", False)
    driver, _ = fetches(RequestRefused(page, 1001.0), Fetched(1002.0))
    run(driver)
    assert driver.coordinator.rounds[0].update is not None
    assert len(driver.sleeps) == 1


def test_a_full_disk_on_the_device_withdraws() -> None:
    driver, _ = fetches(Failed("This device cannot keep the checkpoint: No space left on device.", 1001.0))
    assert "No space left" in withdrawal(driver)


def test_a_checkpoint_is_asked_for_until_the_deadline_and_no_longer() -> None:
    driver, _ = fetches(Unreachable("gone", 1001.0), Unreachable("gone", 1500.0), Unreachable("gone", 1700.0))
    assert withdrawal(driver) == "The round's deadline passed before the checkpoint was here."
    assert [(sleep.min_s, sleep.max_s) for sleep in driver.sleeps] == [(0.5, 1), (1, 2)]  # doubled


def test_a_checkpoint_that_came_after_the_deadline_is_not_trained() -> None:
    driver, _ = fetches(Fetched(5000.0))
    assert "deadline passed before this device could train" in withdrawal(driver)
    assert driver.trainings == 0


def test_an_assignment_that_this_sdk_cannot_read_is_declined() -> None:
    coordinator = ScriptedCoordinator(rounds=2)
    driver = Driver(coordinator)
    genuine = driver.perform
    answer = iter([Unreadable("run-1", 1, 0, "the plan asks for task.quantum", 1001.0)])

    def perform(action: Any) -> Any:
        if isinstance(action, Send) and action.route is Route.CHECK_IN:
            unreadable = next(answer, None)
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
    assert coordinator.registrations == 1
