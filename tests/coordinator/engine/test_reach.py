"""How far a server optimizer moves a model in one step: each that is built in states a bound, which devices hold models
of secure rounds to. No deltas of the stated norm get beyond it, and the worst ones come near it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from coordinator.engine.aggregation.optimizers import NO_BOUND, Bounded, Layer, is_layerwise
from coordinator.engine.aggregation.parameters import Settings, settings
from coordinator.engine.aggregation.registry import SERVER_OPTIMIZERS
from coordinator.engine.aggregation.strategies import STRATEGIES
from coordinator.engine.plan import Plan

VALUES, RATE = 64, 0.5
OTHERS: dict[str, list[dict[str, float]]] = {
    "fedavgm": [{"nesterov": 1}, {"momentum": 0.5}],
    "fedadagrad": [{"beta1": 0.9}, {"tau": 1.0}],
    "fedadam": [{"beta1": 0.0}, {"tau": 1.0}, {"beta1": 0.99, "beta2": 0.9}],
    "fedyogi": [{"beta1": 0.0}, {"tau": 1.0}, {"beta1": 0.5, "beta2": 0.9}],
}
"""Parameters beside the defaults."""
CASES = [(name, given) for name in SERVER_OPTIMIZERS for given in ({}, *OTHERS.get(name, []))]


def steps(name: str, numbers: Settings, deltas: Iterable[Any], scale: float = 0.0) -> list[np.ndarray[Any, Any]]:
    """What each of these mean deltas, one after the other, moves a model of values ``scale`` by."""
    made: Any = SERVER_OPTIMIZERS[name]
    state = [np.full(VALUES, value, np.float32) for value in made.first(numbers)]
    model, found = np.full(VALUES, scale, np.float32), []
    for step, delta in enumerate(deltas, 1):
        mean = np.asarray(delta, np.float32) * np.ones(VALUES, np.float32)
        layer = (Layer("w", (8, 8), step),) if is_layerwise(made) else ()
        moved = made.apply(*layer, model.copy(), mean.copy(), state, RATE, numbers)
        found.append(moved.astype(np.float64) - model)
    return found


def furthest(found: list[np.ndarray[Any, Any]]) -> tuple[float, float]:
    return max(float(np.linalg.norm(one)) for one in found), max(float(np.abs(one).max()) for one in found)


def numbers_of(name: str, given: dict[str, float]) -> Settings:
    return settings(name, "server_optimizer_parameters", SERVER_OPTIMIZERS[name].parameters, given)


def bound(name: str, numbers: Settings, norm: float) -> Any:
    made: Bounded = SERVER_OPTIMIZERS[name]
    return made.reach(norm, RATE, numbers)


@pytest.mark.parametrize(("name", "given"), CASES)
@pytest.mark.parametrize("norm", [1e-3, 1.0, 50.0])
def test_no_deltas_of_this_norm_move_a_model_further(name: str, given: dict[str, float], norm: float) -> None:
    numbers, rng = numbers_of(name, given), np.random.default_rng(7)
    found = bound(name, numbers, norm)
    for kind in range(12):
        deltas = []
        for at in range(60):
            one = rng.standard_normal(VALUES) if kind % 3 else np.eye(1, VALUES, at % (1 + kind)).ravel()
            size = norm * float(rng.choice([1.0, 10.0 ** -rng.uniform(0, 6), 0.0], p=[0.5, 0.4, 0.1]))
            deltas.append(one * size / np.linalg.norm(one) if kind % 2 else np.full(VALUES, size / math.sqrt(VALUES)))
        norms, each = furthest(steps(name, numbers, deltas))
        assert norms <= found.of(VALUES) * (1 + 1e-5)
        assert each <= found.each * (1 + 1e-5)


def worst(numbers: Settings, norm: float) -> list[list[float]]:
    """Deltas that bring optimizers near their bounds: the same ones for ever; growing or shrinking ones, by which the
    square's mean lags behind; the same small ones after the square's mean is all but forgotten."""
    most = norm / math.sqrt(VALUES)
    grown = [[most * ratio ** (at - 399) for at in range(400)] for ratio in (1.01, 1.1, 1.3, 2, 4, 8)]
    late = [[0.0] * 3000 + [most] * 12, [0.0] * 3000 + [most * 8 ** (at - 11) for at in range(12)]]
    bounded = [[most * max(0.05, ratio) for ratio in np.geomspace(1e-9, 1, 400)], [1e-12] * 400 + [most] * 8]
    return [*grown, *late, *bounded, [most] * 400]


@pytest.mark.parametrize(("name", "given"), CASES)
def test_the_bound_is_at_most_twice_what_the_worst_deltas_do(name: str, given: dict[str, float]) -> None:
    numbers = numbers_of(name, given)
    if numbers.get("beta1", 0.0) ** 2 >= numbers.get("beta2", 1.0):
        pytest.skip("m outlives v: what is left of it when v is below tau^2 hangs on the norm, and the bound does not")
    for norm in (1e-6, 1e3):
        found = bound(name, numbers, norm)
        if found == NO_BOUND:
            small, large = (furthest(steps(name, numbers, [1.0], scale))[0] for scale in (1.0, 1000.0))
            stated_none = name == "radam"  # it has one without decay and layers, which is not stated
            assert large > 100 * small or stated_none
            continue
        did = max(furthest(steps(name, numbers, deltas))[0] for deltas in worst(numbers, norm))
        assert found.of(VALUES) <= 2.001 * did, (norm, found.of(VALUES), did)


def test_each_strategy_says_whether_it_moves_the_model_as_the_optimizer_does() -> None:
    usual = SERVER_OPTIMIZERS["average"].reach(1.0, 1.0, {})
    alike = {name for name, made in STRATEGIES.items() if made.reach(usual) == usual}
    assert alike == {"scaffold", "ditto", "fedper", "fedbn", "fedrep", "error-feedback"}
    assert all(STRATEGIES[name].reach(usual) == NO_BOUND for name in STRATEGIES.keys() - alike)


@pytest.mark.parametrize(
    ("more", "norm", "each"),
    [
        ({}, 2.0, 2.0),
        ({"aggregation": {"server_learning_rate": 3.0}}, 6.0, 6.0),
        ({"aggregation": {"server_optimizer": "fedavgm"}}, 20.0, 20.0),
        ({"aggregation": {"server_optimizer": "fedadam", "server_learning_rate": 0.01}}, 20.0, 0.0234521),
        ({"aggregation": {"server_optimizer": "lamb", "server_learning_rate": 0.01}}, math.inf, math.inf),
        ({"aggregation": {"server_optimizer": "mine:own", "server_optimizer_version": "1"}}, math.inf, math.inf),
        ({"schedule": {"server_learning_rate": {"shape": "linear", "last": 0.1}}}, 2.0, 2.0),
        ({"schedule": {"server_learning_rate": {"shape": "linear", "last": 4.0}}}, 7.4, 7.4),
        ({"aggregation": {"step_bits": 3}}, 2 * math.sqrt(1 + 0.03 * 64), 2 * math.sqrt(1 + 0.03 * 64)),
        ({"task": {"mu": 0.1}, "strategy": {"name": "feddyn", "parameters": {"population": 99}}}, math.inf, math.inf),
    ],
)
def test_the_terms_of_a_plan_say_how_far_a_round_moves_the_model(more: Any, norm: float, each: float) -> None:
    base: dict[str, Any] = {
        "name": "far",
        "task": {"learner": "a:b"},
        "cohort": {"select": 100, "goal": 80},
        "aggregation": {"partial": "refuse", "weighting": "equal"},
        "secure": {"max_norm": 2.0, "max_abs": 1.0},
        "finish": {"rounds": 10},
    }
    for name, section in more.items():
        base[name] = {**base.get(name, {}), **section}
    terms = Plan.parse(base).terms
    assert terms is not None
    assert (terms.move, terms.move_each) == (pytest.approx(norm, rel=1e-5), pytest.approx(each, rel=1e-5))
