"""Compares several runs: draws their curves in one picture, and finds the round in which each reaches a target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from simulation.history import Curve, HistoryError

if TYPE_CHECKING:
    from simulation.history.figure import HistoryFigure


class HasCurves(Protocol):
    """An object with curves: a ``History``, a ``Baseline``, or one of the caller's own."""

    def metric(self, name: str, source: str = "evaluator") -> Curve:
        """(versions, values) of one metric."""


def draw(
    runs: Mapping[str, HasCurves],
    metric: str = "accuracy",
    source: str = "evaluator",
    *,
    title: str = "",
    path: str | Path | None = None,
) -> HistoryFigure:
    """The metric of each run over its rounds, in one picture of 6.5 by 4 inches; ``path``: the file to which it
    is also written. A run that has fewer rounds than the longest ends with a dot, and its entry in the legend says at
    which round.

    HistoryError for a run without this metric, or where matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.ticker import MaxNLocator

        from coordinator.pictures.panels import BLUE, GREEN, ORANGE, PINK, RED, SKY
        from simulation.history.figure import HistoryFigure, write
    except ModuleNotFoundError:
        raise HistoryError("Pictures need matplotlib: pip install 'quorate[simulation]'.") from None
    if not runs:
        raise HistoryError("There are no runs to draw.")
    figure = HistoryFigure(figsize=(6.5, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    colours, styles = (BLUE, RED, GREEN, ORANGE, PINK, SKY), ("-", "--", ":")
    curves = {name: run.metric(metric, source) for name, run in runs.items()}
    longest = max(int(curve.versions[-1]) for curve in curves.values())
    for place, (name, (versions, values)) in enumerate(curves.items()):
        style = styles[place // len(colours) % len(styles)]
        colour, ends = colours[place % len(colours)], int(versions[-1])
        label = name if ends == longest else f"{name} (to round {ends})"
        axes.plot(versions, values, style, color=colour, linewidth=1.6, label=label)
        if ends < longest:
            axes.plot(versions[-1:], values[-1:], "o", color=colour, markersize=5)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("rounds")
    axes.set_ylabel(metric if source == "evaluator" else f"{metric} ({source})")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(visible=True, alpha=0.3)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    if path is not None:
        write(figure, Path(path))
    return figure


def rounds_to(curve: Curve, target: float, better: Literal["higher", "lower"] = "higher") -> float | None:
    """After how many rounds a curve reached ``target``; None where it never did.

    As in arXiv:1602.05629, section 3: the curve is made monotonic by taking the best value so far, and the crossing is
    found by linear interpolation between the rounds that were scored.
    """
    sign = 1.0 if better == "higher" else -1.0
    best = np.maximum.accumulate(sign * curve.values)
    reached = np.flatnonzero(best >= sign * target)
    if not len(reached):
        return None
    place = int(reached[0])
    if place == 0:
        return float(curve.versions[0])
    low, high = best[place - 1], best[place]
    before, after = curve.versions[place - 1], curve.versions[place]
    return float(before + (after - before) * (sign * target - low) / (high - low))
