"""Exact means of metrics: the same bits whatever the order of the devices."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from client_sdk.protocol.names import DESCRIPTIONS, METRIC_PATTERN

UNDEFINED = ".undefined"
"""The end of the name of a metric that says that another one has no value: ``auc.undefined``. It is 1 in the score of
one device, and in a score of many the number of devices."""
_LONGEST = 64
"""Characters of a metric's name, at most."""


def undefined(name: str) -> str:
    """The name of the metric that says that ``name`` has no value."""
    return name[: _LONGEST - len(UNDEFINED)] + UNDEFINED


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
    """For each name: (sum of value * examples, examples), the sum as an exact fraction. Adding has no order."""

    sums: Mapping[str, tuple[Fraction, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, metrics: Mapping[str, float], examples: int) -> Tally:
        """Metrics of one device, means over its ``examples``. ValueError for NaN or infinity."""
        require_finite(metrics)
        return cls({name: (Fraction(float(value)) * examples, examples) for name, value in metrics.items()})

    @classmethod
    def total(cls, parts: Iterable[tuple[Mapping[str, float], int]]) -> Tally:
        """The sum of ``of(metrics, examples)`` of all parts, at a tenth of its cost: until the end, the sums are whole
        numbers, one for each denominator, a power of two."""
        examples: dict[str, int] = {}
        scaled: dict[str, dict[int, int]] = {}
        for metrics, weight in parts:
            require_finite(metrics)
            for name, value in metrics.items():
                numerator, denominator = float(value).as_integer_ratio()
                of_name = scaled.setdefault(name, {})
                of_name[denominator] = of_name.get(denominator, 0) + numerator * weight
                examples[name] = examples.get(name, 0) + weight
        return cls(
            {
                name: (sum((Fraction(whole, size) for size, whole in of_name.items()), Fraction(0)), examples[name])
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
        """The mean of each metric over the examples behind it, in the order of the names; those without examples are
        left out.
        """
        return {name: float(value / examples) for name, (value, examples) in sorted(self.sums.items()) if examples}
