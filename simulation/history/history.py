"""``History``: a recorded run with methods to open and save it, for tables, pictures, a summary and HTML.

pandas and matplotlib are imported when they are first needed.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from coordinator.blobs import Missing
from simulation.history import folder as folders
from simulation.history.folder import HistoryError
from simulation.history.ledger import copy_run
from simulation.history.recorded_run import RecordedRun
from simulation.history.tables import (
    COLUMNS,
    Table,
    cells,
    frame,
    headline,
    newest_scores,
    reasons_of,
    standing,
    summary,
    treatment_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class History(RecordedRun):
    """One run of a store and its blobs, which the caller closes; ``open`` reads one from a folder."""

    _close: Callable[[], None] | None = None
    """Closes what ``open`` has opened."""

    @classmethod
    def open(cls, folder: str | os.PathLike[str], run: str | None = None) -> History:
        """The run in a data folder of a coordinator or a simulation; a coordinator may use the folder at the same time.

        ``run`` may be left out where there is only one. HistoryError, in one sentence, where there is no such folder
        or run, or where there are several runs and none is named.
        """
        path = Path(folder)
        store, blobs = folders.reading(path)
        try:
            history = cls(store, blobs, run, place=path)
        except BaseException:
            store.close()
            raise
        history._close = store.close
        return history

    def close(self) -> None:
        """Closes the database of a history that was opened from a folder; does nothing for others."""
        if self._close is not None:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "A History is a view of a store: save(folder) keeps it, and History.open(folder) reads it there."
        )

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Stores the run in a coordinator's data folder, made where there is none; returns the folder.

        ``quorate serve --data`` continues the run from it and ``History.open`` reads it. A second call writes only what
        is new. HistoryError where a coordinator serves the folder, or where it holds another run of this name.
        """
        path = Path(folder)
        with folders.writing(path) as (store, blobs):
            try:
                copy_run(self._store, store, self.run, blobs=(self._blobs, blobs))
            except Missing:
                raise HistoryError(
                    f"Run {self.run} cannot be saved, since its older checkpoints are not stored any more: simulate() "
                    'keeps all of them with folder=, or with keep_checkpoints="all".'
                ) from None
        return path

    # ------------------------------------------------------------ for people

    def to_pandas(self, what: Table = "rounds") -> DataFrame:
        """A table: ``rounds``, ``exchanges`` (of secure rounds), ``metrics``, ``participation``, ``withdrawals`` or
        ``events``. Times are seconds since the run began."""
        return frame(self, self._store, what)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """The funnel of each round, the curves of the metrics, how often each device counted, and with secure rounds
        how many devices came to each exchange.

        ``path``: the file to which it is also written, in the format of its ending (.png, .svg, .pdf). Needs no
        display.
        """
        try:
            from simulation.history.figure import draw, write
        except ModuleNotFoundError:
            raise HistoryError("Pictures need matplotlib: pip install 'quorate[simulation]'.") from None

        figure = draw(self)
        if path is not None:
            write(figure, Path(path))
        return figure

    def summary(self, last: int = 10) -> str:
        """The last rounds as a text table, with a header, the newest scores, and why rounds were abandoned and devices
        withdrew."""
        return summary(self, last)

    def _repr_html_(self) -> str:
        return page(self)

    def __repr__(self) -> str:
        return f"<History {headline(self)}>"

    def __str__(self) -> str:
        return headline(self)


# ------------------------------------------------------------ HTML for a notebook
# All texts from the store are escaped. Colours are those of the notebook's own theme.

_LAST = 5
_WITH_EXCHANGES = "Funnel, metrics, participation and exchanges of secure rounds"
_CELL = "text-align:{side};padding:0.15em 0.7em;white-space:nowrap"


def page(history: RecordedRun) -> str:
    """A history as HTML for a notebook: a header, the picture, the last rounds, and what went wrong; without the
    picture where matplotlib is not installed."""
    scores = "; ".join(newest_scores(history.curves))
    head = (
        f"<p><b>{escape(history.run)}</b>: {escape(standing(history))}{'<br>' + escape(scores) if scores else ''}</p>"
    )
    return f"<div>{head}{_picture(history)}{_table(history)}{_reasons(history)}</div>"


def _picture(history: RecordedRun) -> str:
    try:
        from simulation.history.figure import draw
    except ModuleNotFoundError:
        return ""
    content = base64.b64encode(draw(history)._repr_png_()).decode()
    panels = "Funnel, metrics and participation" if history.plan.secure is None else _WITH_EXCHANGES
    description = f"{panels} of run {history.run}"
    return f'<img alt="{escape(description)}" style="max-width:100%" src="data:image/png;base64,{content}">'


def _table(history: RecordedRun) -> str:
    rounds = history.rounds[-_LAST:]
    if not rounds:
        return "<p>No round has been opened yet.</p>"
    sides = ["left" if name in ("status", "training") else "right" for name in COLUMNS]
    head = _line("th", list(COLUMNS), sides)
    body = "".join(_line("td", cells(row), sides) for row in rounds)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _line(tag: str, texts: list[str], sides: list[str]) -> str:
    shown = (
        f'<{tag} style="{_CELL.format(side=side)}">{escape(text)}</{tag}>'
        for text, side in zip(texts, sides, strict=True)
    )
    return f"<tr>{''.join(shown)}</tr>"


def _reasons(history: RecordedRun) -> str:
    html = ""
    for title, reasons in (*treatment_of(history), *reasons_of(history)):
        lines = "".join(f"<li>{escape(reason)}: {escape(when)}</li>" for reason, when in reasons)
        html += f"<p>{title}</p><ul>{lines}</ul>"
    return html
