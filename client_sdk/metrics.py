"""Exact means of metrics: the same bits whatever the order of the devices."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

from client_sdk.protocol.devices import Score
from client_sdk.protocol.names import DESCRIPTIONS, METRIC_PATTERN

UNDEFINED = ".undefined"
"""The end of the name of a metric that says that another one has no value: ``auc.undefined``. It is 1 in the score of
one device, and in a score of many the number of devices."""
_LONGEST = 64
"""Characters of a metric's name, at most."""


def undefined(name: str) -> str:
    """The name of the metric that says that ``name`` has no value."""
    return name[: _LONGEST - len(UNDEFINED)] + UNDEFINED


_NONE: Mapping[str, float] = MappingProxyType({})
MOST = 64
"""Metrics of one report or score, at most."""


def measured(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a training as plain numbers, without those that have no value (NaN) on its examples. A loss always
    has one. Raises ValueError for names and numbers that no report can hold."""
    if len(metrics) > MOST:
        raise ValueError(f"an update has at most {MOST} metrics, not {len(metrics)}")
    for name in metrics:
        if not isinstance(name, str) or not re.fullmatch(METRIC_PATTERN, name):
            raise ValueError(f"a metric cannot be called {name!r}: {DESCRIPTIONS[METRIC_PATTERN]}")
    having = {name: value for name, value in metrics.items() if name == "loss" or not _is_nan(value)}
    require_finite(having)
    return {name: float(value) for name, value in having.items()}


def _is_nan(value: object) -> bool:
    try:
        return math.isnan(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return False


def require_finite(metrics: Mapping[str, float]) -> None:
    """Raise ValueError for a metric that is NaN or infinity, or not a number."""
    for name, value in metrics.items():
        try:
            finite = math.isfinite(value)
        except (TypeError, OverflowError):
            finite = False
        if not finite:
            raise ValueError(f"the metric {name!r} is {value}, not a finite number")


@dataclass(frozen=True, slots=True)
class Tally:
    """For each name: (sum of value * weight, weight), as exact numbers. The weight is the examples, or what a score
    says instead. Adding has no order."""

    sums: Mapping[str, tuple[Fraction, int | Fraction]] = field(default_factory=dict)

    @classmethod
    def of(cls, metrics: Mapping[str, float], examples: int, weights: Mapping[str, float] = _NONE) -> Tally:
        """Metrics of one device, means over its ``examples``, or of another weight. ValueError for NaN or infinity."""
        return cls.total([(metrics, examples, weights)])

    @classmethod
    def total(cls, parts: Iterable[tuple[Mapping[str, float], int, Mapping[str, float]]]) -> Tally:
        """The sum of ``of(metrics, examples, weights)`` of all parts, at a tenth of its cost: until the end, the sums
        are whole numbers, one for each denominator, a power of two."""
        having: dict[str, int | Fraction] = {}
        scaled: dict[str, dict[int, int]] = {}
        for metrics, examples, weights in parts:
            require_finite(metrics)
            for name, value in metrics.items():
                numerator, denominator = float(value).as_integer_ratio()
                weight: int | Fraction = examples
                if name in weights:
                    weight = Fraction(weights[name])
                    denominator *= weight.denominator
                of_name = scaled.setdefault(name, {})
                of_name[denominator] = of_name.get(denominator, 0) + numerator * weight.numerator
                having[name] = having.get(name, 0) + weight
        return cls(
            {
                name: (sum((Fraction(whole, size) for size, whole in of_name.items()), Fraction(0)), having[name])
                for name, of_name in scaled.items()
            }
        )

    def __add__(self, other: Tally) -> Tally:
        total = dict(self.sums)
        for name, (value, examples) in other.sums.items():
            mine, already = total.get(name, (Fraction(0), 0))
            total[name] = (mine + value, already + examples)
        return Tally(total)

    def means(self) -> dict[str, float]:
        """The mean of each metric over the weight behind it, in the order of the names; those of no weight are left
        out."""
        return {name: float(value / weight) for name, (value, weight) in sorted(self.sums.items()) if weight}


def added(states: Sequence[Sequence[float]]) -> list[float]:
    """States of one metric, added number by number: the exact sums, rounded once, so the order changes no bit. Those of
    another size than most are left out, since they are of another metric."""
    sizes = Counter(map(len, states))
    size = min(sizes, key=lambda one: (-sizes[one], one))
    return [math.fsum(column) for column in zip(*(state for state in states if len(state) == size), strict=True)]


def pooled(scores: Sequence[Score]) -> Score:
    """The score of the examples of all ``scores`` together, in any order: each metric averaged over those that have it,
    but for those that have a state: their states are added. What says that a metric has no value is left out."""
    names = {name for score in scores for name in score.states}
    states = {name: added([one.states[name] for one in scores if name in one.states]) for name in sorted(names)}
    means = Tally.total((means_in(one.metrics, names), one.examples, one.weights) for one in scores).means()
    return Score(examples=sum(one.examples for one in scores), metrics=means, states=states)


def means_in(metrics: Mapping[str, float], states: Collection[str]) -> dict[str, float]:
    """The metrics that are averaged: neither values of ``states``, which are added, nor ``.undefined`` ones."""
    return {name: value for name, value in metrics.items() if name not in states and not name.endswith(UNDEFINED)}
