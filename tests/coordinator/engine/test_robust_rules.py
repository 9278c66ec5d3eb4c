"""Rules over whole updates: the papers' formulas in float64, and the attacks that each withstands, where the mean does
not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.engine.aggregation.combining import Computed, Updates, flat
from coordinator.engine.aggregation.parameters import settings
from coordinator.engine.aggregation.registry import RULES, Chosen
from coordinator.engine.plan import Plan, chosen, require_combinable
from coordinator.engine.plan_file import PlanError
from scripts.recipe_curves import attacks

Float64 = NDArray[np.float64]
GIVEN: dict[str, dict[str, float]] = {
    "krum": {"wrong": 3, "keep": 4},
    "geometric-median": {},
    "centered-clipping": {"radius": 3.0, "iterations": 10},
}
HONEST, WRONG, WIDTH = 8, 3, 400


def honest(seed: int = 1) -> Float64:
    """Updates of norm 4 about the same one, each off by about 1."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=WIDTH) / 5 + rng.normal(size=(HONEST, WIDTH)) / 20


def delta(name: str, rows: Float64, given: dict[str, float], **options: Any) -> Float64:
    rule: Any = RULES[name]
    updates = Updates.of(rows.astype(np.float32), 77, **options)
    found: Float64 = rule.delta(updates, settings(name, "p", rule.parameters, given)).astype(np.float64)
    return found


# ---------------------------------------------------------------- the papers' lines, in float64


def krum(rows: Float64, given: dict[str, float]) -> Float64:
    """Blanchard et al. 2017, section 4 and the definition of multi-Krum."""
    scores = []
    for place, row in enumerate(rows):
        others = sorted(np.sum((row - one) ** 2) for at, one in enumerate(rows) if at != place)
        scores.append(sum(others[: len(rows) - int(given["wrong"]) - 2]))
    return rows[np.argsort(scores)[: int(given["keep"])]].mean(axis=0)


def weiszfeld(rows: Float64, given: dict[str, float]) -> Float64:
    """Pillutla et al. 2022, Algorithm 2."""
    v = rows.mean(axis=0)
    for _ in range(int(given.get("iterations", 32))):
        beta = 1 / np.maximum(given.get("smoothing", 1e-6), np.linalg.norm(rows - v, axis=1))
        v = (beta[:, None] * rows).sum(axis=0) / beta.sum()
    return v


def clipping(rows: Float64, given: dict[str, float], before: Float64 | None = None) -> Float64:
    """Karimireddy et al. 2021, equation 3."""
    v = np.zeros(rows.shape[1]) if before is None else before
    for _ in range(int(given["iterations"])):
        away = rows - v
        v = v + (away * np.minimum(1, given["radius"] / np.linalg.norm(away, axis=1))[:, None]).mean(axis=0)
    return v


REFERENCES: dict[str, Callable[[Float64, dict[str, float]], Float64]] = {
    "krum": krum,
    "geometric-median": weiszfeld,
    "centered-clipping": clipping,
}
CASES = [
    ("krum", {"wrong": 0, "keep": 1}),
    ("krum", {"wrong": 3, "keep": 1}),
    ("krum", {"wrong": 2, "keep": 6}),
    ("geometric-median", {}),
    ("geometric-median", {"iterations": 3, "smoothing": 0.5}),
    ("centered-clipping", {"radius": 0.5, "iterations": 1}),
    ("centered-clipping", {"radius": 1.5, "iterations": 6}),
]


def test_all_rules_over_whole_updates_are_in_these_tests() -> None:
    assert set(REFERENCES) == {name for name, rule in RULES.items() if rule.needs == "whole"}


@pytest.mark.parametrize(("name", "given"), CASES)
def test_a_rule_is_that_of_its_paper(name: str, given: dict[str, float]) -> None:
    rows = np.concatenate([honest(), 20 * honest(2)[:WRONG]]).astype(np.float32).astype(np.float64)
    rows *= np.linspace(0.5, 1.5, len(rows))[:, None].astype(np.float32)
    rows = rows.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(delta(name, rows, given), REFERENCES[name](rows, given), rtol=1e-5, atol=2e-6)


def test_centered_clipping_begins_with_the_last_aggregate_where_it_remembers_that() -> None:
    """Three rounds: the second and third begin where the one before has ended. Statistics are not in it."""
    given = {"radius": 0.5, "iterations": 2, "remember": 1}
    made = plan("centered-clipping", given, HONEST + WRONG)
    nothing, tensors, parent = np.zeros((WIDTH, 1), np.float32), dict[str, Any](), flat(np.zeros(WIDTH + 2, np.float32))
    assert made.keeps == {"rule": (0.0,)}
    tensors["rule"] = Computed(lambda start, count: nothing[start : start + count])
    v = np.zeros(WIDTH)
    for seed in range(3):
        rows = np.concatenate([honest(), 20 * honest(seed)[:WRONG]]).astype(np.float32)
        v = clipping(rows.astype(np.float64), given, v)
        updates = Updates.of(np.concatenate([rows, np.ones((len(rows), 2), np.float32)], axis=1), 77, WIDTH)
        found = made.combine(parent, updates, tensors, {}, {"server_learning_rate": 1.0}, b"")
        np.testing.assert_allclose(found.model.read(0, WIDTH), v, rtol=1e-4, atol=2e-6)
        np.testing.assert_allclose(found.model.read(WIDTH, 2), 1.0, rtol=1e-6)
        kept = found.tensors["rule"].read(0, WIDTH)
        tensors = {"rule": Computed(lambda start, count, kept=kept: kept[start : start + count])}
    assert np.linalg.norm(v) > 1.5, "further than one round of two moves reaches"
    assert plan("centered-clipping", {"radius": 0.5}, 9).keeps == {}


# ---------------------------------------------------------------- attacks


def flipped(good: Float64) -> Float64:
    """The sign of the update is turned, and it is made larger."""
    return np.tile(-10 * good.mean(axis=0), (WRONG, 1))


def noise(good: Float64) -> Float64:
    """Large noise."""
    return np.random.default_rng(7).normal(size=(WRONG, WIDTH)) * 300


def equal(good: Float64) -> Float64:
    """The same wrong update by each, at a moderate distance."""
    return np.tile(good.mean(axis=0) + 2, (WRONG, 1))


def largest(good: Float64) -> Float64:
    """The largest values that a round takes."""
    return np.full((WRONG, WIDTH), 65536.0)


def inner_product(good: Float64) -> Float64:
    """Xie et al. 2019 (arXiv:1903.03936), by a factor that turns the mean round."""
    return np.tile(-4 * good.mean(axis=0), (WRONG, 1))


@pytest.mark.parametrize("attack", [flipped, noise, equal, largest, inner_product])
@pytest.mark.parametrize("name", GIVEN)
def test_a_rule_withstands_an_attack_and_the_mean_does_not(name: str, attack: Callable[[Float64], Float64]) -> None:
    good = honest()
    rows, right = np.concatenate([good, attack(good)]), good.mean(axis=0)
    off_by = np.linalg.norm(rows.mean(axis=0) - right)
    found = delta(name, rows, GIVEN[name])
    assert off_by > np.linalg.norm(right), "the mean is further off than the update is long"
    assert np.linalg.norm(found - right) < off_by / 4
    assert found @ right > 0.5 * right @ right


def test_alie_is_that_of_its_paper() -> None:
    """Baruch et al. 2019, section 3: of 50 updates 24 are wrong, so 2 of 26 must be further out: z is 1.43."""
    good = np.random.default_rng(3).normal(1.0, 2.0, (26, WIDTH))
    away = (good.mean(axis=0) - attacks.alie(good, 24)) / good.std(axis=0) * np.sign(good.mean(axis=0))
    np.testing.assert_allclose(away, 1.4261, atol=1e-4)


HIDING = {  # the most wrong updates of 20 with which at least half of the step is left: ALIE, inner product
    "`mean`": (6, 6),
    "`median`": (4, 2),
    "`trimmed-mean`, fraction = f / n": (4, 4),
    "`krum`, wrong = f": (4, 0),
    "`krum`, wrong = f, keep = n - f": (6, 4),
    "`geometric-median`": (4, 2),
    "`centered-clipping`, radius = the spread": (6, 6),
    "`centered-clipping`, radius = a fifth of it": (4, 0),
}


@pytest.mark.parametrize("label", attacks.GIVEN)
def test_how_many_that_hide_a_rule_withstands(label: str) -> None:
    name, given = attacks.GIVEN[label]
    for attack, most in zip(attacks.ATTACKS.values(), HIDING[label], strict=True):
        stood = [wrong for wrong in attacks.WRONG if attacks.left(name, given(wrong), attack, wrong, 4) >= attacks.HALF]
        assert stood == [wrong for wrong in attacks.WRONG if wrong <= most]
    assert {rule for rule, _ in attacks.GIVEN.values()} == set(RULES)


def test_more_wrong_updates_than_it_says_move_krum() -> None:
    good = honest()[:4]
    rows = np.concatenate([good, flipped(good), flipped(good)])
    assert delta("krum", rows, {"wrong": 2}) @ good.mean(axis=0) < 0


def test_what_centered_clipping_lets_wrong_updates_do_is_bounded_by_the_radius() -> None:
    """Each moves v by at most radius / n an iteration."""
    good = honest()
    near, far = (np.concatenate([good, np.full((WRONG, WIDTH), value)]) for value in (1e-3, 6e4))
    given: dict[str, float] = {"radius": 2.0, "iterations": 1}
    apart = np.linalg.norm(delta("centered-clipping", near, given) - delta("centered-clipping", far, given))
    assert apart <= 2.0 * WRONG / len(near) * (1 + 1e-5)


# ---------------------------------------------------------------- statistics, and what is refused


@pytest.mark.parametrize("name", GIVEN)
def test_statistics_get_a_mean_with_the_updates_weights(name: str) -> None:
    """Where the distances are alike the weights are: those of a wrong update are less. They are in 2^-14."""
    good = honest()
    rows = np.concatenate([good, noise(good)])
    statistics = np.concatenate([np.full((HONEST, 2), 1.0), np.full((WRONG, 2), 101.0)])
    rows = np.concatenate([rows, statistics], axis=1)
    found = delta(name, rows, GIVEN[name], parameters=WIDTH)
    without = delta(name, rows[:, :WIDTH], GIVEN[name])
    assert found[:WIDTH].tobytes() == without.tobytes()
    assert (found[WIDTH:] >= 1.0).all()
    assert (found[WIDTH:] < 0.25 * statistics.mean()).all()


def plan(name: str, given: dict[str, float], goal: int) -> Chosen:
    body = {
        "name": "p",
        "task": {"learner": "a:b"},
        "cohort": {"select": goal, "goal": goal, "quorum": 1.0},
        "aggregation": {"rule": name, "rule_parameters": given, "weighting": "equal"},
    }
    parsed = Plan.parse(body)
    require_combinable(parsed, chosen(parsed), 1000)
    return chosen(parsed)


@pytest.mark.parametrize(
    ("name", "given", "goal", "sentence"),
    [
        ("krum", {"wrong": 3, "keep": 1}, 8, "it takes no fewer than 9 updates, and a round may have 8"),
        ("krum", {"wrong": 1, "keep": 8}, 8, "it takes no fewer than 9 updates, and a round may have 8"),
        ("krum", {}, 8, "krum needs wrong, a number whole, from 0 and below 10000"),
        ("geometric-median", {}, 2, "it takes no fewer than 3 updates, and a round may have 2"),
        ("geometric-median", {}, 6000, "1,152,000,000 bytes of memory, more than 1,073,741,824: .* of 6,000 updates"),
        ("centered-clipping", {}, 8, "centered-clipping needs radius, a number from 1e-09 and below 1e"),
        ("centered-clipping", {"radius": 1.0, "iterations": 0}, 8, r"iterations \(0\) of centered-clipping must be"),
    ],
)
def test_a_plan_that_a_rule_cannot_keep_is_refused(
    name: str, given: dict[str, float], goal: int, sentence: str
) -> None:
    with pytest.raises(PlanError, match=sentence):
        plan(name, given, goal)
    plan(name, {**GIVEN[name], **given, **({"iterations": 3} if "iterations" in given else {})}, 20)
