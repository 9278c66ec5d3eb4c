"""Stopping at a signal instead of dying of it. The import of this file is light: an application that imports it first
stops cleanly also while the rest is imported."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread
from types import FrameType


@contextmanager
def stopped_by_signals() -> Iterator[Event]:
    """An event that Ctrl-C and SIGTERM set; a second Ctrl-C ends at once. (``timeout`` and others send SIGTERM
    twice.)"""
    stop = Event()
    if current_thread() is not main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            _note("Stopping; once more ends it at once.")
        stop.set()

    with handling(ask, signal.SIGINT, signal.SIGTERM):
        yield stop


@contextmanager
def handling(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    """Install ``handler`` for these signals, and restore the earlier handlers afterwards. In the main thread only."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _note(sentence: str) -> None:
    """Print a line on standard error as the commands do where they are loaded; an import here could be one that the
    signal interrupted."""
    note = getattr(sys.modules.get("client_sdk.terminal"), "note", None)
    if note is None:
        print(sentence, file=sys.stderr, flush=True)
    else:
        note(sentence)
