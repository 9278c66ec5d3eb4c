"""How far a long command is, on standard error: on a terminal a bar with counts and the time left, else a line every
ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from client_sdk.terminal import TimeLeft, note

LINE_EVERY_S = 10.0
"""Seconds between two lines where there is no terminal."""

Show = Callable[[str, int, int], None]
"""Takes what is done now, how much of it is, and how much there is of it."""


@contextmanager
def progress(*, bytes: bool = False) -> Iterator[Show]:
    """A function that shows how far the work is; ``bytes``: that is what it counts. The bar goes when the work ends."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _lines(bytes)
        return
    counts = DownloadColumn() if bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), counts, TimeRemainingColumn())
    # Results go past the bar only where they are on the same terminal: a pipe on standard output keeps them.
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=None)
        shown = ""

        def show(what: str, done: int, of: int) -> None:
            nonlocal shown
            if what != shown:
                bar.reset(task, description=what, total=of)
                shown = what
            bar.update(task, completed=done, total=of)

        yield show


@contextmanager
def counted_bytes(what: str, of: int) -> Iterator[Callable[[int], None]]:
    """A function that takes the number of bytes of each block of a transfer of ``of`` bytes."""
    with progress(bytes=True) as show:
        done = 0

        def more(size: int) -> None:
            nonlocal done
            done += size
            show(what, done, of)

        yield more


def _lines(bytes: bool, clock: Callable[[], float] = time.monotonic) -> Show:
    printed_at = clock()
    now, left = "", TimeLeft(clock)

    def show(what: str, done: int, of: int) -> None:
        nonlocal printed_at, now, left
        if what != now:
            now, left = what, TimeLeft(clock)
        rest = left.of(done, of)
        if clock() - printed_at >= LINE_EVERY_S:
            printed_at = clock()
            amount = f"{done / 1e6:.1f} of {of / 1e6:.1f} MB" if bytes else f"{done} of {of}"
            note(f"{what}: {amount}{rest}")

    return show
