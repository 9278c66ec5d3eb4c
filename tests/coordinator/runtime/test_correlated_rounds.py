"""Private rounds whose noise is correlated: by keys that are as secret as the sums, and gone when the run ends."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.identity import DeviceKey
from client_sdk.privacy.correlated import Strategy
from client_sdk.tensors.exact_sum import ExactSum
from coordinator.blobs import MemoryBlobs
from coordinator.folding.noise import Noise, RoundSeed
from coordinator.runtime.sweeping import sweep
from coordinator.store.memory import MemoryStore
from coordinator.store.port import RUN_ROUND, MessageRow, StoreError
from coordinator.verify import verify
from tests.coordinator import databases
from tests.coordinator.runtime.test_private_rounds import PRIVATE, _append_of, _Died, _transaction_of, logged
from tests.coordinator.world import World

MECHANISMS = ("tree", "blt")
EACH = pytest.mark.parametrize("mechanism", MECHANISMS)


def create(world: World, mechanism: str, rounds: int = 6, retention: int = 100) -> None:
    world.create(
        cohort={"most_rounds": 3, "apart": 2},
        aggregation={"weighting": "equal"},
        privacy={**PRIVATE["privacy"], "mechanism": mechanism},
        retention={"rounds": retention},
        finish={"rounds": rounds},
    )


def rows(world: World) -> list[MessageRow]:
    return [row for row in world.store._all(MessageRow) if row.round == RUN_ROUND]


def violations(world: World) -> list[str]:
    return [str(found) for found in verify(world.store, world.blobs)]


def strategy_of(world: World) -> Strategy:
    plan = world.coordinator.core.log("marks").state.plan
    assert plan.privacy is not None
    found: Strategy = plan.privacy.strategy(plan)
    return found


def play(world: World, rounds: int) -> list[Any]:
    """The noise of each round: what the model moved by beyond the sum of its devices, in units of the sum."""
    found = []
    for number in range(1, rounds + 1):
        before = world.checkpoint()["marks"].astype(np.float64)
        counted = world.play_round(number)
        step = world.checkpoint()["marks"].astype(np.float64) - before
        for device in counted:
            step[device] -= min(2.0**number, 1.0) / 3
        found.append(step * 3)
    return found


@EACH
def test_the_noise_is_that_of_the_stored_keys(mechanism: str) -> None:
    world = World()
    create(world, mechanism)
    noise = play(world, 5)
    keys = [row.content[4:] for row in sorted(rows(world), key=lambda row: row.content)]
    assert [body["noise"] for body in logged(world, "Committed")] == [
        hashlib.sha256(row.content).hexdigest() for row in sorted(rows(world), key=lambda row: row.content)
    ]
    plan = world.coordinator.core.log("marks").state.plan
    assert plan.privacy is not None
    again = Noise(plan, plan.privacy)
    strategy = strategy_of(world)
    for step in range(1, 6):
        wanted = strategy.noise(step, lambda step, level: again._draw(keys[step - 1], level, 8)) / 2.0**32
        assert noise[step - 1] == pytest.approx(wanted, abs=2e-5)
    assert violations(world) == []


@EACH
def test_a_process_that_starts_again_goes_on_with_the_same_noise(mechanism: str) -> None:
    one, other = World(), World()
    for world in (one, other):
        create(world, mechanism)
        for number in (1, 2, 3, 4):
            if world is other:
                world.boot()
            world.play_round(number)
    assert one.checkpoint()["marks"].tobytes() != other.checkpoint()["marks"].tobytes(), "its seeds are others"
    assert violations(other) == violations(one) == []


def test_a_start_sweeps_no_key_of_a_run_that_goes_on() -> None:
    world = World()
    create(world, "tree", retention=0)
    for number in (1, 2, 3):
        world.play_round(number)
    kept = rows(world)
    assert len(kept) == 3
    sweep(world.boot().core)
    assert rows(world) == kept
    assert violations(world) == []


@EACH
@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("kind", ["Seeded", "Committed"])
def test_a_commit_that_dies_at_any_step_is_made_again_to_the_same_bits(
    mechanism: str, kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    world = World(store=store)
    create(world, mechanism)
    for number in (1, 2):
        world.play_round(number)
    world.check_in()
    cohort = world.cohort()[:3]
    append = _append_of(store)

    def failing(tx: Any, run: str, events: Any) -> Any:
        if kind not in {name for _, name, _ in events}:
            return append(tx, run, events)
        if how == "before":
            raise StoreError("the disk reported an error")
        append(tx, run, events)
        raise _Died

    monkeypatch.setattr(_transaction_of(store), "append", failing)
    with suppress(StoreError, _Died):
        world.report(*cohort, round=3)
    monkeypatch.undo()
    world.boot()
    world.settle()
    assert len(logged(world, "Committed")) == len(rows(world)) == 3
    assert violations(world) == []


@EACH
def test_two_replicas_commit_the_same_bits(mechanism: str) -> None:
    store, blobs = MemoryStore(), MemoryBlobs()
    world = World(store=store, blobs=blobs)
    create(world, mechanism)
    other = world.replica()
    for number in (1, 2, 3):
        world.play_round(number)
        other.tick()
        while (task := other.core.take_task()) is not None:
            other.perform(task)
    assert len(logged(world, "Committed")) == len(rows(world)) == 3
    assert violations(world) == []


@EACH
@pytest.mark.parametrize("how", ["finished", "stopped", "stopped in a round"])
def test_the_keys_go_when_the_run_ends(mechanism: str, how: str) -> None:
    world = World()
    create(world, mechanism, rounds=3 if how == "finished" else 6, retention=1)
    for number in (1, 2):
        world.play_round(number)
    assert len(rows(world)) == 2, "they stay when the updates of their rounds are gone"
    if how == "finished":
        world.play_round(3)
    else:
        if how == "stopped in a round":
            world.check_in()
        world.coordinator.operators.stop("marks")
        world.settle()
    assert rows(world) == []
    told: list[str] = []
    assert list(verify(world.store, world.blobs, note=told.append)) == []
    assert any("with it the keys of its noise" in text for text in told)


def test_no_file_of_the_database_has_a_key_or_a_seed_that_is_deleted(tmp_path: Path) -> None:
    """While the coordinator runs on, write-ahead log and all."""
    with closing(databases.in_file(tmp_path / "quorate.db")) as store:
        world = World(store=store)
        create(world, "blt", rounds=3, retention=0)
        secrets = set[bytes]()

        def found() -> int:
            data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
            return sum(secret in data for secret in secrets)

        seed = world.coordinator.core.noise_seed
        world.coordinator.core.noise_seed = lambda *of: secrets.add(made := seed(*of)) or made  # type: ignore[func-returns-value]
        for number in (1, 2):
            world.play_round(number)
            secrets |= {row.content[4:] for row in rows(world)}
            assert found() == number, f"of {2 * number} seeds and keys the keys alone are kept"
        world.play_round(3)
        assert len(secrets) == 5
        assert found() == 0


@EACH
def test_verify_names_a_key_that_is_gone_or_exchanged_and_no_round_is_made_without(mechanism: str) -> None:
    world = World()
    create(world, mechanism)
    for number in (1, 2):
        world.play_round(number)
    kept = rows(world)
    with world.store.transaction() as tx:
        tx.drop_messages("marks", RUN_ROUND)
        tx.insert_messages(kept[1:])
    assert any("the key of its noise, which later rounds need, is not stored" in found for found in violations(world))
    world.check_in()
    world.report(*world.cohort()[:3], round=3)
    world.settle()
    row = world.store.round("marks", 3)
    assert row is not None
    assert (row.status, world.coordinator.operators.run("marks").version) == ("abandoned", 2)
    assert "of the noise of 2 rounds before, 1 keys are stored" in row.reason


def test_verify_draws_the_noise_of_each_round_twice_at_most_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    create(world, "blt")
    for number in range(1, 6):
        world.play_round(number)
    draw, drawn = Noise._draw, Counter[bytes]()

    def counting(noise: Noise, key: bytes, level: int, size: int) -> Any:
        drawn[key] += 1
        return draw(noise, key, level, size)

    monkeypatch.setattr(Noise, "_draw", counting)
    assert violations(world) == []
    assert len(drawn) == 5
    assert max(drawn.values()) <= 2


@EACH
def test_a_device_rests_between_its_rounds(mechanism: str) -> None:
    world = World()
    create(world, mechanism)
    counted = [set(world.play_round(number)) for number in range(1, 6)]
    assert all(not one & other for one, other in pairwise(counted))
    assert any(one & other for one, other in zip(counted, counted[2:], strict=False))


def test_who_rests_is_said_where_nobody_else_waits() -> None:
    world = World(4)
    create(world, "blt")
    world.play_round(1)
    world.check_in()
    world.pass_time(11)
    assert (
        "it rests: its rounds are cohort.apart = 2 committed ones apart"
        in world.coordinator.operators.run("marks").stalled
    )


@EACH
def test_the_cost_of_those_who_have_counted_once_is_below_that_of_the_plan(mechanism: str) -> None:
    world = World(store=MemoryStore(audit_signer=DeviceKey(bytes(32))))
    create(world, mechanism)
    world.play_round(1)
    view = world.coordinator.operators.run("marks").privacy
    assert view is not None
    assert 0 < view.epsilon < view.epsilon_planned
    log = world.coordinator.core.log("marks").state
    assert log.plan.privacy is not None
    assert view.rho == log.plan.privacy.cost(log.plan)
    told = world.coordinator.insight.privacy_reports.of_run("marks").report
    assert "DP-FTRL" in told.mechanism
    assert (told.epsilon, told.epsilon_planned) == (view.epsilon, view.epsilon_planned)


def test_two_sums_never_have_the_same_noise() -> None:
    """A folder that was set back, and the round ended otherwise: the noise of that step is another."""
    world = World()
    create(world, "blt")
    plan = world.coordinator.core.log("marks").state.plan
    assert plan.privacy is not None
    sums = []
    for value in (0.25, 0.5):
        total = ExactSum(8)
        total.add(np.full(8, value, np.float32), 1)
        sums.append(total)
    seed = RoundSeed("marks", 3, bytes(32), (bytes([1]) * 32, bytes([2]) * 32))
    (one, key), (other, another) = (Noise(plan, plan.privacy).mean(total, seed, "ab" * 32)[:2] for total in sums)
    assert key != another
    difference = (other.read(0, 8) - one.read(0, 8)) * 3 - 0.25
    assert np.abs(difference).max() > 0.1
