"""``quorate status --watch``: asks again each second and redraws, or prints a line for each change where there is no
terminal.

A coordinator that stops, or starts again, is said; what was known last stays in sight, with its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.operators import MetricView, RunView
from client_sdk.protocol.problems import ProblemError
from client_sdk.terminal import say, say_json, span
from coordinator.commands.run_picture import SHOWN, RunNow, picture
from coordinator.commands.tables import moment, runs_table
from coordinator.commands.text_tables import drawn

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
            self._metrics = self._operator.metrics(self._run)
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
        for found in readings(operator.runs):
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
            say_json({"kind": "notice", "text": words}) if as_json else say(f"{moment(time.time())}  {words}")
        for view in runs:
            state = view.seq if as_json else (view.status, view.round, view.phase, view.stalled, view.trouble)
            if printed.get(view.run) != state:
                printed[view.run] = state
                say_json(view) if as_json else say(f"{moment(found.read_at)}  {_line(view)}")

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
