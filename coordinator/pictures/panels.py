"""The panels of pictures, and what all share: colours, ticks, legends, and a note where there is nothing to draw.

funnel      what became of the devices of each round's cohort
exchanges   how many devices came to each exchange of secure rounds, and how many it took. A round is one line across
            the five exchanges. A line that falls below the red marks is of a round, or an attempt, that could not go on
metrics     the metrics of the model over its versions, by source. Shares of 1 (accuracies) are on the left axis,
            everything else (losses) on the right one, a few metrics on each: the metric of the plan's ``finish`` first,
            then the accuracy and the loss. A band shows how the first metric of an axis is spread over clients, and
            thin lines show classes of devices

All use matplotlib's object interface only. Colours are Okabe and Ito's (2008), which people with any colour vision can
distinguish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, groupby
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from client_sdk.metrics import UNDEFINED
from client_sdk.protocol.operators import EXCHANGES
from coordinator.pictures import Curve

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


BARS = 60
"""The most rounds that are drawn as bars; more are drawn as areas."""


class FunnelRow(NamedTuple):
    """One round: how many of its selected devices ended how."""

    round: int
    status: str
    """open | committed | abandoned."""
    selected: int
    reported: int
    counted: int
    """Of those that reported, the ones that are in the model."""
    late: int
    refused: int
    withdrawn: int
    dropped: int


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


_STATUSES = {"committed": BLUE, "abandoned": ORANGE, "open": SKY}
_MARK = 0.32
"""Half of the width of a mark."""


class ExchangePoint(NamedTuple):
    """One exchange of the last attempt of a secure round: of its devices ``expected`` could come, ``came`` did, and it
    takes ``needed``."""

    round: int
    status: str
    """Of the round: open | committed | abandoned."""
    exchange: str
    expected: int
    came: int
    needed: int


def exchanges_panel(axes: Axes, found: Sequence[ExchangePoint]) -> None:
    """Draws one line for each round, and the most that each exchange took as a mark."""
    axes.set_title("Secure rounds: devices in each exchange", fontsize=TITLE)
    axes.set_xlabel("exchange, of the last attempt of a round", fontsize=TEXT)
    axes.set_ylabel("devices", fontsize=TEXT)
    if not found:
        note(axes, "no exchange yet")
        return
    rounds = [list(parts) for _, parts in groupby(found, lambda one: one.round)]
    faint = max(0.15, 1 / len(rounds) ** 0.5)
    for parts in rounds:
        places = [EXCHANGES.index(one.exchange) for one in parts]
        came = [one.came for one in parts]
        axes.plot(places, came, "o-", color=_STATUSES[parts[0].status], alpha=faint, linewidth=1.4, markersize=4)
    for place, name in enumerate(EXCHANGES):
        needed = [one.needed for one in found if one.exchange == name]
        if needed:
            axes.hlines(max(needed), place - _MARK, place + _MARK, color=RED, linewidth=2.0)
    statuses = [status for status in _STATUSES if any(one.status == status for one in found)]
    handles = [Line2D([], [], color=_STATUSES[status], marker="o", markersize=4) for status in statuses]
    handles.append(Line2D([], [], color=RED, linewidth=2.0))
    finish(axes)
    axes.xaxis.set_major_locator(FixedLocator(range(len(EXCHANGES))))
    axes.set_xticklabels(EXCHANGES)
    axes.set_xlim(-0.5, len(EXCHANGES) - 0.5)
    axes.set_ylim(0, 1.06 * max(max(one.expected, one.needed) for one in found))
    axes.axhline(0, color=GREY, linewidth=0.8)
    legend(axes, handles, [*(f"{status} round" for status in statuses), "needed"], columns=2)


Key = tuple[str, str]
"""(source, name)."""

_CENTRAL, _CLIENTS, _LOW, _HIGH, _CLASS = "evaluator", "clients", "clients.p10", "clients.p90", "class."
_COLOURS = {_CENTRAL: BLUE, _CLIENTS: GREEN, "devices": ORANGE, "training": GREY}
_MORE = (PINK, SKY, RED, "#444444")
"""Of classes and of other sources, in order."""
_STYLES = ("-", "--", ":", "-.")
_NAMES = 2
"""Metrics on one axis."""
_LEGEND = 12


def metrics_panel(axes: Axes, found: Mapping[Key, Curve], watched: str | None) -> None:
    """Draws it. ``watched``: the metric of the plan's ``finish``."""
    axes.set_title("Metrics of the model", fontsize=TITLE)
    axes.set_xlabel("version (committed rounds)", fontsize=TEXT)
    curves = {key: curve for key, curve in found.items() if not key[1].endswith(UNDEFINED)}
    if not curves:
        note(axes, "no metric yet")
        return
    lossy = {name for (_, name), curve in curves.items() if not _is_share(name, curve)}
    names = sorted({name for _, name in curves}, key=lambda name: _rank(name, watched))
    groups = [[name for name in names if (name in lossy) == right] for right in (False, True)]
    places = [axes, axes.twinx()] if all(groups) else [axes, axes]
    drawn: list[Any] = []
    styles = cycle(_STYLES)
    for where, group in zip(places, groups, strict=True):
        if group:
            where.set_ylabel(", ".join(group[:_NAMES]), fontsize=TEXT)
            for name in group[:_NAMES]:
                lines = _metric(where, curves, name, next(styles), first=name == group[0])
                drawn += [one for one in lines if where is axes or not _of_class(one)]
            finish(where, whole=False)
    first, last = min(curve.versions[0] for curve in curves.values()), max(c.versions[-1] for c in curves.values())
    margin = max(0.03 * (last - first), 0.03 if last > first else 0.5)
    axes.set_xlim(first - margin, last + margin)
    if places[1] is not axes:
        places[1].spines["right"].set_visible(True)
        places[1].grid(visible=False)
    _legends(axes, drawn, [name for group in groups for name in group[_NAMES:]])


def _rank(name: str, watched: str | None) -> tuple[bool, bool, str]:
    return name != watched, name not in ("accuracy", "loss"), name


def _metric(axes: Axes, curves: Mapping[Key, Curve], name: str, style: str, *, first: bool) -> list[Any]:
    """One metric by all its sources. Bands and classes are drawn only for the ``first`` metric of an axis."""
    sources = [source for source, named in curves if named == name]
    classes = [source for source in sources if source.startswith(_CLASS)]
    banded = _CLIENTS in sources
    plain = [one for one in sources if one not in classes and not (banded and one in (_LOW, _HIGH))]
    plain.sort(key=lambda one: ([*_COLOURS].index(one) if one in _COLOURS else len(_COLOURS), one))
    others = [one for one in plain if one not in _COLOURS]
    drawn: list[Any] = []
    for source in plain:
        colour = _COLOURS.get(source) or _MORE[others.index(source) % len(_MORE)]
        width = 0.9 if source == "training" else 1.8
        drawn += _line(axes, curves[source, name], f"{name}, {source}", style, colour, width)
    if not first:
        return drawn
    if banded and _LOW in sources:
        drawn.append(_band(axes, curves, name, high=_HIGH in sources))
    few = len(classes) <= len(_MORE)
    for place, source in enumerate(classes):
        label = f"{name}, {source}" if few else f"{name}, each of {len(classes)} classes" if not place else "_"
        lines = _line(axes, curves[source, name], label, style, _MORE[place] if few else SKY, 0.9, 0.8)
        drawn += lines if label != "_" else []
    return drawn


def _line(
    axes: Axes, curve: Curve, label: str, style: str, colour: str, width: float, alpha: float = 1.0
) -> list[Line2D]:
    marker = "o" if len(curve.versions) <= 12 else None
    return axes.plot(
        curve.versions, curve.values, style,
        color=colour, linewidth=width, alpha=alpha, marker=marker, markersize=3, label=label,
    )  # fmt: skip


def _band(axes: Axes, curves: Mapping[Key, Curve], name: str, *, high: bool) -> Any:
    """A band from the 10th percentile of the clients to the 90th; to the mean where there is no 90th."""
    low, top = curves[_LOW, name], curves[_HIGH if high else _CLIENTS, name]
    versions, at_low, at_top = np.intersect1d(low.versions, top.versions, return_indices=True)
    label = f"{name}, {_LOW} to {'p90' if high else 'mean'}"
    return axes.fill_between(
        versions, low.values[at_low], top.values[at_top], color=GREEN, alpha=0.18, linewidth=0, label=label
    )


def _legends(axes: Axes, drawn: list[Any], left_out: list[str]) -> None:
    """The legend: classes last, and only those of the left axis, since both axes give a class the same colour."""
    drawn.sort(key=_of_class)
    handles, labels = drawn[:_LEGEND], [str(one.get_label()) for one in drawn[:_LEGEND]]
    notes = [f"and {len(drawn) - _LEGEND} more"] if len(drawn) > _LEGEND else []
    if left_out:
        more = f" and {len(left_out) - 2} more" if len(left_out) > 2 else ""
        notes.append(f"not drawn: {', '.join(left_out[:2])}{more}")
    blank = [Line2D([], [], linestyle="none") for _ in notes]
    legend(axes, handles + blank, labels + notes, columns=2)


def _of_class(drawn: Any) -> bool:
    label = str(drawn.get_label())
    return label.endswith(" classes") or f", {_CLASS}" in label


def _is_share(name: str, curve: Curve) -> bool:
    """Whether the metric is a share of 1, such as an accuracy."""
    lossy = any(word in name.lower() for word in ("loss", "perplexity", "entropy"))
    return not lossy and bool(np.all((curve.values >= 0) & (curve.values <= 1)))
