"""The views of runs and rounds as tables and lines, and times as text.

A table is aligned lines of text in a file or a pipe; on a terminal rich draws it, which may be too narrow for all
columns. Then the words of the last column go below the table, and columns that hold nothing, or that matter least, are
left out and named. In a file nothing is ever left out.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from client_sdk.protocol.names import Message
from client_sdk.protocol.operators import FlowerSummary, RoundView, RunView
from client_sdk.terminal import cell, say, say_json, say_table

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


COULD_FORGE = "this coordinator has the authority's key itself (--dev-authority), so it could make devices up"


def print_runs(runs: Sequence[RunView], *, as_json: bool) -> None:
    """One line for each run."""
    show_table(runs_table(runs), runs, as_json=as_json)
    if not as_json:
        _say_who_could_forge([f"run {view.run}" for view in runs if view.authority == "inside"])


def runs_table(runs: Iterable[RunView]) -> TextTable:
    """One row for each run."""
    columns = ("run", "status", "phase", "round", "committed", "selected", "reported", "version", "why")
    rows = [
        (
            view.title,
            view.status,
            view.phase,
            view.round,
            None if view.flower is not None else f"{view.rounds_committed} of {view.rounds_wanted}",
            view.funnel.selected,
            view.funnel.reported,
            None if view.flower is not None else view.version,
            f"not handled: {view.trouble}"
            if view.trouble
            else "; ".join(filter(None, (view.reason, view.stalled))) or None,
        )
        for view in runs
    ]
    empty = "No runs yet. Start one: quorate run create plan.toml --init model.safetensors"
    return TextTable(columns, rows, empty, words="why", least=("version", "selected", "reported", "phase"))


def print_run(view: RunView, *, plan: bool = False) -> None:
    """A run in a few lines. ``plan``: with its plan as JSON."""
    funnel = view.funnel
    say(f"{view.title} is {view.status}" + (f": {view.reason}" if view.reason else ""))
    if view.trouble:
        say(f"  not handled {view.trouble}")
    if view.exhausted:
        say(f"  exhausted   {view.exhausted}")
    if view.devices_spent:
        say(f"  spent       {who_is_spent(view)}")
    for device, until in view.barred.items():
        say(f"  barred      {device}, until round {until}")
    for device, others in view.disputes.items():
        say(f"  in dispute  {device}, about shares with {others} {'other' if others == 1 else 'others'}")
    for device, rounds in view.suspicion.items():
        say(f"  suspected   {device} rests in {rounds} of 64 rounds: sums of its groups were bad; good ones end it")
    if (told := view.privacy) is not None:
        spent = f"epsilon {told.epsilon:.3g} of {told.epsilon_planned:.3g} at delta {told.delta:g}"
        say(
            f"  privacy     {spent}: one device has counted in {told.rounds} of the {told.rounds_planned} rounds it may"
        )
        if told.within is not None:
            within = min(1.0, max(0.0, told.within))  # its noise may lead beyond
            say(f"  clip        {told.clip:.4g}; about {within:.0%} of the last updates were within theirs")
        used = f"epsilon {told.ledger_spent:.3g} of {told.ledger_budget:.3g} over its runs"
        say(f"  ledger      {told.ledger}: {used}; room for {told.rounds_left} more of these rounds for that device")
    if view.stalled:
        say(f"  stalled     {view.stalled}")
    for digest in view.damaged:
        say(f"  damaged     {digest}: store its right bytes again")
    for digest in view.repaired:
        say(f"  repaired    {digest} was damaged; its right bytes are stored again")
    if view.flower is not None:
        _print_flower(view, view.flower)
        return
    for device in view.shared_identities:
        say(f"  identity    two processes use that of {device}: its folder was copied")
    where = ", in the datacenter" if view.kind == "datacenter" and view.phase != "idle" else ""
    say(
        f"  rounds      {view.rounds_committed} of {view.rounds_wanted} committed; "
        f"round {view.round} is {view.phase}{where}"
    )
    say(
        f"  devices     {funnel.waiting} waited, {funnel.selected} selected, {funnel.training} training, "
        f"{funnel.reported} reported, {funnel.late} late, {funnel.dropped} dropped, {funnel.withdrawn} withdrawn, "
        f"{funnel.refused} refused"
    )
    say(f"  checkpoint  version {view.version}, {view.checkpoint}")
    say(f"  created     {moment(view.created_at)}" + (f", from {view.origin}" if view.origin else ""))
    if view.authority == "inside":
        say(f"  authority   inside: {COULD_FORGE}")
    if plan:
        say(f"  plan        {view.plan_digest}")
        say(json.dumps(view.plan, indent=2))


def _print_flower(view: RunView, flower: FlowerSummary) -> None:
    funnel = view.funnel
    say(f"  app         {flower.app} {flower.version}, a Flower app: its ServerApp decides about rounds and models")
    say(f"  messages    {flower.messages} pushed, {flower.replies} replies, {flower.errors} errors")
    say(
        f"  round       {view.round} ({view.phase}): {funnel.selected} messages, {funnel.training} delivered, "
        f"{funnel.reported} replies, {funnel.refused} errors, {funnel.dropped} expired"
    )
    say(f"  created     {moment(view.created_at)}")


def who_is_spent(view: RunView) -> str:
    """How many devices can contribute to the run's checkpoint no more, as a clause."""
    return (
        f"{view.devices_spent} of {view.devices_registered} registered devices have signed on this checkpoint, and "
        "contribute to it no more"
    )


def print_rounds(rounds: Sequence[RoundView], *, as_json: bool) -> None:
    """One line for each round."""
    show_table(rounds_table(rounds), rounds, as_json=as_json)
    if not as_json:
        _say_who_could_forge([f"round {view.round}" for view in rounds if view.authority == "inside"])


def rounds_table(rounds: Iterable[RoundView]) -> TextTable:
    """One row for each round."""
    columns = (
        "round", "kind", "status", "selected", "reported", "late", "dropped", "withdrawn", "refused",
        "seconds", "MB in", "why",
    )  # fmt: skip
    rows = [
        (
            view.round,
            view.kind,
            view.status,
            view.funnel.selected,
            view.funnel.reported,
            view.funnel.late,
            view.funnel.dropped,
            view.funnel.withdrawn,
            view.funnel.refused,
            None if view.closed_at is None else f"{view.closed_at - view.opened_at:.1f}",
            f"{view.bytes_in / 1e6:.1f}",
            _why(view),
        )
        for view in rounds
    ]
    empty = "No rounds yet: a round opens when the run is created, and selects devices when they check in."
    least = ("refused", "withdrawn", "late", "kind", "MB in", "dropped", "seconds")
    return TextTable(columns, rows, empty, words="why", least=least)


def _say_who_could_forge(where: Sequence[str]) -> None:
    if where:
        names = where[0] if len(where) == 1 else f"{where[0]} and {len(where) - 1} more"
        say(f"In {names} {COULD_FORGE}.")


def _why(view: RoundView) -> str | None:
    """Why a round has its kind, the progress of its worker, why it ended, and why devices left it."""
    parts = [view.because, f"group {view.group}" if view.group else ""]
    if view.lease is not None:
        metrics = "".join(f", {name} {_number(value)}" for name, value in view.lease.metrics.items())
        parts.append(f"{view.lease.worker} (lease {view.lease.attempt}): step {view.lease.step}{metrics}")
    elif view.kind == "datacenter" and view.status == "open":
        parts.append("no worker has it yet: 'quorate worker list' shows the workers; each one logs what it lacks")
    if view.missed > (view.status == "open"):  # of an open round's first one the reason tells
        often = "once" if view.missed == 1 else f"{view.missed} times, the last time"
        parts.append(f"too few devices {often} at {moment(view.missed_at)}")
    if any(view.staleness[1:]):
        late = ", ".join(f"{count} by {behind}" for behind, count in enumerate(view.staleness) if count and behind)
        parts.append(f"versions behind: {late}")
    treated = [] if view.treatment is None else view.treatment.words(view.funnel.reported)
    return "; ".join(part for part in (*parts, view.reason, *treated, view.departures) if part) or None


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def moment(at: float | None) -> str:
    """Unix seconds as this machine's local time; ``never`` for None."""
    if at is None:
        return "never"
    return datetime.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
