"""Finds processes by descent and by their environment, and kills them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress

import psutil

ENV_MARK = "QUORATE_LAUNCH"
"""The marks of a process and of its supervised ancestors, oldest ancestor first, separated by slashes."""
_BETWEEN = "/"


def marked(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """``environment`` for a child with this mark, added after the marks that it already has."""
    marks = [one for one in (environment.get(ENV_MARK, ""), mark) if one]
    return {**environment, ENV_MARK: _BETWEEN.join(marks)}


def kill_family(pid: int) -> None:
    """Send SIGKILL to a process, its descendants, and the process group that it leads. The process itself is killed
    first, since it could start others, or last where it is the caller. Does nothing where it has ended."""
    try:
        first = psutil.Process(pid)
        members = [first, *first.children(recursive=True)]
        leads_group = os.getpgid(pid) == pid
    except (psutil.NoSuchProcess, ProcessLookupError):
        return
    for process in members[1:] if pid == os.getpid() else members:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    with suppress(ProcessLookupError):
        if leads_group:
            os.killpg(pid, signal.SIGKILL)
        elif pid == os.getpid():
            os.kill(pid, signal.SIGKILL)


def kill_marked(marks: Collection[str]) -> None:
    """Send SIGKILL to all processes that carry one of these marks."""
    for process in with_environment(lambda env: not set(marks).isdisjoint(env.get(ENV_MARK, "").split(_BETWEEN))):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def with_environment(fits: Callable[[Mapping[str, str]], bool]) -> Iterator[psutil.Process]:
    """This user's processes, except the caller, whose start environment satisfies ``fits``."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.uids().real == os.getuid() and fits(process.environ()):
                yield process


def how_it_ended(code: int) -> str:
    """A text for the end of a process, from its exit code as in ``Popen.returncode``."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
