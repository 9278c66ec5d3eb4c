"""The parts that all panels of a picture share: colours, ticks, legends, and a note where there is nothing to draw.

It uses matplotlib's object interface only. Colours are Okabe and Ito's (2008), which people with any colour vision can
distinguish.
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

BLUE, SKY, ORANGE, YELLOW, RED, GREEN, PINK = (
    "#0072B2", "#56B4E9", "#E69F00", "#F0E442", "#D55E00", "#009E73", "#CC79A7",
)  # fmt: skip
GREY = "#B8B8B8"
TITLE, TEXT = 12.0, 10.0
"""Sizes of letters in points, for a figure of 12 inches: on a page of 850 pixels they are as large as its text."""


def finish(axes: Axes, *, whole: bool = True) -> None:
    """Sets ticks, grid and frame. ``whole``: the vertical axis has whole numbers."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(integer=whole, nbins=6, min_n_ticks=1 if whole else 2))
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=TEXT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend(axes: Axes, handles: list[Any], labels: list[str], columns: int) -> None:
    """Draws the legend below the panel, so that it covers nothing."""
    axes.legend(
        handles,
        labels,
        fontsize=TEXT,
        ncols=columns,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
        frameon=False,
        columnspacing=1.0,
        handlelength=1.4,
    )


def note(axes: Axes, text: str) -> None:
    """Writes a text in the middle of an empty panel."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="#666666")
    axes.set_xticks([])
    axes.set_yticks([])
