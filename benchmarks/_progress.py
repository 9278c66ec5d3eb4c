"""How far a benchmark is, on standard error: on a terminal one line, written anew; else a line every ten seconds.

No thread draws it: what is measured are CPU seconds of this process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from client_sdk.terminal import TimeLeft

LINE_EVERY_S = 10.0
"""Seconds between two lines where there is no terminal."""
_ERASE = "\r\x1b[K"
_NEXT = 0.2
"""Seconds between two states of the line on a terminal."""


def counted(what: str, times: range, clock: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """The numbers of ``times``; says in between how many were played, and how long the others take."""
    alone, left, of = _on_a_terminal(), TimeLeft(clock), len(times)
    said = clock() - (LINE_EVERY_S if alone else 0.0)
    for done, number in enumerate(times):
        if clock() - said >= (_NEXT if alone else LINE_EVERY_S):
            said = clock()
            text = f"{what}: {done} of {of}{left.of(done, of)}"
            print(f"{_ERASE}{text}" if alone else text, end="" if alone else "\n", file=sys.stderr, flush=True)
        else:
            left.of(done, of)
        yield number
    erase()


def erase() -> None:
    """Takes the line away: a result follows."""
    if _on_a_terminal():
        print(_ERASE, end="", file=sys.stderr, flush=True)


def _on_a_terminal() -> bool:
    return sys.stderr.isatty()
