"""The panel of one round's lanes: what each of its devices did when, and where the round closed.

Of more than 1,000 devices the coordinator tells counts in parts of the round's time, and those are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from client_sdk.protocol.insight import Lane, LaneEnd, LanesView
from client_sdk.protocol.operators import RoundView
from coordinator.pictures.panel import (
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
