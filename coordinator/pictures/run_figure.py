"""The picture of one run, by what the API says: the funnel of its rounds, the curves of its metrics, and the lanes of
one round or the exchanges of its secure rounds.

Equal data give equal files: nothing of the time or the machine is written, and text stays text in SVG and PDF.

Lanes say what each device of a round did when, and where the round closed. Of more than 1,000 devices the coordinator
tells counts in parts of the round's time, and those are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from client_sdk.protocol.insight import Lane, LaneEnd, LanesView
from client_sdk.protocol.operators import MetricView, RoundView, RunView
from coordinator.pictures import Curve
from coordinator.pictures.panels import (
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
    ExchangePoint,
    FunnelRow,
    Key,
    exchanges_panel,
    finish,
    funnel_panel,
    legend,
    metrics_panel,
    note,
)

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


def _row(view: RoundView) -> FunnelRow:
    funnel = view.funnel
    return FunnelRow(
        view.round, view.status, funnel.selected, max(funnel.reported, view.counted), view.counted, funnel.late,
        funnel.refused, funnel.withdrawn, funnel.dropped,
    )  # fmt: skip


def _exchanges(view: RoundView) -> list[ExchangePoint]:
    found = view.secure.exchanges if view.secure is not None else ()
    return [ExchangePoint(view.round, view.status, one.exchange, one.expected, one.came, one.needed) for one in found]


STEPS = {"waits": "#E4E4E4", "fetches": SKY, "trains": BLUE, "encodes and sends": ORANGE}
"""What a device does, in order."""
ENDS: dict[LaneEnd, tuple[str, str]] = {
    "late": (ORANGE, "^"), "dropped": (RED, "x"), "withdrawn": (GREEN, "s"), "refused": (PINK, "D"),
    "waiting": (GREY, "|"), "training": (SKY, "|"),
}  # fmt: skip
"""How it ended where it did not report: each has a colour and a shape of its own."""
PARTS: dict[LaneEnd, str] = {
    "reported": BLUE, "late": YELLOW, "refused": PINK, "withdrawn": GREEN, "dropped": GREY, "waiting": SKY,
    "training": SKY,
}  # fmt: skip
MARGIN = 0.015
"""Share of the width to the right of what came last, so that its mark is whole."""
SHOWN_AFTER = 0.5
"""How much longer than the round itself what came after it is shown."""


def lanes_panel(axes: Axes, round: RoundView, found: LanesView) -> None:
    """Draws the lanes of a plain round, or its buckets. ``round``: when it closed."""
    count = f"{found.devices} device" + ("" if found.devices == 1 else "s")
    axes.set_title(f"Round {round.round}: the lanes of {count}", fontsize=TITLE)
    axes.set_xlabel("seconds since the cohort was selected", fontsize=TEXT)
    axes.set_ylabel("devices, in the order in which they ended", fontsize=TEXT)
    if found.buckets:
        began = found.buckets[0].from_at
        handles = _draw_buckets(axes, found, began)
        end = found.buckets[-1].to_at - began
    elif found.lanes:
        began = min(lane.selected_at for lane in found.lanes)
        last = max(lane.ended_at or lane.started_at or began for lane in found.lanes)
        end = max(round.closed_at or last, last) - began
        handles = _draw_lanes(axes, _in_order(found.lanes), began, end)
    else:
        note(axes, "no device was selected")
        return
    if round.closed_at is not None:
        closed = round.closed_at - began
        end = min(end, closed * (1 + SHOWN_AFTER)) if closed > 0 else end
        axes.axvline(closed, color="#222222", linestyle="--", linewidth=1.2)
        handles.append(Line2D([], [], color="#222222", linestyle="--", linewidth=1.2, label="the round closed"))
    finish(axes)
    axes.grid(visible=False)
    axes.set_xlim(0, (end or 1.0) * (1 + MARGIN))
    legend(axes, handles, [str(one.get_label()) for one in handles], columns=len(handles))


def segments(lane: Lane, began: float, end: float) -> list[tuple[float, float]]:
    """From when to when, in seconds after ``began``, the device did each of ``STEPS``. How long it fetched and trained
    is known of devices that reported: of others, what came before they began to train is waiting, and what came after
    is training. ``end``: where the picture ends, for what is not over."""
    selected = lane.selected_at - began
    over = max(selected, end if lane.ended_at is None else lane.ended_at - began)
    started = over if lane.started_at is None else min(lane.started_at - began, over)
    fetching = max(selected, started - (lane.fetch_s or 0.0))
    trained = over if lane.train_s is None else min(over, started + lane.train_s)
    return [(selected, fetching), (fetching, started), (started, trained), (trained, over)]


def _in_order(lanes: Sequence[Lane]) -> list[Lane]:
    """First the lanes of devices that reported, then all others; each part in the order in which their work ended."""
    return sorted(lanes, key=lambda lane: (lane.end != "reported", lane.ended_at or float("inf"), lane.device))


def _draw_lanes(axes: Axes, lanes: Sequence[Lane], began: float, end: float) -> list[Patch | Line2D]:
    parts = [segments(lane, began, end) for lane in lanes]
    for at, colour in enumerate(STEPS.values()):
        boxes = [
            [(part[at][0], row - 0.4), (part[at][0], row + 0.4), (part[at][1], row + 0.4), (part[at][1], row - 0.4)]
            for row, part in enumerate(parts, 1)
            if part[at][1] > part[at][0]
        ]
        axes.add_collection(PolyCollection(boxes, facecolors=colour, edgecolors="none"))
    handles: list[Patch | Line2D] = [Patch(color=colour, label=name) for name, colour in STEPS.items()]
    counts = Counter(lane.end for lane in lanes)
    for name, (colour, marker) in ENDS.items():
        rows = [row for row, lane in enumerate(lanes, 1) if lane.end == name]
        if not rows:
            continue
        label = f"{name} ({counts[name]})"
        axes.scatter([parts[row - 1][-1][1] for row in rows], rows, color=colour, marker=marker, s=14, zorder=3)
        handles.append(Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=5, label=label))
    axes.set_ylim(len(lanes) + 0.5, 0.5)
    return handles


def _draw_buckets(axes: Axes, found: LanesView, began: float) -> list[Patch | Line2D]:
    axes.set_ylabel("devices that ended in this part of the time", fontsize=TEXT)
    left = np.array([one.from_at - began for one in found.buckets])
    width = np.array([one.to_at - one.from_at for one in found.buckets])
    base = np.zeros(len(left))
    handles: list[Patch | Line2D] = []
    for name, colour in PARTS.items():
        count = np.array([one.ends.get(name, 0) for one in found.buckets], np.float64)
        if count.any():
            axes.bar(left, count, width, bottom=base, align="edge", color=colour, linewidth=0)
            handles.append(Patch(color=colour, label=f"{name} ({count.sum():.0f})"))
            base += count
    return handles
