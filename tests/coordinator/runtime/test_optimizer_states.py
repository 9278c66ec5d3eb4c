"""The server optimizer's state: read by the next round, named by its commit, there after any death, gone in time."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.workers import Lease
from client_sdk.tensors import from_bytes, to_bytes
from coordinator.engine.aggregation.optimizers import Layer, is_layerwise
from coordinator.engine.aggregation.parameters import settings
from coordinator.engine.aggregation.registry import SERVER_OPTIMIZERS
from coordinator.engine.named_tensors import SERVER_OPTIMIZER
from coordinator.runtime.sweeping import sweep
from coordinator.store import MemoryStore
from coordinator.verify import verify
from tests.coordinator import databases
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.runtime.test_recovery import Play
from tests.coordinator.runtime.test_workers import Center
from tests.coordinator.secure_runs import exhausted, secure_run
from tests.coordinator.world import World

ADAM: dict[str, Any] = {
    "server_optimizer": "fedadam",
    "server_optimizer_parameters": {"beta1": 0.5, "beta2": 0.75, "tau": 0.25},
    "server_learning_rate": 0.5,
}
RANGER: dict[str, Any] = {
    "server_optimizer": "radam",
    "server_optimizer_parameters": {"layerwise": 1, "lookahead": 2},
    "server_learning_rate": 0.5,
}
OPTIMIZERS = {"adam": ADAM, "ranger": RANGER}
KEY = b"quorate.optimizer"


def states(world: World) -> set[str]:
    """The states on the disk."""
    return {digest for digest in world.blobs.digests() if KEY in world.blobs.open(digest).read()[:200]}


def named(world: World, run: str = "marks") -> list[str | None]:
    """The states that the line names, version by version."""
    return [row.named_tensors.get(SERVER_OPTIMIZER) for row in world.store.checkpoints(run)]


# ---------------------------------------------------------------- it is read


@pytest.mark.parametrize("name", [name for name in SERVER_OPTIMIZERS if name != "average"])
def test_three_rounds_are_three_steps_of_the_optimizer(make_world: MakeWorld, name: str) -> None:
    world = make_world()
    world.create(aggregation={"server_optimizer": name, "server_learning_rate": 0.5})
    optimizer: Any = SERVER_OPTIMIZERS[name]
    given = settings(name, "here", optimizer.parameters, {})
    model = np.zeros(world.size, np.float32)
    slots = [np.full(world.size, value, np.float32) for value in optimizer.first(given)]
    for number in (1, 2, 3):
        counted = world.play_round(number)
        mean = np.zeros(world.size, np.float32)
        mean[counted] = np.float32(2.0**number / len(counted))
        layer = (Layer("marks", model.shape, number),) if is_layerwise(optimizer) else ()
        model = optimizer.apply(*layer, model, mean, slots, 0.5, given)
        assert world.checkpoint()["marks"].tobytes() == model.tobytes()
        state = str(named(world)[-1])
        kept = from_bytes(world.blobs.open(state).read())["marks"]
        assert kept.shape == (world.size, len(slots))
        assert kept.T.tobytes() == np.array(slots).tobytes()
        committed = [row.body for row in world.store.events("marks", 0) if row.kind == "Committed"][-1]
        assert committed["named_tensors"] == {SERVER_OPTIMIZER: state}
        assert committed.get("small") == ({SERVER_OPTIMIZER: number} if layer else None)
    assert list(verify(world.store, world.blobs)) == []


def test_an_average_has_no_state(world: World) -> None:
    world.play_round(1)
    assert named(world) == [None, None]
    assert states(world) == set()


def test_a_round_that_is_abandoned_leaves_the_state_as_it_was(make_world: MakeWorld) -> None:
    world = make_world()
    world.create(aggregation=ADAM)
    world.play_round(1)
    world.check_in()
    world.pass_time(61)
    assert world.coordinator.operators.round("marks", 2).status == "abandoned"
    before = named(world)[-1]
    assert states(world) == {before}
    world.play_round(3)
    assert states(world) == {named(world)[-1]} != {before}


# ---------------------------------------------------------------- it survives, and goes


@functools.cache
def undisturbed(optimizer: str = "adam") -> tuple[dict[str, object], int]:
    play = Play(MemoryStore(), **OPTIMIZERS[optimizer]).play()
    assert states(play.world) == {named(play.world)[-1]}
    assert len(set(named(play.world))) == 4
    return play.story(), len(play.points.names)


@pytest.mark.parametrize("part", range(4))
def test_dead_at_any_point_the_run_commits_to_the_same_bits_and_states(part: int) -> None:
    story, points = undisturbed()
    for point in range(1 + part, points + 1, 8):
        play = Play(MemoryStore(), point, **ADAM).play()
        assert len(play.crashes) == 1
        assert play.story() == story, play.crashes


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_dead_at_any_point_on_sqlite_it_is_the_same(optimizer: str) -> None:
    story, points = undisturbed(optimizer)
    for point in range(5, points + 1, 29):
        with databases.in_memory() as store:
            play = Play(store, point, **OPTIMIZERS[optimizer]).play()
            assert play.story() == story, play.crashes


@pytest.mark.parametrize("retention", [0, 2])
def test_states_stay_as_long_as_the_updates_that_were_added_to_them(make_world: MakeWorld, retention: int) -> None:
    world = make_world()
    world.create(aggregation=ADAM, retention={"rounds": retention})
    for number in range(1, 6):
        world.play_round(number)
        line = named(world)
        assert states(world) == {state for state in line[-1 - retention :] if state is not None}
        assert sweep(world.boot().core) == 0, "the sweeper knows it too"
    assert list(verify(world.store, world.blobs)) == []


def test_what_a_dead_coordinator_left_is_swept(make_world: MakeWorld) -> None:
    world = make_world()
    world.create(aggregation=ADAM)
    world.play_round(1)
    old = world.blobs.open(str(named(world)[1])).read()
    world.play_round(2)
    assert world.blobs.put(old) == named(world)[1]
    assert sweep(world.boot().core) == 1
    assert states(world) == {named(world)[2]}


# ---------------------------------------------------------------- it is carried over


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_datacenter_round_carries_it_over_and_the_next_federated_one_reads_it(optimizer: str) -> None:
    center = Center()
    center.create(
        aggregation=OPTIMIZERS[optimizer],
        datacenter={"data": "proxy", "every": 2, "wait_s": 30, "lease_s": 40, "max_s": 300, "nproc": 2},
        finish={"rounds": 9},
    )
    center.play_round(1)
    made = named(center)[1]
    worker = center.worker()
    lease = center.poll(worker)
    assert isinstance(lease, Lease)
    assert lease.round == 2
    center.deliver(worker, lease, to_bytes(center.trained(2)))
    assert named(center) == [None, made, made]
    small = {} if optimizer == "adam" else {SERVER_OPTIMIZER: 1}
    assert center.coordinator.core.state("marks").small == small
    assert states(center) == {made}
    center.play_round(3)
    assert len(set(named(center))) == 3
    assert states(center) == {named(center)[-1]}
    assert center.coordinator.core.state("marks").small == {name: steps + 1 for name, steps in small.items()}
    assert list(verify(center.store, center.blobs)) == []


def test_a_run_that_its_owner_advances_carries_it_over(make_world: MakeWorld) -> None:
    world = make_world(4)
    secure_run(world, aggregation=ADAM)
    exhausted(world)
    log = world.coordinator.core.log("secret")
    state = hashlib.sha256(b"a state").hexdigest()
    log._cache = (dataclasses.replace(log.state, named_tensors={SERVER_OPTIMIZER: state}), log.seq)
    world.coordinator.operators.advance("secret", "olga")
    world.settle()
    assert named(world, "secret") == [None, state]
    assert world.coordinator.core.state("secret").named_tensors == {SERVER_OPTIMIZER: state}


# ---------------------------------------------------------------- what verify finds


def test_verify_folds_the_state_again(make_world: MakeWorld) -> None:
    world = make_world()
    world.create(aggregation=ADAM, retention={"rounds": 5})
    for number in (1, 2):
        world.play_round(number)
    assert list(verify(world.store, world.blobs)) == []
    first, second = (str(state) for state in named(world)[1:])
    body = world.blobs.open(first).read()
    world.blobs.delete(first)
    (gone,) = verify(world.store, world.blobs)
    assert (gone.invariant, gone.round) == ("5", 1), "round 2 cannot be added up again"
    world.blobs.put(body)
    world.blobs.delete(second)
    (gone,) = verify(world.store, world.blobs)
    assert (gone.invariant, gone.round) == ("5", 2)
    assert "the server optimizer's state of version 2 cannot be read" in gone.what


CLIPPING: dict[str, Any] = {
    "rule": "centered-clipping",
    "rule_parameters": {"radius": 0.125, "iterations": 1, "remember": 1},
    "weighting": "equal",
}


@pytest.mark.parametrize("aggregation", [ADAM, CLIPPING])
def test_verify_sees_a_state_that_the_updates_do_not_give(make_world: MakeWorld, aggregation: dict[str, Any]) -> None:
    """Round 2 folded as if there had been no state: its checkpoint and its state are both found wrong."""
    world = make_world()
    cohort = {"select": 4, "goal": 3, "quorum": 1.0}
    world.create(aggregation=aggregation, retention={"rounds": 5}, cohort=cohort)
    world.play_round(1)
    log = world.coordinator.core.log("marks")
    log._cache = (dataclasses.replace(log.state, named_tensors={}), log.seq)
    world.play_round(2)
    found = [(wrong.invariant, wrong.round) for wrong in verify(world.store, world.blobs)]
    assert found == [("evidence", 2), ("10", 2), ("10", 2)]
