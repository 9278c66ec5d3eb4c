"""A rule or an optimizer of a package that looks beyond its column is refused, before and in a round; others pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from coordinator.engine.aggregation.combining import Updates, flat
from coordinator.engine.aggregation.optimizers import Average
from coordinator.engine.aggregation.parameters import ExtensionError
from coordinator.engine.aggregation.registry import BUILT_IN, RULES, Chosen, Installed, Registry
from coordinator.engine.plan import Plan, chosen
from coordinator.engine.plan_file import PlanError

Vector = np.ndarray[Any, np.dtype[np.float32]]
BLOCK = 64


class Foreign:
    needs = "all"
    takes_weights = False
    parameters: ClassVar[dict[str, Any]] = {}

    def __init__(self, combine: Callable[[Vector], Vector]) -> None:
        self._combine = combine

    def combine(self, columns: Vector, weights: object, settings: object) -> Vector:
        return self._combine(columns)


def krum(columns: Vector) -> Vector:
    """The update whose squared distance to all others is least (Blanchard et al. 2017, arXiv:1703.02757)."""
    distances = ((columns[:, None, :] - columns[None, :, :]) ** 2).sum(axis=(1, 2))
    found: Vector = columns[int(distances.argmin())].copy()
    return found


def clipped(columns: Vector) -> Vector:
    norms = np.maximum(1.0, np.linalg.norm(columns, axis=1, keepdims=True))
    return np.median(columns / norms, axis=0).astype(np.float32)


def middle(columns: Vector) -> Vector:
    assert columns.flags.c_contiguous
    columns.sort(axis=0)  # its own copy or not: the check must not be misled
    found: Vector = (columns[0] + columns[-1]) / np.float32(2)
    return found


def combined(rule: Any, updates: Vector) -> Vector:
    """As the coordinator does it, in blocks."""
    found = Chosen(rule=rule, rule_settings={}, optimizer=Average(), optimizer_settings={})
    sources = Updates.of(updates, BLOCK)
    made = found.combine(
        flat(np.zeros(updates.shape[1], np.float32)), sources, {}, {}, {"server_learning_rate": 1.0}, b""
    )
    return made.model.read(0, updates.shape[1])


def chimera() -> Vector:
    """In each block all columns are alike, and Krum takes the first device in one and the fourth in the other: no width
    within a block shows that."""
    first, second = np.array([0, 0.1, -0.1, 5, -7]), np.array([5, 7, -7, 0, 0.1])
    return np.repeat([first, second], BLOCK, axis=0).T.astype(np.float32)


def drawn() -> Vector:
    return np.random.default_rng(0).normal(size=(5, 3 * BLOCK + 1)).astype(np.float32)


@pytest.mark.parametrize("rule", [krum, clipped])
@pytest.mark.parametrize("updates", [chimera, drawn])
def test_a_rule_over_whole_updates_is_refused_in_the_round(rule: Any, updates: Callable[[], Vector]) -> None:
    with pytest.raises(ExtensionError, match="gives other values where a block of columns has another width"):
        combined(Foreign(rule), updates())


def test_a_rule_by_columns_passes_and_its_values_stay() -> None:
    updates = drawn()
    assert combined(Foreign(middle), updates).tolist() == middle(updates.copy()).tolist()


def new_run(rule: Any) -> None:
    section = {"rule": "clinic:rule", "rule_version": "1", "weighting": "equal"}
    plan = Plan.parse(
        {
            "name": "p",
            "task": {"learner": "a:b"},
            "cohort": {"select": 5, "goal": 5},
            "aggregation": section,
            "finish": {"rounds": 1},
        }
    )
    chosen(plan, Registry(rules={"clinic:rule": Installed("1", rule)}), plan.cohort.goal)


@pytest.mark.parametrize("rule", [krum, clipped])
def test_it_is_refused_before_round_1(rule: Any) -> None:
    with pytest.raises(PlanError, match=r"aggregation\.rule: .*it looks at whole updates, as Krum does"):
        new_run(Foreign(rule))


def test_a_rule_that_fails_on_drawn_columns_is_not_judged_before_it_has_updates() -> None:
    def needs_many(columns: Vector) -> Vector:
        if len(columns) < 100:
            raise ValueError("too few")
        return krum(columns)

    new_run(Foreign(needs_many))
    new_run(Foreign(middle))


def test_every_built_in_rule_would_pass() -> None:
    for name, rule in RULES.items():
        if rule.needs == "all":
            given = {"fraction": 0.2} if name == "trimmed-mean" else {}
            copy = Foreign(lambda columns, rule=rule, given=given: rule.combine(columns, np.ones(5, np.int64), given))
            assert combined(copy, drawn()).shape == (3 * BLOCK + 1,)
    assert not BUILT_IN.rules


class Lars:
    """The step is scaled by norms of the block: a trust ratio."""

    slots = ("last",)
    parameters: ClassVar[dict[str, Any]] = {}

    def first(self, settings: object) -> tuple[float, ...]:
        return (0.0,)

    def apply(self, model: Vector, mean: Vector, state: list[Vector], rate: float, settings: object) -> Vector:
        state[0][:] = mean
        ratio = np.float32(np.linalg.norm(model) / np.linalg.norm(mean))
        return model + np.float32(rate) * ratio * mean


class Remembering(Lars):
    """The model is by values, and what it keeps is not."""

    def apply(self, model: Vector, mean: Vector, state: list[Vector], rate: float, settings: object) -> Vector:
        state[0][:] = mean.sum()
        return model + np.float32(rate) * mean


class Honest(Lars):
    def apply(self, model: Vector, mean: Vector, state: list[Vector], rate: float, settings: object) -> Vector:
        state[0][:] = np.float32(0.5) * state[0] + mean
        return model + np.float32(rate) * state[0]


@pytest.mark.parametrize(("optimizer", "fits"), [(Lars(), False), (Remembering(), False), (Honest(), True)])
@pytest.mark.parametrize("size", [3, 100])
def test_an_optimizer_of_a_package_that_looks_at_its_block_is_refused(optimizer: Any, fits: bool, size: int) -> None:
    found = Chosen(rule=RULES["mean"], rule_settings={}, optimizer=optimizer, optimizer_settings={})
    model, mean = np.arange(1, size + 1, dtype=np.float32), np.linspace(-1, 2, size, dtype=np.float32)
    kept = [np.zeros(size, np.float32)]
    if not fits:
        with pytest.raises(ExtensionError, match="looks at the whole block, as a norm does"):
            found.apply(model, mean, kept, 0.1)
        return
    assert found.apply(model, mean, kept, 0.5).tobytes() == (model + np.float32(0.5) * mean).tobytes()
    assert kept[0].tobytes() == mean.tobytes(), "the check leaves no trace in the state"
