"""Private rounds: one seed of noise a round, durable before anything is made of the sum, gone with the updates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Policy, PrivacyBounds, PrivacyTerms, Wait
from client_sdk.protocol.insight import CheckPlan
from client_sdk.tensors.exact_sum import ExactSum
from coordinator.blobs import MemoryBlobs
from coordinator.commands.tables import print_run
from coordinator.folding.noise import Noise, RoundSeed
from coordinator.runtime.commits import Commits
from coordinator.store.memory import MemoryStore
from coordinator.store.port import Json, MessageRow, StoreError
from coordinator.verify import verify
from tests.coordinator.world import World

PRIVATE: dict[str, Any] = {
    "cohort": {"most_rounds": 2},
    "aggregation": {"weighting": "equal"},
    "privacy": {"clip": 1.0, "noise": 1.0, "delta": 1e-6},
    "retention": {"rounds": 100},
}


@pytest.fixture
def world() -> World:
    return World()


def create(world: World, **sections: Any) -> None:
    world.create(**{name: {**PRIVATE.get(name, {}), **sections.get(name, {})} for name in PRIVATE | sections})


def seeds(world: World) -> dict[int, bytes]:
    return {row.round: row.content for row in stored_seeds(world)}


def stored_seeds(world: World) -> list[MessageRow]:
    named = {str(body["digest"]) for body in logged(world, "Seeded")}
    return [row for row in world.store._all(MessageRow) if row.digest in named]


def logged(world: World, kind: str) -> list[Json]:
    return [row.body for row in world.store.events("marks", 0) if row.kind == kind]


def expected(world: World, round: int, counted: list[int], seed: bytes) -> Any:
    """The step of the model, from the devices' own updates and the stored seed."""
    plan = world.coordinator.core.log("marks").state.plan
    assert plan.privacy is not None
    total = ExactSum(world.size)
    for number in counted:
        vector = np.zeros(world.size, np.float32)
        vector[number] = min(2.0**round, 1.0 - 2.0**-20)
        total.add((np.trunc(vector * 2.0**32) / 2.0**32).astype(np.float32), 1)
    parent = world.store.checkpoints("marks")[round - 1].digest
    step = Noise(plan, plan.privacy).mean(total, RoundSeed("marks", round, seed), parent)[0]
    return step.read(0, world.size)


def violations(world: World) -> list[str]:
    return [str(found) for found in verify(world.store, world.blobs)]


def test_the_model_is_the_clipped_sum_with_the_noise_of_the_stored_seed(world: World) -> None:
    create(world)
    counted = world.play_round(1)
    seed = seeds(world)[1]
    assert logged(world, "Seeded") == [{"round": 1, "digest": hashlib.sha256(seed).hexdigest()}]
    step = world.checkpoint()["marks"]
    assert step.tobytes() == expected(world, 1, counted, seed).tobytes()
    assert np.abs(step).max() > 0.05, "with noise"
    assert violations(world) == []


def test_each_round_has_a_seed_of_its_own(world: World) -> None:
    create(world, cohort={"most_rounds": 5})
    for number in (1, 2, 3):
        world.play_round(number)
    assert len(set(seeds(world).values())) == 3
    assert violations(world) == []


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("kind", ["Seeded", "Committed"])
def test_a_commit_that_dies_at_any_step_is_made_again_to_the_same_bits(
    kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed that was drawn first counts, if it is durable: other noise in the same sum would tell the sum."""
    store = MemoryStore()
    world = World(store=store)
    create(world)
    world.check_in()
    cohort = world.cohort()[:3]
    append = _append_of(store)

    def failing(tx: Any, run: str, events: Any) -> Any:
        names = {name for _, name, _ in events}
        if kind in names and how == "before":
            raise StoreError("the disk reported an error")
        found = append(tx, run, events)
        if kind in names and how == "after":
            raise _Died
        return found

    monkeypatch.setattr(_transaction_of(store), "append", failing)
    with suppress(StoreError, _Died):
        world.report(*cohort)
    monkeypatch.undo()
    before = seeds(world)
    world.boot()
    world.settle()
    assert len(logged(world, "Seeded")) == 1
    after = seeds(world)
    assert before in ({}, after)
    assert world.checkpoint()["marks"].tobytes() == expected(world, 1, cohort, after[1]).tobytes()
    assert violations(world) == []


class _Died(Exception):
    pass


def _transaction_of(store: MemoryStore) -> type:
    with store.transaction() as tx:
        return type(tx)


def _append_of(store: MemoryStore) -> Callable[..., Any]:
    found: Callable[..., Any] = _transaction_of(store).append  # type: ignore[attr-defined]
    return found


def test_the_seed_goes_with_the_updates(world: World) -> None:
    create(world, retention={"rounds": 1}, cohort={"most_rounds": 5})
    for number in (1, 2, 3):
        world.play_round(number)
    world.settle()
    assert seeds(world).keys() == {2, 3} or seeds(world).keys() == {3}
    for number in {1, 2, 3} - seeds(world).keys():
        assert not any(world.blobs.has(row.digest) for row in world.store.contributions("marks", number))
    assert violations(world) == []


def test_repro_verify_names_no_seed_that_is_about_to_be_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that has just ended, with no retention: its seed goes with its updates, by a task of its own."""
    monkeypatch.setattr(Commits, "discard", lambda *_: None)
    create(world, retention={"rounds": 0})
    world.play_round(1)
    assert seeds(world).keys() == {1}
    assert violations(world) == []


def test_verify_names_a_seed_that_was_exchanged_or_deleted(world: World) -> None:
    create(world)
    world.play_round(1)
    (row,) = stored_seeds(world)
    others = [one for one in world.store._all(MessageRow) if one != row]
    with world.store.transaction() as tx:
        tx.drop_messages("marks", 1)
        tx.insert_messages(others)
    assert any("the seed of its noise is not stored" in found for found in violations(world))
    with world.store.transaction() as tx:
        tx.insert_messages([replace(row, content=bytes(32))])
    assert any("its updates give" in found for found in violations(world))
    with world.store.transaction() as tx:
        tx.insert_messages([row])
    assert violations(world) == []


def test_a_device_counts_as_often_as_the_plan_allows_and_no_more(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    create(world, cohort={"select": 8, "goal": 8, "quorum": 1.0, "most_rounds": 2})
    for number in (1, 2):
        assert len(world.play_round(number)) == 8
    answers = world.check_in()
    world.pass_time(11)
    assert world.cohort() == []
    view = world.coordinator.operators.run("marks")
    assert "it has counted in 2 rounds, all that cohort.most_rounds allows" in view.stalled
    assert all(answer is None or isinstance(answer, Wait) for answer in answers)
    assert view.privacy is not None
    assert (view.privacy.rounds, view.privacy.rounds_planned) == (2, 2)
    assert view.privacy.epsilon == view.privacy.epsilon_planned > 0
    print_run(view)
    told = capsys.readouterr().out
    assert f"privacy     epsilon {view.privacy.epsilon:.3g} of {view.privacy.epsilon:.3g} at delta 1e-06" in told
    assert "one device has counted in 2 of the 2 rounds it may" in told


def test_devices_are_told_the_noise_and_drawn_by_what_their_owners_allow_and_they_decline(world: World) -> None:
    create(world, cohort={"select": 6, "goal": 6, "quorum": 1.0, "most_rounds": 5})
    bounded = {
        0: Policy(rests=(("marks", -1),)),
        1: Policy(privacy=PrivacyBounds(most_epsilon=1.0)),
        2: Policy(rests=(("marks", 1), ("other", -1))),
        3: Policy(privacy=PrivacyBounds(most_epsilon=100.0, apart=2)),
    }
    for first in (True, False):
        for number in range(8):
            world.check_in(number, **dict(bounded.get(number, Policy())))
        world.pass_time(11)
        assert world.cohort() == ([] if first else [2, 3, 4, 5, 6, 7])
        if first:
            assert "the device declines this run until version 1" in world.coordinator.operators.run("marks").stalled
            del bounded[2]
    told = world.assignment(2)
    assert told is not None
    assert told.privacy == PrivacyTerms(noise=1.0, most_rounds=5)


def test_the_check_of_a_plan_says_what_its_noise_is_worth(world: World) -> None:
    found = world.coordinator.insight.plans.check(CheckPlan(plan=world.plan(**PRIVATE)), permitted=lambda run: True)
    (worth, cost) = (note for note in found.notes if note.startswith("Privacy: "))
    assert "for a device that counts in all of its 2 rounds" in worth
    assert "noise 1 x clip in a sum" in cost


def test_two_replicas_commit_the_same_bits() -> None:
    store, blobs = MemoryStore(), MemoryBlobs()
    world = World(store=store, blobs=blobs)
    create(world)
    other = world.replica()
    counted = world.play_round(1)
    other.tick()
    while (task := other.core.take_task()) is not None:
        other.perform(task)
    assert len(logged(world, "Seeded")) == len(logged(world, "Committed")) == 1
    assert world.checkpoint()["marks"].tobytes() == expected(world, 1, counted, seeds(world)[1]).tobytes()


def test_a_model_with_statistics_is_refused(world: World) -> None:
    model = {"bn.running_mean": np.zeros(8, np.float32), "marks": np.zeros(8, np.float32)}
    with world.refuses("invalid-plan", "is a statistic, which neither clip nor noise of .privacy. covers"):
        world.create(model, **PRIVATE)
    create(world, task={"averaged": ["marks"]})


def test_an_update_that_is_refused_says_nothing_of_its_values(world: World) -> None:
    create(world)
    world.check_in()
    number = world.cohort()[0]
    body = bytearray(world.body(number))
    body[-4:] = np.array(np.nan, "<f4").tobytes()
    with world.refuses("invalid-update", "the update cannot be counted"):
        world.send(number, bytes(body))
    assert [row.reason for row in world.store.refusals("marks", 1)] == ["the update cannot be counted"]
