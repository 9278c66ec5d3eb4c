"""The draw of a cohort: from the list of who waits, which is stored, by a seed and the round, so it can be repeated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from client_sdk.protocol.devices import Wait
from coordinator.engine import events as ev
from coordinator.engine.aggregation.parameters import ExtensionError, Parameter, Settings
from coordinator.engine.aggregation.registry import BUILT_IN, Installed, Registry
from coordinator.engine.plan import selection_of
from coordinator.engine.pool_tree import PoolTree
from coordinator.engine.selection import NO_PACE, SELECTIONS, Candidate, Known, uniform
from coordinator.runtime.extensions import MissingExtension
from coordinator.store.rows import RunRow
from coordinator.verify import CannotVerify, verify
from coordinator.verify.draws import DrawnCohort, against_draw
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.runtime.test_extensions import replica
from tests.coordinator.world import World


def test_the_log_has_the_root_of_who_waits_and_the_tree_shows_who_is_drawn(world: World) -> None:
    world.check_in()
    waiting, drawn, shown = sorted((row.device, 10) for row in world.rows), world.drawn(), json.loads(world.pool())
    assert (drawn["waiting"], drawn["examples"], drawn["root"]) == (8, 80, PoolTree(waiting).root)
    row = world.store.run("marks")
    assert row is not None
    again = uniform(waiting, 4, seed=row.selection_seed, round=1)
    assert shown == {"tree": PoolTree(waiting).shown([waiting.index((device, 10)) for device in again])}
    assert sorted(world.index(device) for device in again) == world.cohort()


def test_the_draw_of_every_round_can_be_repeated_from_who_waits_the_seed_and_the_round(make_world: MakeWorld) -> None:
    world = make_world()
    world.create(cohort={"pool": 8})
    row = world.store.run("marks")
    assert row is not None
    cohorts, waiting = [], sorted((row.device, 10) for row in world.rows)
    for number in (1, 2, 3):
        world.check_in()
        assert world.drawn()["root"] == PoolTree(waiting).root
        cohorts.append(world.cohort())
        again = uniform(waiting, 4, seed=row.selection_seed, round=number)
        assert sorted(world.index(device) for device in again) == cohorts[-1]
        world.report(*cohorts[-1][:3], round=number)
    assert any(cohort != cohorts[0] for cohort in cohorts), "one pool, but each round has its own draw"


def test_selection_by_examples_prefers_the_large(make_world: MakeWorld) -> None:
    world = make_world(8)
    world.create(
        cohort={"choose": "by_examples", "select": 2, "goal": 2, "pool": 8}, aggregation={"weighting": "equal"}
    )
    for number, row in enumerate(world.rows):
        world.coordinator.devices.check_in(row, world.message(examples=1000 if number in (3, 6) else 1))()
    world.settle()
    assert world.cohort() == [3, 6]


@pytest.mark.parametrize("choose", ["fixed", "uniform"])
def test_a_plan_may_name_its_devices(make_world: MakeWorld, choose: str) -> None:
    world = make_world(8)
    named = [world.rows[number].device for number in (5, 2, 7)]
    world.create(cohort={"select": 3, "goal": 3, "quorum": 0.6, "choose": choose, "devices": named})
    told = world.coordinator.devices.check_in(world.rows[0], world.message())()
    assert isinstance(told, Wait)
    assert "the plan names the devices that take part, and not this one" in told.reason
    for number in (1, 2):
        world.check_in()
        assert world.cohort() == [2, 5, 7]
        assert world.drawn()["waiting"] == 3
        world.report(2, 5, 7, round=number)
    world.check_in(0, 1, 5, 7)
    assert world.coordinator.core.state("marks").phase == "selecting", "who is named is waited for"
    world.pass_time(61)
    assert world.cohort() == [5, 7]
    assert list(verify(world.store, world.blobs)) == []
    row = world.store.run("marks")
    assert row is not None
    others = {**row.plan, "cohort": {**row.plan["cohort"], "devices": [*named[:2], world.rows[0].device]}}
    with world.store.transaction() as tx:
        tx._set(RunRow, "run", "marks", plan=others)
    found = [wrong.round for wrong in verify(world.store, world.blobs) if wrong.what.endswith("the plan names others")]
    assert found == [1, 2, 3]


# ---------------------------------------------------------------- what is known of devices


def drawn_by(make_world: MakeWorld, choose: str, devices: int = 8, **cohort: Any) -> World:
    world = make_world(devices)
    sizes = {"select": 4, "goal": 4, "quorum": 1.0, "pool": devices, "choose": choose, **cohort}
    world.create(cohort=sizes, aggregation={"weighting": "equal"}, finish={"rounds": 50})
    return world


def listed(world: World) -> dict[int, list[Any]]:
    """Number of a device -> what the last list says of it beside its examples."""
    return {world.index(device): more for device, _, *more in json.loads(world.pool())}


def test_the_list_has_what_the_selection_reads_of_the_rounds_that_are_over(make_world: MakeWorld) -> None:
    """A device that reports no loss keeps its last one; one that is silent has been drawn all the same, also where the
    round is abandoned."""
    world = drawn_by(make_world, "oort", devices=5, goal=3)
    world.check_in()
    assert listed(world) == {number: [None, None, 0, 0] for number in range(5)}
    first = world.cohort()
    for seconds, number in enumerate(first[:3], 1):
        world.clock.at += 2
        world.report(number, metrics={"loss": seconds / 4})
    world.check_in()
    known = {number: [(place + 1) / 4, 2.0 * (place + 1), 1, 1] for place, number in enumerate(first[:3])}
    known[first[3]] = [None, None, 1, 1]
    rest = {number: [None, None, 0, 0] for number in range(5) if number not in first}
    assert listed(world) == known | rest
    second = world.cohort()
    world.clock.at += 1
    world.report(second[0], round=2, metrics={})
    world.pass_time(61)
    assert world.coordinator.operators.round("marks", 2).status == "abandoned"
    world.check_in()
    for number in second:
        before = (known | rest)[number]
        heard = [before[0], 1.0] if number == second[0] else before[:2]
        assert listed(world)[number] == [*heard, before[2] + 1, 2]
    assert list(verify(world.store, world.blobs)) == []


def test_an_update_that_was_lost_shows_nothing_of_its_device(make_world: MakeWorld) -> None:
    world = drawn_by(make_world, "power-of-choice", pool=8)
    world.check_in()
    first = world.cohort()
    world.report(first[0], metrics={"loss": 4.0})
    digest = world.coordinator.core.state("marks").current.members[world.rows[first[0]].device].digest
    assert digest is not None
    lost = ev.UpdateLost(at=world.clock.at, round=1, attempt=0, device=world.rows[first[0]].device, digest=digest)
    world.coordinator.core.log("marks").submit(lambda tx, state, now: lost)
    world.report(*first[1:], metrics={"loss": 1.0})
    world.pass_time(61)
    world.check_in()
    assert {number: loss for number, (loss,) in listed(world).items() if loss is not None} == dict.fromkeys(
        first[1:], 1.0
    )
    assert list(verify(world.store, world.blobs)) == []


def test_oorts_pacer_is_folded_from_the_log_and_verify_repeats_its_draws(make_world: MakeWorld) -> None:
    """Losses fall from round to round, so the pacer moves after each window of two rounds but the first one."""
    numbers = {"pace": 0.25, "window": 2, "decay": 0.5, "least": 0, "preferred": 0, "alpha": 9}
    moved = []
    for boots in (False, True):
        world = drawn_by(make_world, "oort", devices=9, choose_parameters=numbers)
        moved.append([])
        for number in range(1, 9):
            world.check_in()
            if boots:
                world.boot()
            for device in world.cohort():
                world.clock.at += 1 + device
                world.report(device, round=number, metrics={"loss": 4.0 / number})
            moved[-1].append(world.coordinator.core.state("marks").pace.moved)
        assert list(verify(world.store, world.blobs)) == []
    assert moved == [[0, 0, 0, 1, 1, 2, 2, 3]] * 2
    log = world.coordinator.core.log("marks")
    log._cache = (replace(log.state, pace=NO_PACE), log.seq)
    world.check_in()
    assert [found.round for found in verify(world.store, world.blobs) if found.invariant == "draw"] == [9]


def test_plans_that_read_nothing_keep_nothing(make_world: MakeWorld) -> None:
    world = drawn_by(make_world, "fixed")
    world.play_round(1)
    world.check_in()
    assert world.coordinator.core.state("marks").known == {}
    assert listed(world) == {number: [] for number in range(8)}


@pytest.mark.parametrize("choose", [name for name in SELECTIONS if name != "poisson"])
def test_a_coordinator_that_is_started_again_draws_the_same_cohorts(make_world: MakeWorld, choose: str) -> None:
    """At each start it reads what is known of devices from the snapshot, and folds the rest of the log."""
    cohorts: list[list[list[int]]] = []
    for boots in (False, True):
        world = drawn_by(make_world, choose, devices=9, goal=3)
        cohorts.append([])
        for number in range(1, 6):
            world.check_in()
            if boots:
                world.boot()
            cohort = world.cohort()
            cohorts[-1].append(cohort)
            for place, device in enumerate(cohort[:3]):
                world.clock.at += 1 + (device + place) % 3
                world.report(device, round=number, metrics={"loss": (device * 5 + number) % 7 / 4})
                if boots:
                    world.boot()
        assert list(verify(world.store, world.blobs)) == []
    assert cohorts[0] == cohorts[1]


def test_too_small_a_cohort_ends_its_round_and_the_next_one_draws_anew(make_world: MakeWorld) -> None:
    world = drawn_by(make_world, "poisson", devices=12)
    for _ in range(4):
        world.check_in()
        cohort = world.cohort()
        assert len(cohort) >= 4, "rounds that drew too few are over at once"
        world.report(*cohort[:4], round=world.coordinator.core.state("marks").round_number)
    draws = [row.body for row in world.store.events("marks", 0) if row.kind == "Drawn"]
    sizes: dict[Any, int] = {draw["round"]: len(draw["cohort"]) for draw in draws}  # type: ignore[arg-type]
    assert len(sizes) == len(draws) > 4, "the seed of this test draws too few at least once"
    for number, size in sizes.items():
        found = world.coordinator.operators.round("marks", number)
        assert found.status == ("committed" if size >= 4 else "abandoned")
        if size < 4:
            assert found.reason == f"poisson drew {size} of 12 waiting devices; a round needs at least 4"
    assert list(verify(world.store, world.blobs)) == []


# ---------------------------------------------------------------- of a package


class Last:
    """The last devices by id."""

    reads = ("selected",)
    varies = False
    parameters: ClassVar[dict[str, Parameter]] = {}
    broken = False

    def select(self, pool: Sequence[Candidate], k: int, *, seed: int, round: int, settings: Settings) -> list[str]:
        if self.broken:
            raise ZeroDivisionError("division by zero")
        return [one.device for one in sorted(pool, key=lambda one: (one.selected, one.device))[-k:]]


def test_a_packages_selection_draws_and_is_repeated_where_it_is_installed(make_world: MakeWorld) -> None:
    last = Last()
    here = Registry(selections={"clinic:last": Installed("1", last)})
    world = make_world()
    world.coordinator = replica(world, None, lambda plan: here)
    world.create(cohort={"choose": "clinic:last", "choose_version": "1", "pool": 8})
    world.check_in()
    names = sorted(row.device for row in world.rows)
    assert sorted(world.rows[number].device for number in world.cohort()) == names[-4:]
    assert list(verify(world.store, world.blobs, lambda plan: here)) == []
    sentence = "the selection clinic:last 1 is not installed here: install its package"
    with pytest.raises(MissingExtension, match=f"this coordinator cannot continue run marks: .*{sentence}"):
        replica(world, None).recover()
    with pytest.raises(CannotVerify, match=sentence):
        list(verify(world.store, world.blobs, lambda plan: BUILT_IN))
    last.broken = True
    (found,) = list(verify(world.store, world.blobs, lambda plan: here))
    assert "the draw cannot be repeated: the selection clinic:last failed: ZeroDivisionError" in found.what


def test_a_selection_that_fails_draws_nothing_until_it_is_mended(make_world: MakeWorld) -> None:
    last = Last()
    last.broken = True
    world = make_world()
    world.coordinator = replica(world, None, lambda plan: Registry(selections={"clinic:last": Installed("1", last)}))
    world.create(cohort={"choose": "clinic:last", "choose_version": "1", "pool": 8})
    with pytest.raises(ExtensionError, match="the selection clinic:last failed: ZeroDivisionError: division by zero"):
        world.check_in()
    assert world.coordinator.core.state("marks").phase == "selecting"
    last.broken = False
    world.check_in()
    assert len(world.cohort()) == 4


# ---------------------------------------------------------------- what verify holds against the log


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda row: [*row[:2], 0.5], r"says of \S+ \[0.5\], and the log gives \[(None|1.0)\]"),
        (lambda row: row[:2], r"says of \S+ \[\], and the log gives"),
        (lambda row: row[:1], "the list of who waited cannot be read"),
    ],
)
def test_a_list_that_says_something_else_of_a_device_than_the_log_is_named(
    make_world: MakeWorld, change: Callable[[list[Any]], list[Any]], sentence: str
) -> None:
    """Its digest may be in the log: a coordinator that lies writes what it likes."""
    world = drawn_by(make_world, "power-of-choice")
    world.check_in()
    world.report(*world.cohort(), metrics={"loss": 1.0})
    world.check_in()
    rows = json.loads(world.pool())
    state = world.coordinator.core.state("marks")
    with world.blobs.spool() as spool:
        spool.write(json.dumps([change(rows[0]), *rows[1:]]).encode())
        digest = spool.commit()
    known = {device: Known(loss=1.0) for device in state.known}
    cohort = tuple((device, 10) for device in sorted(state.current.members))
    honest = DrawnCohort(2, state.current.pool, 8, cohort)
    seed, choice = world.coordinator.core.log("marks").row.selection_seed, selection_of(state.plan)
    assert list(against_draw(world.blobs, 4, choice, seed, honest, known)) == []
    (found,) = against_draw(world.blobs, 4, choice, seed, replace(honest, pool=digest), known)
    assert re.search(sentence, found), found
