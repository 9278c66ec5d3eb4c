"""The ledger of a data set: what its devices have told in rounds with noise, debited before it leaves, and held against
their owner's bounds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from client_sdk.device.actions import Send, Spend, Train
from client_sdk.device.data_ledger import NEVER, DataLedger, Debit, LedgerFile, debit_for
from client_sdk.device.record import StorageError
from client_sdk.device.storage import FileStorage, MemoryStorage
from client_sdk.privacy.accounting import epsilon_of, rho_of
from client_sdk.protocol.devices import (
    Assignment,
    CheckIn,
    CheckpointRef,
    Policy,
    PrivacyBounds,
    PrivacyTerms,
    Task,
)
from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import SecureRefusal, SecureTask
from tests.client_sdk.device.scripted import CHECKPOINT, Crash, Driver, ScriptedCoordinator, offer
from tests.client_sdk.device.secure_world import SessionPhone, finish, world_with
from tests.client_sdk.device.sessions import run
from tests.coordinator.secure.world import World

DELTA, NOISE = 1e-6, 2.0
ROUND = rho_of(NOISE, 1)
TERMS = PrivacyTerms(noise=NOISE, most_rounds=10)


def debit(round: int = 1, **changes: Any) -> Debit:
    given = {"coordinator": "c", "run": "r", "device": "d", "version": round - 1, "answer": f"{round}", "rho": ROUND}
    return Debit.model_validate({"round": round, "most_rounds": 10, **given, **changes})


def ledger_of(*debits: Debit) -> DataLedger:
    ledger = DataLedger()
    for one in debits:
        ledger = ledger.debited(one)
    return ledger


def bounds(**given: Any) -> PrivacyBounds:
    return PrivacyBounds(delta=DELTA, **given)


# The rules.


def test_costs_add_over_rounds_runs_devices_and_coordinators_and_the_same_answer_costs_once() -> None:
    first = debit()
    once = ledger_of(first)
    assert once.debited(first) is once
    ledger = ledger_of(first, debit(2), debit(run="s"), debit(device="e"), debit(coordinator="b"))
    assert (ledger.rho, ledger.answers) == (5 * ROUND, 5)
    assert ledger.debited(debit(2, answer="another")).rho == 6 * ROUND, "another answer in the same round"
    assert once.debited(debit(2, answer="1")).rho == 2 * ROUND, "the same one under another round's noise"


def test_one_answer_without_noise_has_no_bound_and_is_noted_once() -> None:
    plain = debit(rho=None, most_rounds=None)
    ledger = ledger_of(debit(run="s"), plain)
    assert ledger.rho is None
    assert ledger.debited(debit(2, rho=None, most_rounds=None)) is ledger
    assert ledger.debited(debit(2)).rho is None, "noise later on does not take it back"


@pytest.mark.parametrize(
    ("ledger", "asked", "given", "sentence", "until"),
    [
        (ledger_of(*(debit(n) for n in range(1, 11))), debit(11), {}, "in 10 rounds of this run; its", NEVER),
        (ledger_of(*(debit(n) for n in range(1, 10))), debit(10), {}, "", 0),
        (ledger_of(*(debit(n) for n in range(1, 11))), debit(10, answer="again"), {}, "", 0),
        (ledger_of(*(debit(n, device="e") for n in range(1, 11))), debit(11), {}, "its plan allows 10", NEVER),
        (ledger_of(*(debit(n, run="s") for n in range(1, 11))), debit(11), {}, "", 0),
        (ledger_of(debit(1)), debit(3), {"apart": 3}, "wants 3 committed rounds between", 3),
        (ledger_of(debit(1)), debit(4), {"apart": 3}, "", 0),
        (ledger_of(debit(1)), debit(3, apart=3), {}, "run's plan wants 3 committed rounds between", 3),
        (ledger_of(debit(1)), debit(4, apart=3), {}, "", 0),
        (ledger_of(debit(1)), debit(2, version=0, apart=3), {}, "", 0),
        (ledger_of(debit(6)), debit(3, apart=3), {}, "run's plan wants 3 committed rounds between", 8),
        (ledger_of(debit(6)), debit(3), {}, "", 0),
        (ledger_of(debit(1)), debit(3, apart=3), {"apart": 4}, "owner wants 4 committed rounds between", 4),
        (ledger_of(debit(1, run="s")), debit(3), {"apart": 3}, "", 0),
        (ledger_of(debit(1)), debit(1, answer="again"), {"apart": 3}, "", 0),
        (ledger_of(debit(rho=None, most_rounds=None)), debit(2), {"most_epsilon": 900}, "without noise", NEVER),
        (DataLedger(), debit(rho=None), {"most_epsilon": 900}, "which nothing bounds", NEVER),
        (DataLedger(), debit(rho=None), {}, "", 0),
        (ledger_of(debit(run="s", coordinator="b")), debit(), {"most_epsilon": 2.5}, "would lose epsilon 3.542", NEVER),
        (ledger_of(debit(run="s", coordinator="b")), debit(), {"most_epsilon": epsilon_of(2 * ROUND, DELTA)}, "", 0),
        (ledger_of(debit()), debit(), {"most_epsilon": 0.1}, "", 0),
    ],
)  # fmt: skip
def test_what_an_owner_or_a_plan_does_not_allow_is_declined(
    ledger: DataLedger, asked: Debit, given: dict[str, Any], sentence: str, until: int
) -> None:
    declined = ledger.declines(asked, bounds(**given))
    assert (declined is None) == (sentence == "")
    if declined is not None:
        assert sentence in declined.reason
        assert declined.until == until


def test_people_see_what_is_left() -> None:
    ledger = ledger_of(debit(), debit(2), debit(run="s", rho=ROUND / 2))
    shown = ledger.shown(DELTA, epsilon_of(6 * ROUND, DELTA))
    assert shown["epsilon"] == pytest.approx(epsilon_of(2.5 * ROUND, DELTA))
    assert [(run["run"], run["rounds"], run["rounds_left"]) for run in shown["runs"]] == [("r", 2, 3), ("s", 1, 7)]
    assert [run["rounds_left"] for run in ledger.shown(DELTA, None)["runs"]] == [8, 9]
    for _ in range(3):
        assert ledger.declines(debit(ledger.answers), bounds(most_epsilon=epsilon_of(6 * ROUND, DELTA))) is None
        ledger = ledger.debited(debit(ledger.answers))
    assert ledger.declines(debit(9), bounds(most_epsilon=epsilon_of(6 * ROUND, DELTA))) is not None
    assert ledger_of(debit(rho=None, most_rounds=None)).shown(DELTA, 3.0)["epsilon"] is None


# The file.


def test_two_processes_of_one_data_set_spend_one_budget(tmp_path: Path) -> None:
    """Each asks and debits in one step: together they never have more than their owner allows."""
    most = bounds(most_epsilon=epsilon_of(30 * ROUND, DELTA))

    def spending(folder: int) -> int:
        place = tmp_path / f"d{folder}"
        with FileStorage(place, durable=False, ledger=tmp_path / "data") as storage:
            asked = [debit(n, device=f"d{folder}", most_rounds=None) for n in range(1, 21)]
            return sum(storage.spend(one, most) is None for one in asked)

    with ThreadPoolExecutor(4) as folders:
        assert sum(folders.map(spending, range(4))) == 30
    assert LedgerFile(tmp_path / "data", durable=False).read().rho == pytest.approx(30 * ROUND)


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"rounds":3', b'"rounds":1'))


def set_back(path: Path) -> None:
    path.write_bytes(ledger_of(debit(1), debit(2)).encoded)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (damaged, "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), "cannot be read"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (set_back, "has 2 answers, and had 3 before: it was set back"),
        (Path.unlink, "has 0 answers, and had 3 before"),
    ],
)
def test_a_device_that_cannot_know_what_was_spent_sends_nothing(
    harm: Callable[[Path], None], sentence: str, tmp_path: Path
) -> None:
    with FileStorage(tmp_path / "d", durable=False) as storage:
        for number in (1, 2, 3):
            assert storage.spend(debit(number), bounds()) is None
        harm(tmp_path / "d" / "ledger.json")
        for ahead in (True, False):
            with pytest.raises(StorageError, match=sentence):
                storage.spend(debit(4), bounds(), ahead=ahead)


def test_repro_another_file_of_the_same_folder_is_not_taken_for_one_that_was_set_back(tmp_path: Path) -> None:
    """A device that is started with other data has another ledger."""
    for name, numbers in (("one", (1, 2, 3)), ("other", (4,)), ("one", (5,))):
        with FileStorage(tmp_path / "d", durable=False, ledger=tmp_path / name, data=name) as storage:
            for number in numbers:
                assert storage.spend(debit(number), bounds()) is None
    found = LedgerFile(tmp_path / "one", durable=False).read()
    assert (found.data, found.answers) == ("one", 4)


# In a session.


def script(rounds: int = 1, **changes: Any) -> ScriptedCoordinator:
    return ScriptedCoordinator(rounds, **({"privacy": TERMS} | changes))


def ledger(driver: Driver) -> DataLedger:
    return driver.storage.ledger


def test_a_device_killed_anywhere_debits_each_answer_before_it_leaves_and_once() -> None:
    whole = Driver(script())
    run(whole)
    (spend,) = [n for n, action in enumerate(whole.performed) if isinstance(action, Spend) and not action.ahead]
    (sent,) = [n for n, action in enumerate(whole.performed) if isinstance(action, Send) and action.update is not None]
    assert spend < sent
    killed = 0
    for place in range(len(whole.performed)):
        for when in ("before", "after"):
            driver = Driver(script()).crash_at([(place, when)])
            try:
                run(driver)
            except Crash:
                assert ledger(driver).answers >= len(driver.coordinator.rounds[0].sent)
                if driver.coordinator.rounds[0].open:
                    run(driver)
                killed += 1
            sent_all = driver.coordinator.rounds[0].sent
            assert ledger(driver).answers == len(set(sent_all)) or (place, when) == (spend, "after")
            assert ledger(driver).rho == ROUND * ledger(driver).answers
    assert killed > 10


def test_an_answer_that_was_debited_before_the_device_died_is_sent_as_it_is_and_costs_nothing_again() -> None:
    probe = Driver(script())
    run(probe)
    place = next(n for n, action in enumerate(probe.performed) if isinstance(action, Spend) and not action.ahead)
    driver = Driver(script()).crash_at([(place, "after")])
    with pytest.raises(Crash):
        run(driver)
    before = ledger(driver)
    assert (before.answers, driver.coordinator.rounds[0].sent) == (1, [])
    tight = Policy(privacy=bounds(most_epsilon=epsilon_of(ROUND, DELTA)))
    run(driver, offer=offer(policy=tight))
    assert ledger(driver) is before
    assert driver.trainings == 1
    assert len(driver.coordinator.rounds[0].sent) == 1


def rests(driver: Driver) -> list[dict[str, int]]:
    """What each check-in said of runs that the device declines."""
    said = [action.message for action in driver.performed if isinstance(action, Send)]
    return [dict(one.policy.rests) for one in said if isinstance(one, CheckIn)]


def test_a_budget_that_ends_in_a_run_ends_the_device_s_part_and_it_asks_not_to_be_drawn_again() -> None:
    coordinator = script(4)
    driver = Driver(coordinator)
    policy = Policy(privacy=bounds(most_epsilon=epsilon_of(2 * ROUND, DELTA)))
    run(driver, 4, offer=offer(policy=policy))
    assert [len(one.sent) for one in coordinator.rounds] == [1, 1, 0, 0]
    assert driver.trainings == 2, "it declines before it trains"
    assert coordinator.rounds[2].withdrawn == ["This device does not take part in this round."]
    assert "would lose epsilon" in driver.storage.history()[-1].reason
    assert rests(driver) == [{}, {}, {}, {"run-1": NEVER}]


def test_a_plan_s_most_rounds_are_held_by_the_device_too() -> None:
    driver = Driver(script(3, privacy=PrivacyTerms(noise=NOISE, most_rounds=2)))
    run(driver, 3)
    assert [len(one.sent) for one in driver.coordinator.rounds] == [1, 1, 0]
    assert "in 2 rounds of this run; its plan allows 2" in driver.storage.history()[-1].reason


def test_a_device_takes_part_again_only_so_many_committed_rounds_later() -> None:
    """Versions of the model are committed rounds: the script's rounds all begin from version 0."""
    apart = offer(policy=Policy(privacy=bounds(apart=2)))
    coordinator = script(4)
    driver = Driver(coordinator)
    run(driver, 2, offer=apart)
    assert [len(one.sent) for one in coordinator.rounds] == [1, 0, 0, 0]
    run(driver, 1, offer=apart)
    assert rests(driver)[-1] == {}, "a session that begins anew asks its ledger again"
    digest = coordinator.offered().checkpoint.digest
    coordinator.assignment["checkpoint"] = CheckpointRef(version=2, digest=digest, bytes=len(CHECKPOINT))
    run(driver, 1, offer=apart)
    assert [len(one.sent) for one in coordinator.rounds] == [1, 0, 0, 1]


def test_two_coordinators_share_one_budget() -> None:
    storage = MemoryStorage()
    policy = Policy(privacy=bounds(most_epsilon=epsilon_of(1.5 * ROUND, DELTA)))
    first = Driver(script(), storage)
    run(first, offer=offer(policy=policy))
    record = storage.load()
    assert record is not None
    second = Driver(script(authority=first.coordinator.authority), storage)
    run(second, coordinator="http://another.test", offer=offer(policy=policy))
    assert (len(first.coordinator.rounds[0].sent), second.coordinator.rounds[0].sent) == (1, [])
    assert "would lose epsilon" in storage.history()[-1].reason


def test_a_device_that_spent_elsewhere_while_it_trained_sends_nothing() -> None:
    driver = Driver(script())

    def meanwhile(train: Train) -> Any:
        driver.storage.spend(debit(coordinator="b"), bounds())
        driver.trained = None
        return driver.perform(train)

    driver.trained = meanwhile
    run(driver, offer=offer(policy=Policy(privacy=bounds(most_epsilon=epsilon_of(ROUND, DELTA)))))
    assert (driver.coordinator.rounds[0].sent, ledger(driver).answers) == ([], 1)
    assert driver.storage.history()[-1].result == "withdrawn"


def test_a_secure_round_without_noise_is_debited_as_one_before_its_vector_leaves() -> None:
    world, (phone,) = world_with(1)
    world.play(done=lambda _: (1, 0, "mask") in phone.sent)
    assert isinstance(phone.storage, MemoryStorage)
    assert (phone.storage.ledger.answers, phone.storage.ledger.rho) == (1, None)
    places = [n for n, action in enumerate(phone.performed) if isinstance(action, Spend) and not action.ahead]
    masks = [n for n, one in enumerate(phone.performed) if isinstance(one, Send) and one.path.get("stage") == "mask"]
    assert places[0] < masks[0]

    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    phone.policy = phone.policy.changed(privacy=bounds(most_epsilon=100))
    finish(world, [phone])
    assert (phone.trainings, phone.sent) == (0, {})
    assert "with noise only" in phone.storage.history()[-1].reason


def test_under_masks_an_answer_costs_what_devices_add_whatever_else_is_said() -> None:
    said = PrivacyTerms(noise=100.0, most_rounds=3)
    masked: dict[str, Any] = {
        "q": 16,
        "max_norm": 1.0,
        "max_abs": 1.0,
        "weight_cap": 1,
        "profile": "strict",
        "minimum_cohort": 64,
    }
    for secure, rho in (
        (SecureTask(**masked, noise=2.0, divisor=64), rho_of(2.0, 1)),
        (SecureTask(**masked), None),
        (None, rho_of(100.0, 1)),
    ):
        assignment = Assignment(
            run="r",
            round=1,
            device="d",
            checkpoint=CheckpointRef(version=0, digest="a" * 64, bytes=1),
            plan_digest="b" * 64,
            task=Task(learner="a:b"),
            report_within_s=60,
            max_update_bytes=1000,
            privacy=said,
            secure=secure,
        )
        debit = debit_for("https://c", assignment, "answer")
        assert debit.rho == (None if rho is None else pytest.approx(rho, rel=1e-12))
        assert debit.most_rounds == 3


NOISED: dict[str, Any] = {
    "n": 6,
    "cohort": {"quorum": 0.5, "most_rounds": 3},
    "aggregation": {"weighting": "equal"},
    "privacy": {"mechanism": "distributed", "clip": 4.0, "noise": NOISE, "delta": DELTA},
}


def noised() -> tuple[World, SessionPhone]:
    """A world of devices that weigh the same and add noise; the first is a session."""
    world, (phone,) = world_with(1, **NOISED)
    assert world.plan.terms is not None
    for member in world.members:
        member.weight = world.plan.terms.weight_cap
    return world, phone


def masks(phone: SessionPhone) -> set[bytes]:
    return {one for (_, _, stage), sent in phone.sent.items() if stage == "mask" for one in sent}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_masked_vector_is_debited_before_it_leaves_and_once_wherever_the_device_dies(when: str) -> None:
    """It is the same bytes when it is sent again."""
    world, phone = noised()
    finish(world, [phone])
    assert phone.history == [(1, "receipt")]
    debits = [n for n, action in enumerate(phone.performed) if isinstance(action, Spend) and not action.ahead]
    sent = [n for n, one in enumerate(phone.performed) if isinstance(one, Send) and one.path.get("stage") == "mask"]
    assert debits[0] < sent[0]
    for place in range(debits[0] - 2, sent[0] + 2):
        world, phone = noised()
        phone.crashes = {place: when}
        finish(world, [phone])
        assert isinstance(phone.storage, MemoryStorage)
        assert (phone.storage.ledger.answers, len(masks(phone))) == (1, 1)
        assert phone.storage.ledger.rho == pytest.approx(ROUND)


def test_an_owner_bounds_secure_rounds_with_noise_too() -> None:
    def played(**given: Any) -> SessionPhone:
        world, phone = noised()
        phone.policy = phone.policy.changed(privacy=bounds(**given))
        finish(world, [phone])
        return phone

    assert played(private_only=NOISE, most_epsilon=1.01 * epsilon_of(ROUND, DELTA)).history == [(1, "receipt")]
    for given, sentence in (
        ({"private_only": 1.1 * NOISE}, "in which devices add noise of 2.2 x clip themselves"),
        ({"most_epsilon": 0.9 * epsilon_of(ROUND, DELTA)}, "one round of this plan costs"),
    ):
        phone = played(**given)
        assert (phone.trainings, phone.sent) == (0, {})
        assert sentence in phone.storage.history()[-1].reason
        (told,) = phone.routes(Route.SECURE_REFUSAL)
        assert isinstance(told.message, SecureRefusal)
        assert told.message.reason == "This device does not take part in this round.", "what it tells is no reason"


def test_what_was_spent_elsewhere_ends_a_secure_attempt_before_its_vector_leaves() -> None:
    world, phone = noised()
    phone.policy = phone.policy.changed(privacy=bounds(most_epsilon=1.01 * epsilon_of(ROUND, DELTA)))
    world.play(done=lambda _: (1, 0, "share") in phone.sent)
    assert phone.storage.spend(debit(coordinator="b"), bounds()) is None
    finish(world, [phone])
    assert not masks(phone)
    assert "would lose epsilon" in phone.storage.history()[-1].reason
    assert phone.name not in world.survivors()
