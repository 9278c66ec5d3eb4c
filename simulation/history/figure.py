"""Draws a history as three panels: the funnel of each round, the metrics, and how often each device counted. Where the
plan has secure rounds, a fourth shows their exchanges.

It uses matplotlib's object interface only: no pyplot, no global state, no display. ``metrics_panel`` draws the panel of
metrics, ``exchanges_panel`` that of the exchanges.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from simulation.history.exchanges_panel import exchanges_panel
from simulation.history.folder import HistoryError
from simulation.history.metrics_panel import metrics_panel
from simulation.history.panel import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    TEXT,
    TITLE,
    YELLOW,
    finish,
    legend,
    note,
)
from simulation.history.recorded_run import RecordedRun
from simulation.history.rounds import RoundSummary
from simulation.history.tables import standing

_BARS = 60
"""The most rounds that are drawn as bars; more are drawn as areas."""


class HistoryFigure(Figure):
    """A figure that a notebook shows when it is the last line of a cell."""

    def _repr_png_(self) -> bytes:
        image = BytesIO()
        self.savefig(image, format="png", dpi=110)
        return image.getvalue()


def draw(history: RecordedRun) -> HistoryFigure:
    """The picture; 12 by 5.4 inches, and 12 by 10.4 with secure rounds."""
    secure = history.plan.secure is not None
    figure = HistoryFigure(figsize=(12, 10.4 if secure else 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    if secure:
        panels = figure.subplot_mosaic("ab\ncd", width_ratios=(5, 6))
        funnel, metrics, devices = panels["a"], panels["b"], panels["c"]
        exchanges_panel(panels["d"], history.exchanges)
    else:
        funnel, metrics, devices = figure.subplots(1, 3, width_ratios=(5, 6, 4))
    figure.suptitle(f"{history.run}: {standing(history)}", fontsize=TITLE, fontweight="bold")
    _funnel(funnel, history.rounds)
    metrics_panel(metrics, history)
    _participation(devices, history)
    return figure


def write(figure: Figure, path: Path) -> None:
    """Writes the picture in the format of the path's ending. HistoryError when that cannot be done."""
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise HistoryError(f"The picture cannot be written to {path}: {error}") from None


# ------------------------------------------------------------ funnel


def _funnel(axes: Axes, rounds: tuple[RoundSummary, ...]) -> None:
    """The outcome of the devices of each cohort: the parts are stacked up to the number selected."""
    axes.set_title("Funnel: what became of each cohort", fontsize=TITLE)
    axes.set_xlabel("round", fontsize=TEXT)
    axes.set_ylabel("devices", fontsize=TEXT)
    if not rounds:
        note(axes, "no round yet")
        return
    numbers = np.array([row.round for row in rounds])
    parts = [
        ("counted", BLUE, [row.counted for row in rounds]),
        ("reported in vain", ORANGE, [row.reported - row.counted for row in rounds]),
        ("late", YELLOW, [row.late for row in rounds]),
        ("refused", PINK, [row.refused for row in rounds]),
        ("withdrawn", GREEN, [row.withdrawn for row in rounds]),
        ("dropped", GREY, [row.dropped for row in rounds]),
    ]
    if rounds[-1].status == "open":
        # What has been reported is not lost yet; it is under way with the rest.
        parts[1][2][-1] = 0
        left = rounds[-1].selected - rounds[-1].withdrawn - rounds[-1].late - rounds[-1].refused
        parts.append(("under way", SKY, [0] * (len(rounds) - 1) + [left]))
    parts = [part for part in parts if any(part[2])] or parts[:1]
    heights = np.array([part[2] for part in parts], np.float64)
    tops = np.cumsum(heights, axis=0)
    edges = np.append(numbers - 0.5, numbers[-1] + 0.5)
    for place, (name, colour, _) in enumerate(parts):
        low = tops[place] - heights[place]
        if len(rounds) <= _BARS:
            axes.bar(numbers, heights[place], bottom=low, width=0.8, color=colour, label=name, linewidth=0)
        else:
            axes.stairs(tops[place], edges, baseline=low, fill=True, color=colour, label=name, linewidth=0)
    abandoned = [row.round for row in rounds if row.status == "abandoned"]
    most = max(float(tops[-1].max()), 1.0)
    if abandoned:
        size = 28 if len(rounds) <= _BARS else 12
        axes.scatter(
            abandoned,
            [-0.035 * most] * len(abandoned),
            marker="x",
            s=size,
            color=RED,
            label="round abandoned",
            linewidths=1.2,
        )
    axes.set_ylim(-0.07 * most if abandoned else 0, 1.04 * most)
    axes.set_xlim(edges[0], edges[-1])
    finish(axes)
    legend(axes, *axes.get_legend_handles_labels(), columns=3)


# ------------------------------------------------------------ participation


def _participation(axes: Axes, history: RecordedRun) -> None:
    """Devices in order of how often they counted."""
    axes.set_title("Participation", fontsize=TITLE)
    axes.set_xlabel("devices, the most frequent first", fontsize=TEXT)
    axes.set_ylabel("rounds in which the device counted", fontsize=TEXT)
    counts = np.sort(np.array(list(history.participation.values()), np.int64))[::-1]
    if not len(counts):
        note(axes, "no device has counted yet")
        return
    edges = np.arange(len(counts) + 1) + 0.5
    label = f"{len(counts)} devices counted at least once"
    if len(counts) <= _BARS:
        axes.bar(np.arange(1, len(counts) + 1), counts, width=0.8, color=BLUE, linewidth=0, label=label)
    else:
        axes.stairs(counts, edges, fill=True, color=BLUE, linewidth=0, label=label)
    mean = float(counts.mean())
    axes.axhline(mean, color=RED, linestyle="--", linewidth=1.2, label=f"mean {mean:.3g}")
    axes.set_ylim(0, 1.04 * float(counts.max()))
    axes.set_xlim(edges[0], edges[-1])
    finish(axes)
    legend(axes, *axes.get_legend_handles_labels(), columns=1)
