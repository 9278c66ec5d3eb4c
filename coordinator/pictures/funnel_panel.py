"""The panel of the funnel: what became of the devices of each round's cohort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes

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

BARS = 60
"""The most rounds that are drawn as bars; more are drawn as areas."""


class FunnelRow(Protocol):
    """One round: how many of its selected devices ended how."""

    @property
    def round(self) -> int: ...
    @property
    def status(self) -> str:
        """open | committed | abandoned."""

    @property
    def selected(self) -> int: ...
    @property
    def reported(self) -> int: ...
    @property
    def counted(self) -> int:
        """Of those that reported, the ones that are in the model."""

    @property
    def late(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def withdrawn(self) -> int: ...
    @property
    def dropped(self) -> int: ...


def funnel_panel(axes: Axes, rounds: Sequence[FunnelRow]) -> None:
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
        if len(rounds) <= BARS:
            axes.bar(numbers, heights[place], bottom=low, width=0.8, color=colour, label=name, linewidth=0)
        else:
            axes.stairs(tops[place], edges, baseline=low, fill=True, color=colour, label=name, linewidth=0)
    abandoned = [row.round for row in rounds if row.status == "abandoned"]
    most = max(float(tops[-1].max()), 1.0)
    if abandoned:
        size = 28 if len(rounds) <= BARS else 12
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
