"""The panel of the exchanges of secure rounds: how many devices came to each, and how many it took.

A round is one line across the five exchanges. A line that falls below the red marks is of a round, or an attempt, that
could not go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from client_sdk.protocol.operators import EXCHANGES
from coordinator.pictures.panel import BLUE, GREY, ORANGE, RED, SKY, TEXT, TITLE, finish, legend, note

_COLOURS = {"committed": BLUE, "abandoned": ORANGE, "open": SKY}
_MARK = 0.32
"""Half of the width of a mark."""


class ExchangePoint(Protocol):
    """One exchange of the last attempt of a secure round: of its devices ``expected`` could come, ``came`` did, and it
    takes ``needed``."""

    @property
    def round(self) -> int: ...
    @property
    def status(self) -> str:
        """Of the round: open | committed | abandoned."""

    @property
    def exchange(self) -> str: ...
    @property
    def expected(self) -> int: ...
    @property
    def came(self) -> int: ...
    @property
    def needed(self) -> int: ...


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
        axes.plot(places, came, "o-", color=_COLOURS[parts[0].status], alpha=faint, linewidth=1.4, markersize=4)
    for place, name in enumerate(EXCHANGES):
        needed = [one.needed for one in found if one.exchange == name]
        if needed:
            axes.hlines(max(needed), place - _MARK, place + _MARK, color=RED, linewidth=2.0)
    statuses = [status for status in _COLOURS if any(one.status == status for one in found)]
    handles = [Line2D([], [], color=_COLOURS[status], marker="o", markersize=4) for status in statuses]
    handles.append(Line2D([], [], color=RED, linewidth=2.0))
    finish(axes)
    axes.xaxis.set_major_locator(FixedLocator(range(len(EXCHANGES))))
    axes.set_xticklabels(EXCHANGES)
    axes.set_xlim(-0.5, len(EXCHANGES) - 0.5)
    axes.set_ylim(0, 1.06 * max(max(one.expected, one.needed) for one in found))
    axes.axhline(0, color=GREY, linewidth=0.8)
    legend(axes, handles, [*(f"{status} round" for status in statuses), "needed"], columns=2)
