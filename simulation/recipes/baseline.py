"""``Baseline``: the result of training without federation, with the same curves as a ``History``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np

from client_sdk.protocol.devices import Score
from simulation.history import Curve, HistoryError
from simulation.history.tables import newest_scores

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(repr=False)
class Baseline:
    """A run without a coordinator. ``metric``, ``final``, ``best`` and ``curves`` are those of a ``History``; a version
    is the model after one round's amount of training; 0 is the first model."""

    name: str
    interrupted: bool = False
    """Ctrl-C ended it."""
    scores: dict[tuple[int, str], Score] = field(default_factory=dict)
    """(version, source) -> score."""

    def __len__(self) -> int:
        """The amount of training, in rounds."""
        return max((version for version, _ in self.scores), default=0)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        standing = f"{self.name}: {len(self)} round{'s' * (len(self) != 1)}" + (
            ", interrupted" if self.interrupted else ""
        )
        return f"<Baseline {' · '.join([standing, *newest_scores(self.curves)])}>"

    @property
    def curves(self) -> Mapping[tuple[str, str], Curve]:
        """Every metric as a curve, by (source, name)."""
        points: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for (version, source), score in sorted(self.scores.items()):
            for name, value in score.metrics.items():
                points.setdefault((source, name), []).append((version, value))
        return MappingProxyType({key: Curve.of(points[key]) for key in sorted(points)})

    def metric(self, name: str, source: str = "evaluator") -> Curve:
        """(versions, values) of one metric. HistoryError lists the metrics that exist."""
        curves = self.curves
        if (source, name) not in curves:
            there = ", ".join(f"{name} of {source}" for source, name in curves) or "none at all"
            raise HistoryError(f"{self.name} has no metric {name!r} of {source!r}; there is {there}.")
        return curves[source, name]

    def final(self, name: str, source: str = "evaluator") -> float:
        """The value at the newest version that was scored."""
        return float(self.metric(name, source).values[-1])

    def best(
        self, name: str, source: str = "evaluator", better: Literal["higher", "lower"] | None = None
    ) -> tuple[int, float]:
        """(version, value) where the metric was best; None: lower is better for losses, errors and perplexities."""
        versions, values = self.metric(name, source)
        if better is None:
            better = "lower" if any(word in name.lower() for word in ("loss", "error", "perplexity")) else "higher"
        place = int(np.argmin(values) if better == "lower" else np.argmax(values))
        return int(versions[place]), float(values[place])

    def to_pandas(self) -> DataFrame:
        """A row for each score: version, source, name, value, examples. HistoryError where there is no pandas."""
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise HistoryError("Tables need pandas: pip install 'quorate[simulation]'.") from None
        rows = [
            {"version": version, "source": source, "name": name, "value": value, "examples": score.examples}
            for (version, source), score in sorted(self.scores.items())
            for name, value in sorted(score.metrics.items())
        ]
        return pd.DataFrame(rows, columns=["version", "source", "name", "value", "examples"])
