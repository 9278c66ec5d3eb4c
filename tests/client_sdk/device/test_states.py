"""What a device keeps for strategies: stores of it, the session that settles it, and a crash at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.device.actions import Reply, Save, Send, Settle, Train, Trained
from client_sdk.device.durable_folder import DurableFolder
from client_sdk.device.record import Storage
from client_sdk.device.states import Candidate, MemoryStates, StateFolder, States, belongs, key_of
from client_sdk.device.storage import FileStorage, MemoryStorage
from client_sdk.protocol.devices import CheckIn, Outcome, Policy, Task, TaskStrategy
from client_sdk.protocol.problems import problem
from tests.client_sdk.device.scripted import LEARNER, Crash, Driver, ScriptedCoordinator, offer
from tests.client_sdk.device.sessions import run

KEEPS = Task(learner=LEARNER, strategy=TaskStrategy(name="ditto", version="1", keeps="committed"))
KEY = key_of("https://coordinator", "run")


@pytest.fixture(params=["memory", "folder"])
def states(request: pytest.FixtureRequest, tmp_path: Path) -> States:
    return MemoryStates() if request.param == "memory" else StateFolder(DurableFolder(tmp_path / "states", True))


def of(value: float) -> dict[str, Any]:
    return {"w": np.full(3, value, np.float32)}


def value_of(states: States) -> float | None:
    kept = states.current(KEY)
    return None if kept is None else float(kept.tensors["w"][0])


def test_a_candidate_is_kept_or_left_out(states: States) -> None:
    assert states.current(KEY) is states.candidate(KEY) is None
    first, second = Candidate(1, 0, "a" * 64), Candidate(2, 1, "b" * 64)
    states.put(KEY, first, of(1), 100.0)
    assert (states.candidate(KEY), value_of(states)) == (first, None)
    states.settle(KEY, keep=True)
    states.settle(KEY, keep=False)  # it may be repeated
    assert (states.candidate(KEY), value_of(states)) == (None, 1)
    kept = states.current(KEY)
    assert kept is not None
    assert (kept.round, kept.at) == (1, 100.0)
    states.put(KEY, second, of(2), 101.0)
    states.put(KEY, second, of(3), 102.0)
    assert (states.candidate(KEY), value_of(states)) == (second, 1)
    states.settle(KEY, keep=False)
    assert (states.candidate(KEY), value_of(states)) == (None, 1)
    states.put(KEY, second, of(4), 103.0)
    states.settle(KEY, keep=True)
    assert value_of(states) == 4
    states.put(KEY, second, of(5), 104.0)
    states.forget()
    assert states.candidate(KEY) is None


def test_what_is_too_old_is_deleted_under_every_key(states: States) -> None:
    """Also of runs that are over, and a candidate whose outcome nobody asked for."""
    over, waits = key_of("https://coordinator", "over"), key_of("https://coordinator", "waits")
    for key, number, at in ((over, 7, 99.0), (KEY, 8, 101.0)):
        states.put(key, Candidate(number, 0, "-"), of(number), at)
        states.settle(key, keep=True)
    states.put(waits, Candidate(9, 0, "-"), of(9), 98.0)
    states.put(KEY, Candidate(10, 0, "-"), of(10), 102.0)
    assert sorted(states.expire(100.0)) == [(7, 99.0), (9, 98.0)]
    assert states.current(over) is states.candidate(waits) is None
    assert (value_of(states), states.candidate(KEY)) == (8, Candidate(10, 0, "-"))
    assert states.expire(100.0) == []
    assert sorted(states.expire(103.0)) == [(8, 101.0), (10, 102.0)]
    assert states.current(KEY) is states.candidate(KEY) is None


def test_what_is_damaged_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    states = StateFolder(DurableFolder(tmp_path, True))
    states.put(KEY, Candidate(1, 0, "-"), of(1), 0.0)
    states.settle(KEY, keep=True)
    states.put(KEY, Candidate(2, 0, "-"), of(2), 0.0)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:20])
    assert states.candidate(KEY) is states.current(KEY) is None
    states.put(KEY, Candidate(3, 0, "-"), of(3), 0.0)
    states.settle(KEY, keep=True)
    assert value_of(states) == 3


def test_older_values_are_overwritten(tmp_path: Path) -> None:
    """A link to the file of the older state has zeros then, and so has one to a candidate that is left out."""
    states = StateFolder(DurableFolder(tmp_path, True))
    states.put(KEY, Candidate(1, 0, "-"), of(1), 0.0)
    states.settle(KEY, keep=True)
    (tmp_path / "link").hardlink_to(tmp_path / f"{KEY}.state")
    states.put(KEY, Candidate(2, 0, "-"), of(2), 0.0)
    states.settle(KEY, keep=True)
    assert not any((tmp_path / "link").read_bytes())
    states.put(KEY, Candidate(3, 0, "-"), of(3), 0.0)
    (tmp_path / "other").hardlink_to(tmp_path / f"{KEY}.next")
    states.settle(KEY, keep=False)
    assert not any((tmp_path / "other").read_bytes())


@pytest.mark.parametrize("folder", [False, True])
def test_who_leaves_forgets_what_was_kept(tmp_path: Path, folder: bool) -> None:
    storage: Storage = FileStorage(tmp_path) if folder else MemoryStorage()
    storage.states.put(KEY, Candidate(1, 0, "-"), of(1), 0.0)
    storage.states.settle(KEY, keep=True)
    storage.forget()
    assert storage.states.current(KEY) is None
    if isinstance(storage, FileStorage):
        assert not list((tmp_path / "states").iterdir())
        storage.close()


# ------------------------------------------------------------ the session


class Keeping(Driver):
    """Trains with what is kept, and keeps the round in which it does. ``began``: round -> what it trained with."""

    def __init__(self, coordinator: ScriptedCoordinator, storage: MemoryStorage | None = None) -> None:
        super().__init__(coordinator, storage)
        self.began: dict[int, float | None] = {}
        self.trained = self._trained

    def _trained(self, action: Train) -> Reply:
        number = action.assignment.round
        kept = self.storage.states.current(self.key)
        self.began[number] = None if kept is None else float(kept.tensors["w"][0])
        body = f"round {number}, training {self.trainings}".encode()
        return Trained(body, True, self.clock, of(number))

    @property
    def key(self) -> str:
        record = self.storage.load()
        assert record is not None
        return key_of(record.coordinator, "run-1")


HAS = offer(strategies={"ditto": "1"})


def keeping(rounds: int = 4, task: Task = KEEPS) -> Keeping:
    return Keeping(ScriptedCoordinator(rounds=rounds, task=task))


def test_it_trains_with_the_state_of_its_last_update_that_counts() -> None:
    driver = keeping()
    assert run(driver, 4, offer=HAS) == 4
    assert driver.began == {1: None, 2: 1, 3: 2, 4: 3}
    asked = [path for _, path in driver.coordinator.requests if path.endswith("/outcome")]
    assert asked == [f"/v1/runs/run-1/rounds/{number}/outcome" for number in (1, 2, 3)]


def test_the_state_is_stored_before_the_update_is_sent() -> None:
    driver = keeping(1)
    run(driver, 1, offer=HAS)
    saves = [one for one in driver.performed if isinstance(one, Save) and one.update is not None]
    assert [one.state is not None for one in saves] == [True]
    candidate = driver.storage.states.candidate(driver.key)
    assert candidate is not None
    assert (candidate.round, candidate.attempt) == (1, 0)


@pytest.mark.parametrize("closed", ["refused", "other bytes"])
def test_of_an_update_that_does_not_count_nothing_is_kept(closed: str) -> None:
    driver = keeping(3)

    def interfere(method: str, path: str) -> Any:
        if method == "PUT" and "/rounds/2/" in path:
            two = driver.coordinator.rounds[1]
            two.update, two.open = (b"of a twin" if closed == "other bytes" else None), False
        return None

    driver.coordinator.interfere = interfere
    run(driver, 3, offer=HAS)
    assert driver.began == {1: None, 2: 1, 3: 1}


def test_an_outcome_that_nobody_knows_leaves_the_older_state_and_is_said() -> None:
    driver = keeping(2)
    unknown = problem("unknown-round", "There is no such round.")
    driver.coordinator.interfere = lambda method, path: unknown if path.endswith("/outcome") else None
    run(driver, 2, offer=HAS)
    assert driver.began == {1: None, 2: None}
    said = [one.why for one in driver.performed if isinstance(one, Settle)]
    assert said == ["It is not known whether the update of round 1 counted: its state is left out."]


def test_it_tells_how_often_its_state_was_left_out() -> None:
    driver = keeping(3)
    unknown = problem("unknown-round", "There is no such round.")
    driver.coordinator.interfere = lambda method, path: unknown if path.endswith("/outcome") else None
    run(driver, 3, offer=HAS)
    said = [one.message for one in driver.performed if isinstance(one, Send) and isinstance(one.message, CheckIn)]
    assert [one.facts.model_dump(exclude_defaults=True) for one in said] == [{}, {}, {"states_left_out": 1}]
    record = driver.storage.load()
    assert record is not None
    assert record.states_left_out == 2


def test_a_strategy_may_keep_what_it_has_trained_whatever_becomes_of_it() -> None:
    keeps = KEEPS.model_copy(update={"strategy": TaskStrategy(name="ditto", version="1", keeps="trained")})
    driver = keeping(3, keeps)

    def interfere(method: str, path: str) -> Any:
        if method == "PUT" and "/rounds/1/" in path:
            driver.coordinator.rounds[0].open = False
        return None

    driver.coordinator.interfere = interfere
    run(driver, 3, offer=HAS)
    assert driver.began == {1: None, 2: 1, 3: 2}


def test_a_state_of_the_round_that_is_trained_again_is_left_out_and_nobody_is_asked() -> None:
    """A crash while an update was saved leaves the state without its update."""
    driver = keeping(2)
    save = driver.perform

    def torn(action: Any) -> Any:
        if isinstance(action, Save) and action.update is not None and driver.trainings == 1:
            driver.storage.states.put(driver.key, Candidate(1, 0, "ab" * 32), of(77), driver.clock)
            raise Crash
        return save(action)

    driver.perform = torn  # type: ignore[method-assign]
    with pytest.raises(Crash):
        run(driver, 2, offer=HAS)
    again = Keeping(driver.coordinator, driver.storage)
    run(again, 2, offer=HAS)
    assert again.began == {1: None, 2: 1}
    assert not any(one.withdrawn for one in driver.coordinator.rounds)


def test_a_device_trains_for_no_later_round_before_it_knows_the_outcome() -> None:
    driver = keeping(3)
    outcome, told = driver.coordinator._outcome, list[int]()

    def pending(one: Any) -> Outcome:
        told.append(one.number)
        return outcome(one) if told.count(1) > 1 else outcome(one).model_copy(update={"result": "pending"})

    driver.coordinator._outcome = pending  # type: ignore[method-assign]
    run(driver, 3, offer=HAS)
    reason = "The outcome of round 1, to which this device's state belongs, is not known yet."
    assert [one.withdrawn for one in driver.coordinator.rounds] == [[], [reason], []]
    assert driver.began == {1: None, 3: 1}


@pytest.mark.parametrize(
    ("outcome", "masked", "counts"),
    [
        ({"result": "counted", "version": 3, "digest": "ab" * 32}, False, True),
        ({"result": "counted", "version": 3, "digest": "cd" * 32}, False, False),
        ({"result": "counted", "version": 3, "digest": "cd" * 32}, True, True),
        ({"result": "counted", "digest": "ab" * 32}, False, False),
        ({"result": "counted", "digest": "ab" * 32}, True, False),
        ({"result": "dropped"}, False, False),
        ({"result": "refused"}, True, False),
        ({"result": "withdrawn"}, False, False),
    ],
)
def test_a_state_belongs_to_an_update_that_a_checkpoint_has(
    outcome: dict[str, Any], masked: bool, counts: bool
) -> None:
    """An update may count in a round that was abandoned afterwards: no version has it."""
    found = Outcome(run="run-1", round=1, device="d1", **outcome)
    assert belongs(found, Candidate(1, 0, "ab" * 32), masked=masked) is counts
    if not masked and outcome.get("version"):
        assert belongs(found, Candidate(1, 0, "-"), masked=False)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_step_changes_no_state_that_it_trains_with(when: str) -> None:
    whole = keeping(3)
    run(whole, 3, offer=HAS)
    for place in range(len(whole.performed)):
        driver = keeping(3).crash_at([(place, when)])
        assert isinstance(driver, Keeping)
        with pytest.raises(Crash):
            run(driver, 3, offer=HAS)
        again = Keeping(driver.coordinator, driver.storage)
        run(again, 3 - len(driver.storage.history()), offer=HAS)
        assert {**driver.began, **again.began} == whole.began, f"crashed {when} {whole.performed[place]}"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "The plan's strategy is ditto 1, of which this device has no half (it has: none)."),
        ({"strategies": {"ditto": "2"}}, "The plan's strategy is ditto 1, of which this device has no half"),
        (
            {"strategies": {"ditto": "1"}, "policy": Policy(max_state_bytes=0)},
            "This device's owner allows no state, and the strategy ditto keeps one.",
        ),
    ],
)
def test_a_device_that_has_no_half_or_may_keep_nothing_withdraws_with_the_reason(
    changes: dict[str, Any], sentence: str
) -> None:
    driver = keeping(1)
    run(driver, 1, offer=offer(**changes))
    assert driver.coordinator.rounds[0].withdrawn[0].startswith(sentence)
    assert not driver.trainings


def test_what_is_not_set_is_not_sent() -> None:
    assert "max_state_bytes" not in Policy().model_dump_json()
    assert "strategies" not in offer().model_dump_json()
