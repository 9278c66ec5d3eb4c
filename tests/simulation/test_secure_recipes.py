"""Recipes, rules and server optimizers with secure rounds: the same bits masked and quantized, or a refusal that says
why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.engine.aggregation.registry import RULES, SERVER_OPTIMIZERS
from coordinator.engine.plan_file import PlanError
from simulation import History, recipes, simulate
from simulation.simulator.checks import SecureWay
from tests.rotating import in_parts

SECURE = {"max_norm": 10.0, "max_abs": 2.0, "minimum_cohort": 5}
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "fedadam": {"tau": 0.01},
    "fedyogi": {"tau": 0.01},
    "radam": {"layerwise": 1, "lookahead": 2},
}
OF_RULES: Mapping[str, Mapping[str, Any]] = {
    "trimmed-mean": {"fraction": 0.25},
    "krum": {"wrong": 1},
    "centered-clipping": {"radius": 1.0},
}
D = 12


class Pull:
    """Towards the mean of its data, by the task's steps and its proximal term."""

    def initial(self, seed: int) -> Tensors:
        return {"w": np.zeros(D, np.float32)}

    def train(self, model: Tensors, data: Any, task: Task, **options: Any) -> Update:
        x, _ = data if isinstance(data, tuple) else (data.x, data.y)
        pull = (np.mean(x, axis=0) - model["w"]) * task.learning_rate / (1 + task.mu)
        return Update({"w": pull.astype(np.float32)}, len(x), work=Work(steps=1, steps_planned=1))


def clients() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {f"c{k}": (rng.normal(0.3, 0.5, (4 + k, D)).astype(np.float32), np.zeros(4 + k)) for k in range(8)}


def digests(history: History) -> list[str]:
    return [view.digest for _, view in sorted(history.checkpoints.items())]


def alike(run: Callable[[SecureWay], History]) -> None:
    masked, quantized = run("masked"), run("quantized")
    assert digests(masked) == digests(quantized)
    assert len(set(digests(masked))) == 3, "both rounds changed the model"
    assert {row.kind for row in masked.rounds} == {"secure"}


RECIPES: dict[str, Callable[..., History]] = {
    "fedavg": recipes.fedavg,
    "fedsgd": recipes.fedsgd,
    "fedprox": lambda *given, **more: recipes.fedprox_with_stragglers(
        *given, stragglers=0.3, epochs=2, partial="refuse", **more
    ),
} | {
    name: lambda *given, _name=name, **more: recipes.fedavg(
        *given,
        server_optimizer=_name,
        server_learning_rate=0.1,
        server_optimizer_parameters=PARAMETERS.get(_name),
        **more,
    )
    for name in SERVER_OPTIMIZERS
}


@pytest.mark.slow
@pytest.mark.parametrize("name", in_parts(RECIPES, of=2))
def test_a_recipe_gives_the_same_bits_masked_and_quantized(name: str) -> None:
    alike(
        lambda way: RECIPES[name](
            Pull(), clients(), rounds=2, per_round=8, secure_rounds=SECURE, secure=way, progress=False
        )
    )


def test_all_server_optimizers_and_rules_are_in_these_tests() -> None:
    assert set(SERVER_OPTIMIZERS) <= set(RECIPES)
    assert {rule for rule in RULES if RULES[rule].needs == "sum"} == {"mean"}


@pytest.mark.parametrize(
    ("section", "why"),
    [
        *(
            (
                {"aggregation": {"rule": rule, "weighting": "equal", "rule_parameters": OF_RULES.get(rule, {})}},
                f"aggregation.rule \\({rule}\\) needs single updates",
            )
            for rule in RULES
            if RULES[rule].needs != "sum"
        ),
        ({"aggregation": {"clip_norm": 1.0}}, "clip_norm is the coordinator's clip, and it sees no update"),
        ({"aggregation": {"partial": "examples_seen"}}, "needs the work of each, which nobody sees"),
        ({"task": {"score_held_out": True}}, "would reveal each device's scores"),
        ({"task": {"codec": "stochastic8@1"}}, "cannot be added under masks"),
        ({"retention": {"rounds": 2}}, "keeps raw updates, and a secure round has none"),
    ],
)
@pytest.mark.parametrize("way", ["masked", "quantized"])
def test_what_needs_the_values_of_one_device_is_refused(section: dict[str, Any], why: str, way: SecureWay) -> None:
    asked = {"cohort": {"select": 8, "goal": 8}, "secure": SECURE, **section}
    with pytest.raises(PlanError, match=why):
        simulate(asked, Pull(), clients(), secure=way, progress=False)


@pytest.mark.parametrize(
    ("partial", "why"),
    [
        ("examples_seen", "needs the work of each, which nobody sees"),
        ("full", "devices mask none in secure rounds: set aggregation.partial = .refuse."),
    ],
)
def test_a_recipe_that_counts_partial_work_is_refused(partial: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        recipes.fedprox_with_stragglers(
            Pull(), clients(), partial=partial, per_round=8, secure_rounds=SECURE, progress=False
        )


def test_a_way_without_secure_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match=r'this recipe\'s are plain: give secure_rounds=\{"max_norm"'):
        recipes.fedavg(Pull(), clients(), secure="quantized", progress=False)
