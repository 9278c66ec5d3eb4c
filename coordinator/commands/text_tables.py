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

from client_sdk.protocol.names import Message
from client_sdk.terminal import cell, say_json, say_table

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
class TextTable:
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


def show_table(table: TextTable, found: Sequence[Message] = (), *, as_json: bool = False) -> None:
    """Print the table; with ``as_json`` the messages that it shows in its place."""
    console = terminal()
    if as_json:
        say_json(found)
    elif console is None or not table.rows:
        say_table(table.columns, table.rows, table.empty)
    else:
        console.print(drawn(table, console.width))


def drawn(table: TextTable, width: int) -> RenderableType:
    """The table for a terminal of ``width`` columns."""
    if not table.rows:
        return Text(table.empty)
    cells = [[cell(value) for value in row] for row in table.rows]
    widths = [max(cell_len(name), *(cell_len(row[at]) for row in cells)) for at, name in enumerate(table.columns)]
    named = dict(zip(table.columns, widths, strict=True))
    shown = [name for name in table.columns if name != table.words]
    left_out: list[str] = []
    for name in _from_the_least(table, cells):
        if _total(named, shown) <= width:
            break
        shown.remove(name)
        left_out.append(name)
    beside = bool(table.words) and width - _total(named, shown) - GAP >= min(named[table.words], LEAST_WORDS)
    places = [at for at, name in enumerate(table.columns) if name in shown or (beside and name == table.words)]
    parts: list[RenderableType] = [_table(table, cells, places)]
    if table.words and not beside:
        at = table.columns.index(table.words)
        parts += [_below(f"{table.columns[0]} {row[0]}", row[at]) for row in cells if row[at] != "-"]
    if left_out:
        parts.append(Text(f"Not shown on {width} columns: {', '.join(left_out)}.", style="dim"))
    return Group(*parts)


def _from_the_least(table: TextTable, cells: Sequence[Sequence[str]]) -> list[str]:
    """The columns that may be left out: first those that hold nothing, then what matters least."""
    nothing = [
        name for name in table.least if all(row[table.columns.index(name)] in ("-", "0", "0.0") for row in cells)
    ]
    return nothing + [name for name in table.least if name not in nothing]


def _total(widths: dict[str, int], shown: Sequence[str]) -> int:
    return sum(widths[name] for name in shown) + GAP * (len(shown) - 1)


def _table(table: TextTable, cells: Sequence[Sequence[str]], places: Sequence[int]) -> Table:
    found = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for at in places:
        name = table.columns[at]
        words = name == table.words
        number = not words and all(_is_number(row[at]) for row in cells)
        found.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in cells:
        shown = ("" if table.columns[at] == table.words and row[at] == "-" else row[at] for at in places)
        found.add_row(*(Text(text, style=STYLES.get(text, "")) for text in shown))
    return found


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace(" of ", "").isdecimal()


def _below(whose: str, words: str) -> RenderableType:
    return Padding(Text.assemble((f"{whose}: ", "bold"), words, overflow="fold"), (0, 0, 0, 2))
