"""A table as the commands show it: aligned lines of text in a file or a pipe, by rich on a terminal.

A terminal may be too narrow for all columns. Then the words of the last column go below the table, and columns that
hold nothing, or that matter least, are left out and named. In a file nothing is ever left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from client_sdk.terminal import cell, say_table

GAP = 2
"""Columns between two cells."""
LEAST_WORDS = 24
"""The fewest columns that words are given beside the rest of a row."""
STYLES = {
    "running": "green", "finished": "bold green", "paused": "yellow", "stopped": "red",
    "committed": "green", "open": "cyan", "abandoned": "red",
    "waiting": "green", "assigned": "cyan", "away": "dim", "left": "dim",
}  # fmt: skip
"""Words of states, which a colour only underlines."""


@dataclass(frozen=True)
class Sheet:
    """A table with a line for each row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str
    """What is said where there is no row."""
    words: str = ""
    """The column of sentences, of any length: the last one."""
    least: Collection[str] = ()
    """Columns that a narrow terminal may leave out, what matters least first."""


def terminal() -> Console | None:
    """The terminal on standard output; None where the output goes elsewhere, or the terminal cannot move its cursor."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return None
    return Console(highlight=False)


def show_sheet(sheet: Sheet) -> None:
    """Print the sheet."""
    console = terminal()
    if console is None or not sheet.rows:
        say_table(sheet.columns, sheet.rows, sheet.empty)
    else:
        console.print(drawn(sheet, console.width))


def drawn(sheet: Sheet, width: int) -> RenderableType:
    """The sheet for a terminal of ``width`` columns."""
    if not sheet.rows:
        return Text(sheet.empty)
    cells = [[cell(value) for value in row] for row in sheet.rows]
    widths = [max(cell_len(name), *(cell_len(row[at]) for row in cells)) for at, name in enumerate(sheet.columns)]
    named = dict(zip(sheet.columns, widths, strict=True))
    shown = [name for name in sheet.columns if name != sheet.words]
    left_out: list[str] = []
    for name in _from_the_least(sheet, cells):
        if _total(named, shown) <= width:
            break
        shown.remove(name)
        left_out.append(name)
    beside = bool(sheet.words) and width - _total(named, shown) - GAP >= min(named[sheet.words], LEAST_WORDS)
    places = [at for at, name in enumerate(sheet.columns) if name in shown or (beside and name == sheet.words)]
    parts: list[RenderableType] = [_table(sheet, cells, places)]
    if sheet.words and not beside:
        at = sheet.columns.index(sheet.words)
        parts += [_below(f"{sheet.columns[0]} {row[0]}", row[at]) for row in cells if row[at] != "-"]
    if left_out:
        parts.append(Text(f"Not shown on {width} columns: {', '.join(left_out)}.", style="dim"))
    return Group(*parts)


def _from_the_least(sheet: Sheet, cells: Sequence[Sequence[str]]) -> list[str]:
    """The columns that may be left out: first those that hold nothing, then what matters least."""
    nothing = [
        name for name in sheet.least if all(row[sheet.columns.index(name)] in ("-", "0", "0.0") for row in cells)
    ]
    return nothing + [name for name in sheet.least if name not in nothing]


def _total(widths: dict[str, int], shown: Sequence[str]) -> int:
    return sum(widths[name] for name in shown) + GAP * (len(shown) - 1)


def _table(sheet: Sheet, cells: Sequence[Sequence[str]], places: Sequence[int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for at in places:
        name = sheet.columns[at]
        words = name == sheet.words
        number = not words and all(_is_number(row[at]) for row in cells)
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in cells:
        shown = ("" if sheet.columns[at] == sheet.words and row[at] == "-" else row[at] for at in places)
        table.add_row(*(Text(text, style=STYLES.get(text, "")) for text in shown))
    return table


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace(" of ", "").isdecimal()


def _below(whose: str, words: str) -> RenderableType:
    return Padding(Text.assemble((f"{whose}: ", "bold"), words, overflow="fold"), (0, 0, 0, 2))
