"""Gives a measured server cores of its own. Linux only.

CPU seconds do not only count work: a process whose core others share is switched out and finds its caches overwritten,
and the same requests cost it up to twice as much. How busy the others are differs from run to run, so a server and
its floor are compared on cores that nobody else has.

Tried for the server, and left, since each changed nothing or cost more: 2, 4 or 24 threads for requests instead of 8,
a switch interval of 30 ms, threads that wait 4 to 20 ms for company before a transaction (3.16 to 3.38 CPU seconds
instead of 3.04). A request costs several times what the same code costs in a loop, since its caches are cold: fewer
operations help, faster ones hardly do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

Cores = frozenset[int]


def halves() -> tuple[Cores, Cores]:
    """The cores of the server, and those of everybody else: half of this process's cores each. All of them for both
    where there is one core only."""
    cores = sorted(os.sched_getaffinity(0))
    middle = len(cores) // 2
    return (frozenset(cores[:middle]), frozenset(cores[middle:])) if middle else (frozenset(cores),) * 2


@contextmanager
def on(cores: Cores) -> Iterator[None]:
    """This thread, and the threads and processes that it starts meanwhile, run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
