"""What a line of the log is about, a request or an action: its run, round, device or worker, in each line that is
written meanwhile.

The names of one request are one mapping, which its task and the threads that work for it share: what a thread learns,
such as the device, is in the lines that are written after the thread has ended too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_about: ContextVar[dict[str, Any] | None] = ContextVar("quorate_about", default=None)

NAMES = ("run", "round", "attempt", "worker")
"""Parameters of paths that the log names."""


def begin() -> None:
    """Begins a request: nothing is known of it. To be called in its task."""
    _about.set({})


def known(**names: Any) -> None:
    """Adds what has become known of the request under way; outside of a request it has no effect."""
    found = _about.get()
    if found is not None:
        found.update(names)


def names() -> Mapping[str, Any]:
    """What is known of the request or the action under way."""
    return _about.get() or {}


@contextmanager
def about(**names: Any) -> Iterator[None]:
    """While the block runs, lines of this thread have these names beside those that they had."""
    before = _about.set({**(_about.get() or {}), **names})
    try:
        yield
    finally:
        _about.reset(before)


def merge(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: adds what is known to a line, without changing what the line itself says."""
    for name, value in names().items():
        line.setdefault(name, value)
    return line
