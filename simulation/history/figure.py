"""A history as one picture of three panels: who got how far in each round, the metrics, how often each device counted.

matplotlib's object interface only: no pyplot, no global state, no display. Colours are Okabe and Ito's (2008), which
people with any colour vision tell apart. Knows no store: it draws what a ``History`` says.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simulation.history.folder import HistoryError
from simulation.history.tables import standing

if TYPE_CHECKING:
    from simulation.history.history import Curve, History
    from simulation.history.rounds import Round

BLUE, SKY, ORANGE, YELLOW, RED, GREEN, PINK = (
    "#0072B2", "#56B4E9", "#E69F00", "#F0E442", "#D55E00", "#009E73", "#CC79A7",
)  # fmt: skip
GREY = "#B8B8B8"
_SOURCES = {
    "evaluator": BLUE,
    "clients": GREEN,
    "clients.p10": GREEN,
    "clients.p90": GREEN,
    "devices": ORANGE,
    "training": GREY,
}
_MORE = (PINK, RED, SKY, YELLOW)
_STYLES = ("-", "--", ":", "-.")
_BARS = 60
"""Up to so many rounds are drawn as bars; more become areas."""
_LEGEND = 8


class Picture(Figure):
    """A figure that a notebook shows when it is the last line of a cell."""

    def _repr_png_(self) -> bytes:
        kept = BytesIO()
        self.savefig(kept, format="png", dpi=110)
        return kept.getvalue()


def draw(history: History) -> Picture:
    """The picture; 13 by 4.4 inches."""
    figure = Picture(figsize=(13, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    funnel, metrics, devices = figure.subplots(1, 3, width_ratios=(5, 5, 4))
    figure.suptitle(f"{history.run}: {standing(history)}", fontsize=11, fontweight="bold")
    _funnel(funnel, history.rounds)
    _metrics(metrics, history)
    _participation(devices, history)
    return figure


def write(figure: Figure, path: Path) -> None:
    """Writes the picture in the format of the path's ending. HistoryError when that cannot be done."""
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise HistoryError(f"The picture cannot be written to {path}: {error}") from None


# ------------------------------------------------------------ funnel


def _funnel(axes: Axes, rounds: tuple[Round, ...]) -> None:
    """What became of the devices of each cohort: the parts are stacked up to the number selected."""
    axes.set_title("Funnel: what became of each cohort", fontsize=10)
    axes.set_xlabel("round")
    axes.set_ylabel("devices")
    if not rounds:
        _say(axes, "no round yet")
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
    _finish(axes)
    _legend(axes, *axes.get_legend_handles_labels(), columns=4)


# ------------------------------------------------------------ metrics


def _metrics(axes: Axes, history: History) -> None:
    """Shares (accuracies) on the left axis, everything else (losses) on the right one."""
    axes.set_title("Metrics of the model", fontsize=10)
    axes.set_xlabel("version (committed rounds)")
    curves = history.curves
    if not curves:
        _say(axes, "no metric yet")
        return
    shares = {key for key, curve in curves.items() if _is_share(key[1], curve)}
    groups = [sorted(shares), sorted(curves.keys() - shares)]
    drawn = [(axes, groups[0])] if groups[0] else []
    if groups[1]:
        other = axes if not groups[0] else axes.twinx()
        drawn.append((other, groups[1]))
    names = [name for _, keys in drawn for name in dict.fromkeys(name for _, name in keys)]
    lines: list[Any] = []
    for where, keys in drawn:
        where.set_ylabel(", ".join(dict.fromkeys(name for _, name in keys)))
        for source, name in keys:
            if source in ("clients.p10", "clients.p90") and ("clients", name) in curves:
                continue  # an edge of a band
            lines += _curve(where, curves[source, name], source, name, _STYLES[names.index(name) % len(_STYLES)])
        lines += _spread(where, curves, keys)
    first, last = min(curve.versions[0] for curve in curves.values()), max(c.versions[-1] for c in curves.values())
    axes.set_xlim(first - 0.03 * max(last - first, 1), last + 0.03 * max(last - first, 1))
    for where, _ in drawn:
        _finish(where, whole=False)
    if len(drawn) > 1:
        drawn[-1][0].spines["right"].set_visible(True)
        drawn[-1][0].grid(visible=False)
    lines.sort(key=lambda line: "class." in str(line.get_label()))
    _legend(axes, lines[:_LEGEND], [str(line.get_label()) for line in lines[:_LEGEND]], columns=2)


def _curve(axes: Axes, curve: Curve, source: str, name: str, style: str) -> list[Any]:
    of_class = source.startswith("class.")
    colour = _SOURCES.get(source) or _MORE[sum(source.encode()) % len(_MORE)]
    thin = of_class or source == "training"
    return axes.plot(
        curve.versions,
        curve.values,
        style,
        color=colour,
        linewidth=0.9 if thin else 1.8,
        alpha=0.7 if of_class else 1.0,
        marker="o" if len(curve.versions) <= 12 else None,
        markersize=3,
        label=f"{name}, {source}",
    )


def _spread(axes: Axes, curves: Any, keys: list[tuple[str, str]]) -> list[Any]:
    """A band from the 10th percentile of the clients to the 90th; to the mean where that is not there."""
    bands: list[Any] = []
    for source, name in keys:
        if source != "clients.p10" or ("clients", name) not in curves:
            continue
        low, to = curves[source, name], curves.get(("clients.p90", name))
        high = curves["clients", name] if to is None else to
        versions, at_low, at_high = np.intersect1d(low.versions, high.versions, return_indices=True)
        bands.append(
            axes.fill_between(
                versions,
                low.values[at_low],
                high.values[at_high],
                color=GREEN,
                alpha=0.18,
                linewidth=0,
                label=f"{name}, clients: 10th percentile to {'mean' if to is None else '90th'}",
            )
        )
    return bands


def _is_share(name: str, curve: Curve) -> bool:
    """Whether the metric is a share of 1, such as an accuracy."""
    lossy = any(word in name.lower() for word in ("loss", "perplexity", "entropy"))
    return not lossy and bool(np.all((curve.values >= 0) & (curve.values <= 1)))


# ------------------------------------------------------------ participation


def _participation(axes: Axes, history: History) -> None:
    """Devices in order of how often they counted."""
    axes.set_title("Participation", fontsize=10)
    axes.set_xlabel("devices, the most frequent first")
    axes.set_ylabel("rounds in which the device counted")
    counts = np.sort(np.array(list(history.participation.values()), np.int64))[::-1]
    if not len(counts):
        _say(axes, "no device has counted yet")
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
    _finish(axes)
    _legend(axes, *axes.get_legend_handles_labels(), columns=1)


# ------------------------------------------------------------ common


def _finish(axes: Axes, *, whole: bool = True) -> None:
    """Ticks, grid and frame. ``whole``: the vertical axis counts."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.yaxis.set_major_locator(MaxNLocator(integer=whole, nbins=6))
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(axes: Axes, handles: list[Any], labels: list[str], columns: int) -> None:
    """Below the panel, so that it covers nothing."""
    axes.legend(
        handles,
        labels,
        fontsize=7.5,
        ncols=columns,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.15),
        frameon=False,
        columnspacing=1.2,
        handlelength=1.8,
    )


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="#666666")
    axes.set_xticks([])
    axes.set_yticks([])
