"""The picture of one run, by what the API says: the funnel of its rounds, the curves of its metrics, and the lanes of
one round or the exchanges of its secure rounds.

Equal data give equal files: nothing of the time or the machine is written, and text stays text in SVG and PDF.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from client_sdk.protocol.insight import LanesView
from client_sdk.protocol.operators import MetricView, RoundView, RunView
from coordinator.pictures.curve import Curve
from coordinator.pictures.exchanges_panel import exchanges_panel
from coordinator.pictures.funnel_panel import funnel_panel
from coordinator.pictures.lanes_panel import lanes_panel
from coordinator.pictures.metrics_panel import Key, metrics_panel
from coordinator.pictures.panel import TITLE, note

SIZE = (12.0, 9.4)
"""Inches. On a page of 6 inches the letters have 5 to 6 points."""
DPI = 150
FORMATS: Mapping[str, dict[str, Any]] = {
    ".svg": {"Date": None, "Creator": "quorate"},
    ".pdf": {"CreationDate": None, "Creator": "quorate", "Producer": None},
    ".png": {"Software": None},
}
"""Ending of the file -> what is written into it beside the picture."""


@dataclass(frozen=True, kw_only=True)
class PicturedRun:
    """What is drawn of a run."""

    view: RunView
    rounds: Sequence[RoundView]
    metrics: Sequence[MetricView]
    round: RoundView | None = None
    """The round whose lanes are drawn; None: the exchanges of a secure run are, and of another run nothing."""
    lanes: LanesView | None = None


@dataclass(frozen=True)
class _Row:
    """A round in the funnel."""

    round: int
    status: str
    selected: int
    reported: int
    counted: int
    late: int
    refused: int
    withdrawn: int
    dropped: int


@dataclass(frozen=True)
class _Exchange:
    round: int
    status: str
    exchange: str
    expected: int
    came: int
    needed: int


def draw(found: PicturedRun) -> Figure:
    """The picture, 12 by 9.4 inches."""
    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplot_mosaic("ab\ncc", height_ratios=(5, 6))
    view = found.view
    figure.suptitle(
        f"{view.run}: {view.status}, {view.rounds_committed} of {view.rounds_wanted} rounds committed",
        fontsize=TITLE,
        fontweight="bold",
    )
    funnel_panel(panels["a"], [_row(one) for one in found.rounds])
    metrics_panel(panels["b"], curves(found.metrics), _watched(view))
    if found.round is not None and found.lanes is not None:
        lanes_panel(panels["c"], found.round, found.lanes)
    elif has_secure_rounds(view):
        exchanges_panel(panels["c"], [one for view in found.rounds for one in _exchanges(view)])
    else:
        panels["c"].set_title("Lanes", fontsize=TITLE)
        note(panels["c"], "no round has selected devices yet")
    return figure


def has_secure_rounds(view: RunView) -> bool:
    """Whether the run's plan has a section ``[secure]``."""
    return view.plan.get("secure") is not None


def write(found: PicturedRun, path: Path) -> None:
    """Draws the picture into a file, in the format of its ending, one of ``FORMATS``. OSError where it cannot be
    written."""
    with rc_context({"svg.hashsalt": "quorate", "svg.fonttype": "none", "pdf.fonttype": 42}):
        draw(found).savefig(path, dpi=DPI, metadata=FORMATS[path.suffix.lower()])


def curves(metrics: Sequence[MetricView]) -> dict[Key, Curve]:
    """(source, name) -> the metric over the versions."""
    points: dict[Key, list[tuple[int, float]]] = {}
    for one in sorted(metrics, key=lambda one: one.version):
        points.setdefault((one.source, one.name), []).append((one.version, one.value))
    return {key: Curve.of(found) for key, found in points.items()}


def _watched(view: RunView) -> str | None:
    section = view.plan.get("finish")
    metric = section.get("metric") if isinstance(section, dict) else None
    return metric if isinstance(metric, str) else None


def _row(view: RoundView) -> _Row:
    funnel = view.funnel
    return _Row(
        view.round, view.status, funnel.selected, max(funnel.reported, view.counted), view.counted, funnel.late,
        funnel.refused, funnel.withdrawn, funnel.dropped,
    )  # fmt: skip


def _exchanges(view: RoundView) -> list[_Exchange]:
    found = view.secure.exchanges if view.secure is not None else ()
    return [_Exchange(view.round, view.status, one.exchange, one.expected, one.came, one.needed) for one in found]
