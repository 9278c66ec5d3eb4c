"""One run on a terminal: how far it is, its round now, its scores, its last rounds. ``quorate status`` draws it once.
``quorate status --watch`` asks again each second and redraws, or prints a line for each change where there is no
terminal.

A coordinator that stops, or starts again, is said; what was known last stays in sight, with its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from client_sdk.http.operator import OperatorClient
from client_sdk.http.paging import every_metric, every_page
from client_sdk.protocol.operators import MetricView, RoundView, RunView
from client_sdk.protocol.problems import ProblemError
from client_sdk.terminal import cell, show_answer, span
from coordinator.commands.tables import COULD_FORGE, STYLES, drawn, moment, rounds_table, runs_table, who_is_spent

BAR = 32
"""The most columns of a bar."""
LEGEND = 44
"""Columns of the rest of a line with a bar."""
RECENT = 8
"""Rounds whose mean duration tells how long the rest will take."""
SCORES = 3
"""The most lines of scores."""
SHOWN = 20
"""The most rounds that are listed."""
EXCHANGES = {"advertise": "keys", "share": "shares", "mask": "masked", "agree": "signed", "unmask": "opened"}
"""The exchanges of a secure round in short words."""


@dataclass(frozen=True)
class RunNow:
    """A run as it stands."""

    view: RunView
    rounds: Sequence[RoundView] = field(default_factory=list)
    """Its last rounds, in order."""
    metrics: Sequence[MetricView] = field(default_factory=list)


def left_s(now: RunNow) -> float | None:
    """Seconds until the run will have committed its rounds, if they take as long as the last ones did, abandoned ones
    counted in. None where that is not known."""
    ended = [(one.status, one.closed_at - one.opened_at) for one in now.rounds if one.closed_at is not None]
    return rest_s(now.view, ended)


def rest_s(view: RunView, ended: Sequence[tuple[str, float]]) -> float | None:
    """The seconds of ``left_s``, from (status, seconds) of the rounds that have ended, in order."""
    recent = ended[-RECENT:]
    committed = sum(status == "committed" for status, _ in recent)
    wanted = view.rounds_wanted - view.rounds_committed
    if not committed or view.status != "running" or wanted <= 0:
        return None
    return sum(seconds for _, seconds in recent) / committed * wanted


def picture(now: RunNow, width: int, height: int) -> RenderableType:
    """The run for a terminal of this size: as many of its last rounds as there are lines for."""
    above: list[Text | Table] = [_head(now.view), *_trouble(now.view), Text(), _bars(now, width), *_scores(now)]
    lines = sum(_height(part, width) for part in above)
    room = min(SHOWN, height - lines - 4)
    parts: list[RenderableType] = list(above)
    if now.rounds and room > 0:
        parts += [Text(), drawn(rounds_table(now.rounds[-room:]), width)]
    return Group(*parts)


def _head(view: RunView) -> Text:
    head = Text.assemble((cell(view.run), "bold"), " is ", (view.status, STYLES.get(view.status, "")))
    if view.reason:
        head.append(f": {cell(view.reason)}")
    if not view.over:
        where = " in the datacenter" if view.kind == "datacenter" and view.phase != "idle" else ""
        head.append(f"; round {view.round} is {view.phase}{where}")
    return head


def _trouble(view: RunView) -> list[Text]:
    """What stands in the run's way, a line for each."""
    said = [
        ("not handled", view.trouble),
        ("exhausted", view.exhausted),
        ("stalled", view.stalled),
        ("spent", who_is_spent(view) if view.devices_spent else ""),
        ("barred", ", ".join(f"{device} until round {until}" for device, until in view.barred.items())),
        ("authority", f"inside: {COULD_FORGE}" if view.authority == "inside" else ""),
    ]
    style = {"barred": "dim", "authority": "dim", "spent": "dim"}
    return [
        Text.assemble((f"{name}  ", "bold"), cell(words), style=style.get(name, "yellow"))
        for name, words in said
        if words
    ]


def _bars(now: RunNow, width: int) -> Table:
    """The run's progress and the funnel of its round, each number with its bar."""
    view, funnel = now.view, now.view.funnel
    bar = max(0, min(BAR, width - LEGEND))
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    table.add_column(width=bar or None)
    table.add_column(overflow="fold")

    def row(name: str, value: int, of: int, words: str, style: str = "bar.complete") -> None:
        shown: RenderableType = ProgressBar(total=max(of, 1), completed=min(value, of), width=bar, complete_style=style)
        table.add_row(name, shown if bar else "", words)

    left = left_s(now)
    rest = f", some {span(left)} left" if left is not None else ""
    row("rounds", view.rounds_committed, view.rounds_wanted, f"{view.rounds_committed} of {view.rounds_wanted}{rest}")
    last = now.rounds[-1] if now.rounds else None
    if last is not None and last.secure is not None:
        for exchange in last.secure.exchanges:
            words = f"{exchange.came} of {exchange.expected}, {exchange.needed} needed"
            row(EXCHANGES[exchange.exchange], exchange.came, exchange.expected, words, "cyan")
    elif last is not None and last.lease is not None:
        table.add_row("worker", "", Text(f"{cell(last.lease.worker)}: step {last.lease.step}"))
    else:
        goal = _goal(view)
        of_goal = f" of {goal} that close the round" if goal else ""
        row(
            "selected",
            funnel.selected,
            max(funnel.waiting, funnel.selected),
            f"{funnel.selected} of {funnel.waiting} that waited",
            "cyan",
        )
        row("training", funnel.training, funnel.selected, f"{funnel.training}", "cyan")
        row("reported", funnel.reported, goal or funnel.selected, f"{funnel.reported}{of_goal}", "green")
    lost = {name: getattr(funnel, name) for name in ("late", "dropped", "withdrawn", "refused")}
    gone = ", ".join(f"{count} {name}" for name, count in lost.items() if count)
    if gone:
        table.add_row("lost", "", gone, style="yellow")
    return table


def _goal(view: RunView) -> int:
    cohort = view.plan.get("cohort")
    goal = cohort.get("goal") if isinstance(cohort, dict) else None
    return goal if isinstance(goal, int) else 0


def _scores(now: RunNow) -> list[Text]:
    """The newest value of each metric, with the examples behind it: a line for each version and source."""
    newest: dict[tuple[str, str], MetricView] = {(one.source, one.name): one for one in now.metrics}
    scored: dict[tuple[int, str, int], list[str]] = {}
    for one in sorted(newest.values(), key=lambda one: (-one.version, one.source, one.name)):
        scored.setdefault((one.version, one.source, one.examples), []).append(f"{cell(one.name)} {one.value:.4g}")
    return [
        Text.assemble(
            ("scores  ", "bold"), f"{', '.join(values)}: version {version}, {cell(source)}, {examples} examples"
        )
        for (version, source, examples), values in list(scored.items())[:SCORES]
    ]


def _height(part: Text | Table, width: int) -> int:
    """Lines that a part takes."""
    if isinstance(part, Text):
        return max(1, -(-part.cell_len // max(width, 1)))
    return part.row_count


EVERY_S = 1.0
"""Seconds between two requests."""
SCORES_EVERY_S = 3.0
"""Seconds between two requests for all scores of a run."""
T = TypeVar("T")


class RunReader:
    """Reads a run as it stands: itself, its last rounds, and now and then its scores, which are many in a long run."""

    def __init__(self, operator: OperatorClient, run: str) -> None:
        self._operator, self._run = operator, run
        self._metrics: list[MetricView] = []
        self._scores_at = 0.0

    def __call__(self) -> RunNow:
        """Raises ProblemError where the coordinator refuses, or does not answer."""
        view = self._operator.run(self._run)
        rounds = self._operator.rounds(self._run, after=max(0, view.round - SHOWN))
        if time.monotonic() >= self._scores_at or view.over:
            self._metrics = every_metric(self._operator, self._run)
            self._scores_at = time.monotonic() + SCORES_EVERY_S
        return RunNow(view, rounds, self._metrics)


@dataclass
class Watched(Generic[T]):
    """What was read last, and since when nothing could be read any more."""

    last: T
    read_at: float
    silent_since: float | None = None
    why: str = ""

    def trouble(self, now: float) -> str:
        """A sentence while the coordinator does not answer; else empty."""
        if self.silent_since is None:
            return ""
        since = span(max(0.0, now - self.silent_since))
        return f"No answer for {since}; this is as of {moment(self.read_at)}. {self.why}"


def readings(read: Callable[[], T], pause: Callable[[float], None] = time.sleep) -> Iterator[Watched[T]]:
    """What ``read`` gives, each second. Where the coordinator does not answer, the last reading again with the reason.

    ProblemError for the first reading, and for what asking again does not mend: an unknown run, a revoked key."""
    found = Watched(read(), time.time())
    while True:
        yield found
        pause(EVERY_S)
        try:
            found = Watched(read(), time.time())
        except ProblemError as error:
            if error.problem.advice != "retry":
                raise
            since = found.silent_since if found.silent_since is not None else time.time()
            found = Watched(found.last, found.read_at, since, str(error))


def watch_run(operator: OperatorClient, run: str, console: Console | None, *, as_json: bool) -> None:
    """Follow one run until it has ended, or Ctrl-C."""
    shown = _changes(as_json) if console is None or as_json else None
    with _leaving(), _live(console if shown is None else None) as draw:
        for found in readings(RunReader(operator, run)):
            view = found.last.view
            if shown is not None:
                shown([view], found)
            elif console is not None:
                size = console.size
                draw(_with_trouble(picture(found.last, size.width, size.height - 1), found))
            if view.over and found.silent_since is None:
                return


def watch_all(operator: OperatorClient, console: Console | None, *, as_json: bool) -> None:
    """Follow all runs until Ctrl-C."""
    shown = _changes(as_json) if console is None or as_json else None
    with _leaving(), _live(console if shown is None else None) as draw:
        for found in readings(partial(every_page, operator.runs)):
            if shown is not None:
                shown(found.last, found)
            elif console is not None:
                newest = found.last[-max(1, console.size.height - 4) :]
                draw(_with_trouble(drawn(runs_table(newest), console.size.width), found))


def _with_trouble(what: RenderableType, found: Watched[T]) -> RenderableType:
    words = found.trouble(time.time())
    return Group(what, Text(words, style="bold yellow")) if words else what


def _changes(as_json: bool) -> Callable[[list[RunView], Watched[T]], None]:
    """Prints a line for each run that has changed: as JSON whenever an event has happened, as text when it has another
    status, round, phase or trouble."""
    printed: dict[str, object] = {}
    silent = False

    def show(runs: list[RunView], found: Watched[T]) -> None:
        nonlocal silent
        if (found.silent_since is not None) != silent:
            silent = not silent
            words = found.why if silent else "The coordinator answers again."
            show_answer({"kind": "notice", "text": words}, f"{moment(time.time())}  {words}", as_json=as_json)
        for view in runs:
            state = view.seq if as_json else (view.status, view.round, view.phase, view.stalled, view.trouble)
            if printed.get(view.run) != state:
                printed[view.run] = state
                show_answer(view, f"{moment(found.read_at)}  {_line(view)}", as_json=as_json)

    return show


def _line(view: RunView) -> str:
    funnel = view.funnel
    parts = [
        f"{view.run} is {view.status}" + (f": {view.reason}" if view.reason else ""),
        f"{view.rounds_committed} of {view.rounds_wanted} rounds",
        "" if view.over else f"round {view.round} is {view.phase}",
        f"{funnel.selected} selected, {funnel.training} training, {funnel.reported} reported",
        view.trouble or view.stalled,
    ]
    return "; ".join(part for part in parts if part)


@contextmanager
def _leaving() -> Iterator[None]:
    """Ctrl-C is how one leaves: no error."""
    try:
        yield
    except KeyboardInterrupt:
        return


@contextmanager
def _live(console: Console | None) -> Iterator[Callable[[RenderableType], None]]:
    """Draws in place of what was drawn before; the last picture stays on the terminal."""
    if console is None:
        yield lambda what: None
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda what: live.update(what, refresh=True)
