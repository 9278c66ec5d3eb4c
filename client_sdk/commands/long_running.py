"""What commands that run until they are stopped share: signals, log, last line and exit."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, current_thread, main_thread
from types import FrameType
from typing import NoReturn

from client_sdk.terminal import note, say, say_json, spoken_by


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
            note("Stopping; once more ends it at once.")
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


class _Plain(logging.Handler):
    """A log handler that prints no tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.getMessage()}; QUORATE_DEBUG=1 shows where" if record.exc_info else record.getMessage())


def log_plainly(logger: str) -> None:
    """Print this logger's records as the command prints errors: one sentence on standard error. With QUORATE_DEBUG=1
    the logger stays unchanged, with tracebacks."""
    log = logging.getLogger(logger)
    if not os.environ.get("QUORATE_DEBUG") and not any(isinstance(handler, _Plain) for handler in log.handlers):
        log.addHandler(_Plain())


def say_stopped(rounds: int, as_json: bool, more: str = "") -> None:
    """Print the last line: how many rounds ended here. ``more`` is appended to the text."""
    if as_json:
        say_json({**spoken_by(), "kind": "stopped", "rounds": rounds})
    else:
        say(f"Stopped after {rounds} round{'' if rounds == 1 else 's'}.{more and ' ' + more}")


def exit_process(code: int) -> NoReturn:
    """End this process now, with its output written out; functions registered with ``atexit`` do not run.

    Processes of a training group end in this way. DistributedDataParallel retains the process group and Gloo's threads,
    also where the group was destroyed. Python's shutdown then frees objects that these threads use. On a busy machine
    about one process in thirty aborted after all work was done (`terminate called without an active exception`,
    SIGABRT): its torchrun then reports failure for a completed job, and the torchruns of other machines wait 300 s for
    it. Where the group failed, the same threads can block the shutdown.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
