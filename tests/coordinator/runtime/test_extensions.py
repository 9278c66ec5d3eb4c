"""Runs whose plans name what a package brings: who goes on with them, and who refuses in a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.problems import ProblemError
from coordinator.engine.aggregation import registry
from coordinator.engine.aggregation.optimizers import Average
from coordinator.engine.aggregation.registry import BUILT_IN, Installed, Registry
from coordinator.engine.aggregation.rules import TrimmedMean
from coordinator.engine.plan import Plan, chosen
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.runtime.extensions import FindExtensions, MissingExtension
from coordinator.verify import CannotVerify, verify
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.engine.test_combining import Nearest
from tests.coordinator.world import World

FOREIGN: dict[str, Any] = {
    "rule": "clinic:trim",
    "rule_version": "1.2",
    "rule_parameters": {"fraction": 0.3},
    "weighting": "equal",
}


def having(version: str | None) -> FindExtensions:
    """A machine on which the package is installed in this version, or not at all."""
    rules = {} if version is None else {"clinic:trim": Installed(version, TrimmedMean())}
    return lambda plan: Registry(rules=rules)


def replica(world: World, version: str | None, extensions: FindExtensions | None = None) -> Coordinator:
    return Coordinator(
        Core(
            world.store,
            world.blobs,
            clock=world.clock,
            settings=world.settings,
            entropy=world.entropy,
            extensions=extensions or having(version),
        )
    )


@pytest.fixture
def foreign(make_world: MakeWorld) -> World:
    """A run by a package's rule, one round in, on the machine that has it."""
    world = make_world()
    world.coordinator = replica(world, "1.2")
    world.create(aggregation=FOREIGN, cohort={"select": 4, "goal": 4, "quorum": 1.0}, retention={"rounds": 5})
    world.play_round(1)
    return world


def test_a_packages_rule_makes_the_model_and_is_folded_again(foreign: World) -> None:
    assert foreign.coordinator.operators.run("marks").version == 1
    assert not foreign.checkpoint()["marks"].any(), "each mark stands alone, and is trimmed as an extreme"
    assert list(verify(foreign.store, foreign.blobs, having("1.2"))) == []


def test_a_model_that_is_too_large_for_what_the_rule_holds_is_refused_before_round_1(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Nearest()
    monkeypatch.setattr(rule, "holds", 3, raising=False)
    world, rules = make_world(8), Registry(rules={"clinic:nearest": Installed("1", rule)})
    world.coordinator = replica(world, "1", lambda plan: rules)
    sections: dict[str, Any] = {
        "aggregation": {"rule": "clinic:nearest", "rule_version": "1", "weighting": "equal"},
        "cohort": {"select": 4, "goal": 4, "quorum": 1.0},
    }
    taken = 4 * 8 * 3 + 32 * 4 * 4
    monkeypatch.setattr(registry, "MEMORY", taken - 1)
    with world.refuses("invalid-plan", f"it would take {taken} bytes of memory, more than {taken - 1}: for 3 whole"):
        world.create(**sections)
    monkeypatch.setattr(registry, "MEMORY", taken)
    world.create(**sections)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_a_rule_over_whole_updates_commits_one_model_in_any_order_and_after_a_crash(
    make_world: MakeWorld, order: tuple[int, ...]
) -> None:
    """Three devices send much the same and one sends it times -1000: of the three the one that is nearest to all is the
    model's step."""
    world, registry = make_world(4), Registry(rules={"clinic:nearest": Installed("1", Nearest())})
    world.coordinator = replica(world, "1", lambda plan: registry)
    rule = {"rule": "clinic:nearest", "rule_version": "1", "weighting": "equal"}
    world.create(aggregation=rule, cohort={"select": 4, "goal": 4, "quorum": 1.0}, retention={"rounds": 5})
    world.check_in()
    sent = {place: np.float32([1 + place / 8, 2, 3, 4]) * np.float32(-1000 if place == 3 else 1) for place in range(4)}
    for number in order:
        if number == order[-1]:
            world.settle = lambda: None  # type: ignore[method-assign]  # killed before the commit
        place = sorted(range(4), key=lambda one: world.rows[one].device).index(number)
        world.send(number, world.body(number, delta={"marks": sent[place]}))
    del world.settle
    assert world.coordinator.core.state("marks").phase == "committing"
    world.coordinator = replica(world, "1", lambda plan: registry)
    world.coordinator.recover()
    world.settle()
    assert world.checkpoint()["marks"].tolist() == [1, 2, 3, 4]
    assert list(verify(world.store, world.blobs, lambda plan: registry)) == []


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (None, "the aggregation rule clinic:trim 1.2 is not installed here: install its package"),
        ("1.3", "the aggregation rule clinic:trim is installed in version 1.3, not 1.2"),
    ],
)
def test_a_machine_without_that_version_refuses_in_a_sentence(
    foreign: World, version: str | None, sentence: str
) -> None:
    with pytest.raises(MissingExtension, match=f"this coordinator cannot continue run marks: .*{sentence}"):
        replica(foreign, version).recover()
    with pytest.raises(CannotVerify, match=f"the updates of run marks cannot be folded again here: .*{sentence}"):
        list(verify(foreign.store, foreign.blobs, having(version)))
    assert list(verify(foreign.store, None, having(version))) == [], "nothing is folded without blobs"
    foreign.coordinator = replica(foreign, version)
    with foreign.refuses("invalid-plan", f"aggregation.rule: {sentence}"):
        foreign.create(aggregation=FOREIGN)


def test_a_run_that_is_over_needs_nothing_any_more(foreign: World) -> None:
    foreign.coordinator.operators.stop("marks")
    foreign.settle()
    bare = replica(foreign, None)
    bare.recover()
    assert bare.operators.run("marks").status == "stopped"


def test_a_replica_that_learns_of_such_a_run_later_leaves_it_to_the_others(make_world: MakeWorld) -> None:
    """Another replica, with the package, created it. This one lets time pass and serves other runs."""
    world = make_world()
    bare = world.coordinator = replica(world, None)
    bare.recover()
    world.coordinator = replica(world, "1.2")
    world.create(aggregation=FOREIGN)
    world.check_in()
    device = world.rows[world.cohort()[0]].device
    world.clock.at += 31
    assert bare.tick() is not None
    assert bare.operators.run("marks").phase == "collecting"
    with pytest.raises(ProblemError, match="this coordinator cannot continue run marks") as refused:
        bare.devices.update_limit(device, "marks", 1, 0)
    assert refused.value.problem.advice == "retry", "the device tries again, and finds the other one"


def test_a_codec_that_is_not_installed_is_refused_too(make_world: MakeWorld) -> None:
    world = make_world()
    with world.refuses("invalid-plan", "task.codec: the codec 'clinic:sketch@1' is not installed here"):
        world.create(task={"codec": "clinic:sketch@1"})


def test_a_tensor_that_the_codec_has_no_room_for_is_refused_at_the_start(make_world: MakeWorld) -> None:
    world = make_world()
    model = {"stochastic8.scales": np.zeros(3, np.float32)}
    with world.refuses("invalid-plan", "task.codec: a tensor named stochastic8.scales cannot travel as stochastic8@1"):
        world.create(model, task={"codec": "stochastic8@1"})
    world.create(model)


def test_nothing_is_looked_for_where_a_plan_names_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinator.runtime import extensions

    monkeypatch.setattr(extensions, "extensions", lambda group: pytest.fail("it was looked for"))
    assert extensions.installed(Plan.parse({"name": "p", "task": {"learner": "a:b"}})) is BUILT_IN


class Broken(TrimmedMean):
    """A package's rule with a bug: ``gives`` makes the block, or raises."""

    def __init__(self, gives: Callable[[np.ndarray], Any]) -> None:
        self._gives = gives

    def combine(self, columns: np.ndarray, weights: np.ndarray, settings: Any) -> Any:
        return self._gives(columns)


class Slip(Average):
    """A package's server optimizer that returns one value for the whole block."""

    def apply(self, model: np.ndarray, mean: np.ndarray, state: Any, learning_rate: float, settings: Any) -> Any:
        return model.sum(keepdims=True)


@pytest.mark.parametrize(
    ("gives", "sentence"),
    [
        (lambda columns: 1 / 0, "aggregation rule of the plan failed: ZeroDivisionError: division by zero"),
        (lambda columns: None, r"aggregation rule of the plan gives NoneType for a block of float32 \[\d+\]"),
        (lambda columns: columns[0, :1], r"aggregation rule of the plan gives float32 \[1\] for a block of float32"),
        (lambda columns: columns.sum(axis=0, dtype=np.float64), r"aggregation rule of the plan gives float64 \[\d+\]"),
        (
            lambda columns: (
                columns[columns.sum(axis=1).argmax() if columns.max() == 2 else 0].copy() * (columns.max() == 2)
            ),
            "aggregation rule of the plan gives other values where a block of columns has another width",
        ),
        (None, r"server optimizer of the plan gives float32 \[1\] for a block of float32 \[\d+\]"),
    ],
    ids=["raises", "nothing", "too short", "float64", "a chimera", "optimizer"],
)
def test_a_bug_in_a_package_ends_the_round_with_a_reason_and_not_in_a_file(
    make_world: MakeWorld, gives: Callable[[np.ndarray], Any] | None, sentence: str
) -> None:
    """Its arithmetic is the same at each try, so the round is abandoned, and the model stays."""
    world = make_world()
    registry = Registry(
        rules={} if gives is None else {"clinic:trim": Installed("1.2", Broken(gives))},
        server_optimizers={"clinic:slip": Installed("1", Slip())},
    )
    world.coordinator = replica(world, "1.2", lambda plan: registry)
    slip = {"server_optimizer": "clinic:slip", "server_optimizer_version": "1"}
    world.create(aggregation=slip if gives is None else FOREIGN, cohort={"select": 4, "goal": 4, "quorum": 1.0})
    first = world.coordinator.core.state("marks").checkpoint
    world.play_round(1)
    found = world.coordinator.operators.round("marks", 1)
    assert found.status == "abandoned"
    assert re.search(sentence, found.reason), found.reason
    state = world.coordinator.core.state("marks")
    assert (state.version, state.checkpoint) == (0, first)


def test_a_lack_of_memory_in_a_package_is_no_verdict_on_the_round() -> None:
    def full(columns: np.ndarray) -> Any:
        raise MemoryError

    registry = Registry(rules={"clinic:trim": Installed("1.2", Broken(full))})
    picked = chosen(Plan.parse({"name": "p", "task": {"learner": "a:b"}, "aggregation": FOREIGN}), registry)
    with pytest.raises(MemoryError):
        picked.by_columns(np.ones((3, 2), np.float32), np.ones(3, np.int64))
