"""What attacks that hide in the spread of honest updates leave of a round's step, for each rule: no training, a few
thousand numbers. Whoever attacks knows all honest updates.

*A little is enough* (ALIE: Baruch et al. 2019, arXiv:1902.06156, section 3): with n updates, f of them wrong, each
coordinate of a wrong one is mean - z sigma over the honest ones, against the sign of the mean, where

    Phi(z) = (n - f - s) / (n - f),    s = floor(n / 2 + 1) - f

so that s honest updates are further out. *Inner product manipulation* (Xie et al. 2019, arXiv:1903.03936): the wrong
ones are the mean of the honest ones, reversed and times epsilon.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.engine.aggregation.combining import Updates
from coordinator.engine.aggregation.parameters import settings
from coordinator.engine.aggregation.registry import RULES

Float64 = NDArray[np.float64]
Attack = Callable[[Float64, int], Float64]
"""From the honest updates [n - f, W], and f, to a wrong one [W]."""

COUNT, WRONG = 20, (2, 4, 6, 8)
WIDTH, SIGNAL, DRAWS = 400, 0.2, 8
"""Honest updates have a standard deviation of 1 in each coordinate, and a mean of about SIGNAL."""
_SPREAD = WIDTH**0.5
HALF = 0.5
"""A rule withstands an attack where at least this much is left."""


def alie(honest: Float64, wrong: int) -> Float64:
    """A wrong update by *a little is enough*."""
    count = len(honest) + wrong
    further_out = count // 2 + 1 - wrong
    z = NormalDist().inv_cdf((len(honest) - further_out) / len(honest))
    mean = honest.mean(axis=0)
    found: Float64 = mean - z * honest.std(axis=0) * np.sign(mean)
    return found


def inner_product(honest: Float64, wrong: int, epsilon: float = 0.5) -> Float64:
    """A wrong update by inner product manipulation."""
    found: Float64 = -epsilon * honest.mean(axis=0)
    return found


ATTACKS: dict[str, Attack] = {"ALIE": alie, "inner product, epsilon 0.5": inner_product}
GIVEN: dict[str, tuple[str, Callable[[int], dict[str, float]]]] = {
    "`mean`": ("mean", lambda wrong: {}),
    "`median`": ("median", lambda wrong: {}),
    "`trimmed-mean`, fraction = f / n": ("trimmed-mean", lambda wrong: {"fraction": wrong / COUNT}),
    "`krum`, wrong = f": ("krum", lambda wrong: {"wrong": wrong}),
    "`krum`, wrong = f, keep = n - f": ("krum", lambda wrong: {"wrong": wrong, "keep": COUNT - wrong}),
    "`geometric-median`": ("geometric-median", lambda wrong: {}),
    "`centered-clipping`, radius = the spread": ("centered-clipping", lambda wrong: {"radius": _SPREAD}),
    "`centered-clipping`, radius = a fifth of it": ("centered-clipping", lambda wrong: {"radius": _SPREAD / 5}),
}
"""What a row of the table is called -> the rule, and its numbers for so many wrong updates."""


def made(name: str, rows: Float64, given: dict[str, float]) -> Float64:
    """What a rule makes of these updates."""
    rule: Any = RULES[name]
    numbers, updates = settings(name, "rule_parameters", rule.parameters, given), rows.astype(np.float32)
    if rule.needs == "sum":
        return Updates.of(updates, 77).sum().read(0, WIDTH).astype(np.float64)
    by_columns = rule.needs == "all"
    weights = np.ones(len(rows), np.int64)
    found = rule.combine(updates, weights, numbers) if by_columns else rule.delta(Updates.of(updates, 77), numbers)
    return np.asarray(found, np.float64)


def left(name: str, given: dict[str, float], attack: Attack, wrong: int, draws: int = DRAWS) -> float:
    """How much of the honest mean is in what the rule makes: 1 is all of it, below 0 the model goes backwards."""
    parts = []
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        honest = SIGNAL * rng.normal(size=WIDTH) + rng.normal(size=(COUNT - wrong, WIDTH))
        rows, mean = np.concatenate([honest, np.tile(attack(honest, wrong), (wrong, 1))]), honest.mean(axis=0)
        parts.append(made(name, rows, given) @ mean / (mean @ mean))
    return float(np.mean(parts))


def table() -> list[str]:
    """Lines of the page."""
    heads = [f"{name}, f = {wrong}" if wrong == WRONG[0] else f"{wrong}" for name in ATTACKS for wrong in WRONG]
    lines = [f"| rule | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for label, (name, given) in GIVEN.items():
        found = [left(name, given(wrong), attack, wrong) for attack in ATTACKS.values() for wrong in WRONG]
        cells = [f"**{one:.2f}**" if one >= HALF else f"{one:.2f}" for one in found]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines
