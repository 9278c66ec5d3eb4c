"""The child's side: ends a supervised child when its parent ends.

Standard input is the reading end of a pipe whose other end only the parent holds. The parent writes at most a first
line. The pipe closes however the parent ends, also by ``kill -9``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from threading import Thread

from coordinator.child_processes.family import kill_family

ENV_PARENT_PIPE = "QUORATE_LIFELINE"
"""Set where standard input is such a pipe; absent where a user started the program."""


def when_parent_ends(act: Callable[[], object], *, also_children: bool = False) -> None:
    """Call ``act`` in a new thread once the parent has ended, or asks this process to end. Read standard input before
    this call. Does nothing in a process that was not started as a supervised child. ``also_children``: children that
    inherit this process's standard input may watch the same parent."""
    watched = os.environ.get(ENV_PARENT_PIPE) if also_children else os.environ.pop(ENV_PARENT_PIPE, None)
    if watched:
        Thread(target=_wait_and_act, args=(act,), name="quorate-parent", daemon=True).start()


def end_with_parent(grace_s: float) -> None:
    """Once the parent has ended, send SIGTERM to this process, and after ``grace_s`` SIGKILL to it and its
    descendants."""
    when_parent_ends(partial(_end, grace_s))


def _wait_and_act(act: Callable[[], object]) -> None:
    while os.read(0, 4096):
        pass
    act()


def _end(grace_s: float) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    kill_family(os.getpid())
