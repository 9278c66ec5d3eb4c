"""Draws the metrics of the model over its versions, by source.

Shares of 1 (accuracies) are on the left axis, everything else (losses) on the right one, a few metrics on each: the
metric of the plan's ``finish`` first, then the accuracy and the loss. A band shows how the first metric of an axis is
spread over clients, and thin lines show classes of devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from client_sdk.metrics import UNDEFINED
from coordinator.pictures import Curve
from coordinator.pictures.panel import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, TEXT, TITLE, finish, legend, note

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
