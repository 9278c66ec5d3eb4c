"""Secure runs as the runtime sees them: who is drawn, what is deleted, and the owner's way out of an exhausted run."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from coordinator.blobs import FileBlobs
from coordinator.engine import events as ev
from coordinator.engine.event_fields import Group
from coordinator.engine.pool_tree import PoolTree
from coordinator.runtime.sweeping import sweep
from coordinator.store import MemoryStore, Store, open_store
from coordinator.verify import verify
from tests.client_sdk.bounds import any_work
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.runtime.fragile import Crash, FragileBlobs, FragileStore, Points
from tests.coordinator.secure_runs import check_in, exhausted, happens, says, secure_run, state, to_the_list
from tests.coordinator.world import World


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """Four devices and a secure run named ``secret``, which wants three of them."""
    made = make_world(4)
    secure_run(made)
    return made


# Drawing


def test_spent_devices_are_not_drawn_and_are_counted_apart(world: World) -> None:
    spent = exhausted(world)
    drawn = [row.body for row in world.store.events("secret", 0) if row.kind == "Drawn"]
    assert [(body["waiting"], body["unspendable"], len(body["cohort"])) for body in drawn] == [(4, 0, 4), (0, 4, 0)]
    assert state(world).spent == spent
    view = world.coordinator.operators.run("secret")
    assert view.exhausted == state(world).exhausted
    assert "of the devices that wait 4 have signed on this checkpoint; 0 can" in view.exhausted
    row = world.store.round("secret", 2)
    assert row is not None
    assert row.reason == view.exhausted
    assert world.coordinator.operators.round("secret", 2).kind == "secure"


def test_the_cohort_is_drawn_from_the_unspent_and_the_list_kept_is_of_them(make_world: MakeWorld) -> None:
    world = make_world(8)
    secure_run(world, cohort={"select": 4, "goal": 4, "quorum": 0.6, "pool": 8})
    check_in(world)
    cohort = to_the_list(world)
    says(world, ev.Signed, *cohort[:3])
    world.pass_time(21)
    check_in(world)
    world.pass_time(11)
    drawn = [row.body for row in world.store.events("secret", 0) if row.kind == "Drawn"][-1]
    assert (drawn["waiting"], drawn["unspendable"]) == (5, 3)
    assert not {device for device, _ in drawn["cohort"]} & set(cohort[:3])  # type: ignore[attr-defined]
    unspent = PoolTree(sorted((row.device, 10) for row in world.rows if row.device not in cohort[:3]))
    assert (drawn["examples"], drawn["root"]) == (50, unspent.root)


def test_waiting_devices_that_are_spent_do_not_call_the_fleet_back(make_world: MakeWorld) -> None:
    world = make_world(4)
    secure_run(world, datacenter={"data": "proxy", "patience": 2, "lease_s": 40, "max_s": 300})
    exhausted(world)
    assert (state(world).current.kind, state(world).phase) == ("datacenter", "leasing")
    check_in(world)
    world.pass_time(11)
    assert (state(world).current.kind, state(world).phase, state(world).round_number) == ("datacenter", "leasing", 3)


# Waiting


def test_repro_an_exhausted_run_waits_without_a_word_and_goes_on_with_the_devices_that_come(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """It counted a missed selection each ``select_s``, for ever, and with a barred device opened a round each time."""
    world = make_world(7)
    secure_run(world)
    first, others = [row.device for row in world.rows[:4]], [row.device for row in world.rows[4:]]
    bounds = any_work(smallest_cohort=3)
    world.check_in(0, 1, 2, 3, secure=bounds)
    world.settle()
    assert to_the_list(world) == tuple(sorted(first))
    says(world, ev.Signed, *first)
    world.pass_time(21)
    world.check_in(0, 1, 2, 3, secure=bounds)
    world.pass_time(11)
    assert state(world).waits
    assert caplog.messages.count(state(world).exhausted) == 1
    head, row = world.store.head("secret"), world.store.round("secret", 2)
    for _ in range(20):
        world.check_in(0, 1, 2, 3, 4, 5, secure=bounds)
        world.pass_time(60)
    world.boot()
    world.check_in(0, 1, 2, 3, 4, 5, secure=bounds)
    world.pass_time(1)
    assert (world.store.head("secret"), world.store.round("secret", 2)) == (head, row), "nothing is written"
    stalled = world.coordinator.operators.run("secret").stalled
    assert "4 have signed on this checkpoint; the ways out: more devices" in stalled
    assert "where devices' owners allow near models (--near-repeats 1)" in stalled
    other = world.replica()
    other.tick()
    world.check_in(6, secure=bounds)
    other.tick()
    while (task := other.core.take_task()) is not None:
        other.perform(task)
    assert sorted(state(world).current.members) == sorted(others), "the other replica draws"
    assert (state(world).round_number, state(world).exhausted) == (2, "")
    assert list(verify(world.store, world.blobs)) == []


def test_a_paused_run_waits_for_nobody_and_a_resumed_one_looks_once_more(world: World) -> None:
    exhausted(world)
    assert state(world).waits
    world.coordinator.operators.pause("secret")
    assert state(world).round is None
    world.coordinator.operators.resume("secret")
    check_in(world)
    world.pass_time(11)
    assert (state(world).round_number, state(world).waits) == (3, True)
    assert list(verify(world.store, world.blobs)) == []


# The owner's way out


def test_a_run_that_is_not_exhausted_is_not_advanced(world: World) -> None:
    with world.refuses("conflict", "run secret is not exhausted"):
        world.coordinator.operators.advance("secret", "olga")
    with world.refuses("unknown-run"):
        world.coordinator.operators.advance("nothing", "olga")
    assert world.store.audit("secret") == []


def test_the_owner_advances_an_exhausted_run_and_its_devices_can_contribute_again(world: World) -> None:
    spent = exhausted(world)
    before = world.checkpoint("secret")
    view = world.coordinator.operators.advance("secret", "olga")
    assert view.phase == "committing"
    world.settle()
    view = world.coordinator.operators.run("secret")
    assert (view.version, view.exhausted, view.phase) == (1, "", "collecting")
    after = world.checkpoint("secret")
    moved = after["marks"] - before["marks"]
    assert sorted(moved.tolist()) == [0.0, 0.0, 0.0, 2.0**-32], "one unit of the exact scale"
    assert after["steps"] == before["steps"]
    row = world.coordinator.operators.checkpoints("secret")[-1]
    assert row.origin == "round 2, moved by one unit for olga: no device contributed"
    assert world.store.contributions("secret", 2) == []
    (audit,) = world.store.audit("secret")
    assert (audit.by, audit.action, audit.at) == ("olga", "advance", world.clock.now())
    assert "round 2 moves version 0" in audit.detail
    assert tuple(sorted(state(world).current.members)) == spent, "they waited, and are drawn"
    assert list(verify(world.store, world.blobs)) == []


def test_repro_spent_devices_end_a_datacenter_round_that_no_worker_takes_and_the_run_can_be_advanced(
    make_world: MakeWorld,
) -> None:
    """Each version is made in the datacenter, and there is no worker: the run stood in *leasing* for ever."""
    world = make_world(4)
    secure_run(world, datacenter={"data": "proxy", "every": 1, "wait_s": 0})

    def wait_for(phase: str) -> None:
        for _ in range(40):
            check_in(world)
            world.pass_time(5)
            if state(world).phase == phase:
                return
        raise AssertionError(f"it is {state(world).phase}")

    wait_for("collecting")
    cohort = to_the_list(world)
    says(world, ev.Signed, *cohort)
    world.pass_time(21)
    assert state(world).phase == "leasing"
    wait_for("selecting")
    returned = [row.body for row in world.store.events("secret", 0) if row.kind == "FleetReturned"]
    assert [body.get("unspendable", 0) for body in returned] == [0, 4]
    assert (
        "4 devices wait that contribute to this model no more" in world.coordinator.operators.round("secret", 3).reason
    )
    wait_for("leasing")
    assert "4 have signed on this checkpoint" in state(world).exhausted
    rounds = state(world).round_number
    for _ in range(10):
        check_in(world)
        world.pass_time(60)
    assert state(world).round_number == rounds, "once shown, it waits for a worker or its owner"
    world.coordinator.operators.advance("secret", "olga")
    world.settle()
    assert world.coordinator.operators.run("secret").version == 1


def test_it_is_advanced_again_and_again_to_models_that_never_were(world: World) -> None:
    digests = [str(world.coordinator.operators.run("secret").checkpoint)]
    for version in (1, 2, 3):
        exhausted(world)
        world.coordinator.operators.advance("secret", "olga")
        world.settle()
        assert world.coordinator.operators.run("secret").version == version
        digests.append(str(world.coordinator.operators.run("secret").checkpoint))
    assert len(set(digests)) == 4
    assert len(world.store.audit("secret")) == 3


@pytest.mark.parametrize("value", [1.0, -3.5, 1e30, 0.0, -0.0])
def test_whatever_the_model_holds_one_value_changes_its_bits(value: float) -> None:
    world = World(4)
    secure_run(world, {"marks": np.full(4, value, np.float32), "steps": np.array(7, np.int64)})
    exhausted(world)
    world.coordinator.operators.advance("secret", "olga")
    world.settle()
    after = world.checkpoint("secret")["marks"]
    changed = after.view(np.uint32) != np.full(4, value, np.float32).view(np.uint32)
    assert int(changed.sum()) == 1
    assert after[changed] > value


def test_wherever_it_crashes_the_model_is_moved_once_and_the_audit_says_so_once() -> None:
    """Once for each moment at which something becomes durable, until no moment is left."""
    for fatal in range(1, 100):
        points = Points(fatal)
        world = World(4, store=cast("Store", FragileStore(MemoryStore(), points)), blobs=FragileBlobs(points))
        secure_run(world)
        exhausted(world)
        points.armed = True
        try:
            world.coordinator.operators.advance("secret", "olga")
            world.settle()
        except Crash:
            points.armed = False
            world.boot()
            world.settle()
            if not world.coordinator.operators.run("secret").version:  # the owner had no answer, and asks again
                world.coordinator.operators.advance("secret", "olga")
                world.settle()
        assert world.coordinator.operators.run("secret").version == 1
        assert [row.by for row in world.store.audit("secret")] == ["olga"]
        assert list(verify(world.store, world.blobs)) == []
        if points.armed:
            assert fatal > 4
            return
    raise AssertionError("there is no end to its crash points")


# What is deleted


def stored(world: World) -> set[str]:
    """Digests of all blobs, and of the run's messages."""
    return {*world.blobs.digests(), *world.store.message_rounds("secret")}


def test_when_a_secure_round_has_ended_nothing_of_it_is_left(world: World) -> None:
    before = stored(world)
    check_in(world)
    to_the_list(world)
    assert len(stored(world) - before) >= 4 * 3 + 1
    world.pass_time(21)
    left = stored(world) - before
    assert left <= {str(row.body["pool"]) for row in world.store.rounds("secret")}
    assert state(world).leftovers == {}
    assert list(verify(world.store, world.blobs)) == []


def test_a_crash_before_the_deletion_deletes_after_the_start(world: World) -> None:
    check_in(world)
    to_the_list(world)
    world.clock.at += 21
    world.coordinator.core.log("secret").submit(lambda tx, state, at: ev.Tick(at=at))
    assert state(world).leftovers
    messages = state(world).leftovers[1]
    assert set(messages) <= stored(world)
    world.boot()
    world.settle()
    assert not set(messages) & stored(world)
    assert state(world).leftovers == {}


def test_sweeping_keeps_what_an_attempt_under_way_needs(world: World) -> None:
    check_in(world)
    to_the_list(world)
    orphan = world.blobs.put(b"a message whose event was never written")
    assert sweep(world.boot().core) == 1
    assert not world.blobs.has(orphan)
    secure = state(world).secure
    assert secure is not None
    assert set(secure.blobs) <= stored(world)


# Held against its invariants


def test_verify_follows_masked_vectors_over_attempts_and_faults(world: World) -> None:
    check_in(world)
    happens(world, ev.Announced, header="00" * 32, expires_at=int(world.clock.now()) + 3000)
    cohort = tuple(sorted(state(world).current.members))
    says(world, ev.Advertised, *cohort)
    group = Group(order=cohort, threshold=3, signers=3, fewest=3)
    happens(world, ev.Rostered, digest="ab" * 32, groups=(group,))
    says(world, ev.Shared, *cohort)
    says(world, ev.Masked, *cohort[:2])
    happens(world, ev.Faulted, device=cohort[0], reason="its vector is too short")
    world.pass_time(21)
    assert list(verify(world.store, world.blobs)) == []
    refusals = {(row.device, row.kind) for row in world.store.refusals("secret", 1)}
    assert refusals == {(cohort[0], "invalid-update"), (cohort[1], "abandoned")}


def test_verify_names_an_audit_that_somebody_removed(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'quorate.sqlite3'}")
    world = World(4, store=store, blobs=FileBlobs(tmp_path / "blobs"))
    secure_run(world)
    exhausted(world)
    world.coordinator.operators.advance("secret", "olga")
    world.settle()
    assert list(verify(store, world.blobs)) == []
    with sqlite3.connect(tmp_path / "quorate.sqlite3") as connection:
        assert connection.execute("DELETE FROM audit WHERE run = 'secret'").rowcount == 1
    connection.close()
    assert [(wrong.invariant, wrong.what) for wrong in verify(store, world.blobs)] == [
        ("audit", "its last row is 6, and 7 were recorded"),
        ("3", "the owner advanced it, and the audit does not say so"),
        ("rows", "audit, action advance: the row is not stored, and the log gives it"),
    ]
    store.close()
