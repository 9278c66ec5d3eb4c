"""The child's side: a process that was started as a supervised child ends with its parent.

Its standard input is the reading end of a pipe whose other end only the parent holds. The parent writes a first line at
most. However the parent ends, by ``kill -9`` too, the pipe ends then.
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
"""Set where standard input is such a pipe: the same program may be started by hand."""


def when_parent_ends(act: Callable[[], object]) -> None:
    """Have ``act`` called by a thread of its own once the parent is gone, or asks this process to end. What should be
    read from standard input must have been read. Does nothing in a process that was not started as a supervised
    child."""
    if os.environ.pop(ENV_PARENT_PIPE, None):
        Thread(target=_wait_and_act, args=(act,), name="quorate-parent", daemon=True).start()


def end_with_parent(grace_s: float) -> None:
    """Once the parent is gone: SIGTERM for this process; if it is still there after ``grace_s``, SIGKILL for it and for
    all that it has started."""
    when_parent_ends(partial(_end, grace_s))


def _wait_and_act(act: Callable[[], object]) -> None:
    while os.read(0, 4096):
        pass
    act()


def _end(grace_s: float) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    kill_family(os.getpid())
