"""Draws a history as three panels: the funnel of each round, the metrics, and how often each device counted. Where the
plan has secure rounds, a fourth shows their exchanges.

It uses matplotlib's object interface only: no pyplot, no global state, no display. Most panels are those of
``coordinator.pictures``.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coordinator.pictures.panels import (
    BARS,
    BLUE,
    RED,
    TEXT,
    TITLE,
    ExchangePoint,
    FunnelRow,
    exchanges_panel,
    finish,
    funnel_panel,
    legend,
    metrics_panel,
    note,
)
from simulation.history.folder import HistoryError
from simulation.history.recorded_run import RecordedRun
from simulation.history.tables import standing

Row = TypeVar("Row", FunnelRow, ExchangePoint)


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
        exchanges_panel(panels["d"], _fields(ExchangePoint, history.exchanges))
    else:
        funnel, metrics, devices = figure.subplots(1, 3, width_ratios=(5, 6, 4))
    figure.suptitle(f"{history.run}: {standing(history)}", fontsize=TITLE, fontweight="bold")
    funnel_panel(funnel, _fields(FunnelRow, history.rounds))
    metrics_panel(metrics, history.curves, history.plan.finish.metric)
    _participation(devices, history)
    return figure


def _fields(row: type[Row], found: Iterable[object]) -> list[Row]:
    """What panels draw of the records of a history, which have more fields."""
    return [row(*(getattr(one, name) for name in row._fields)) for one in found]


def write(figure: Figure, path: Path) -> None:
    """Writes the picture in the format of the path's ending. HistoryError when that cannot be done."""
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise HistoryError(f"The picture cannot be written to {path}: {error}") from None


# ------------------------------------------------------------ participation


def _participation(axes: Axes, history: RecordedRun) -> None:
    """Devices in order of how often they counted."""
    axes.set_title("Participation", fontsize=TITLE)
    axes.set_xlabel("devices, the most frequent first", fontsize=TEXT)
    axes.set_ylabel("rounds in which the device counted", fontsize=TEXT)
    counts = np.sort(np.array(list(history.participation.values()), np.int64))[::-1]
    if not counts.any():
        note(axes, "no device has counted yet")
        return
    edges = np.arange(len(counts) + 1) + 0.5
    label = f"{np.count_nonzero(counts)} of {len(counts)} devices counted"
    if len(counts) <= BARS:
        axes.bar(np.arange(1, len(counts) + 1), counts, width=0.8, color=BLUE, linewidth=0, label=label)
    else:
        axes.stairs(counts, edges, fill=True, color=BLUE, linewidth=0, label=label)
    mean = float(counts.mean())
    axes.axhline(mean, color=RED, linestyle="--", linewidth=1.2, label=f"mean {mean:.3g}")
    axes.set_ylim(0, 1.04 * float(counts.max()))
    axes.set_xlim(edges[0], edges[-1])
    finish(axes)
    legend(axes, *axes.get_legend_handles_labels(), columns=1)
