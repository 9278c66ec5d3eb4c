"""A history as HTML for a notebook: a header, the picture, the last rounds, and what went wrong.

All texts from the store are escaped. Colours are those of the notebook's own theme.
"""

from __future__ import annotations

import base64
from html import escape
from io import BytesIO

from simulation.history.recorded_run import RecordedRun
from simulation.history.tables import COLUMNS, cells, newest_scores, reasons_of, standing, treatment_of

_LAST = 5
_WITH_EXCHANGES = "Funnel, metrics, participation and exchanges of secure rounds"
_CELL = "text-align:{side};padding:0.15em 0.7em;white-space:nowrap"


def page(history: RecordedRun) -> str:
    """The whole representation; without the picture where matplotlib is not installed."""
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
    image = BytesIO()
    draw(history).savefig(image, format="png", dpi=110)
    content = base64.b64encode(image.getvalue()).decode()
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
