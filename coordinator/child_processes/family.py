"""Whole families of processes: they are found by descent and by what their environment says, and killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress

import psutil

ENV_MARK = "QUORATE_LAUNCH"
"""The marks of a process and of its supervised ancestors, the eldest's first, with slashes between."""
_BETWEEN = "/"


def marked(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """``environment`` for a child with this mark, which keeps the marks that are there."""
    marks = [one for one in (environment.get(ENV_MARK, ""), mark) if one]
    return {**environment, ENV_MARK: _BETWEEN.join(marks)}


def kill_family(pid: int) -> None:
    """SIGKILL for a process, its descendants, and the process group that it leads. It comes first, since it could start
    others; where it is the caller it comes last. Does nothing where it is gone."""
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
    """SIGKILL for all processes that carry one of these marks."""
    for process in with_environment(lambda env: not set(marks).isdisjoint(env.get(ENV_MARK, "").split(_BETWEEN))):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def with_environment(fits: Callable[[Mapping[str, str]], bool]) -> Iterator[psutil.Process]:
    """This user's processes, but for the caller, that were started with an environment that ``fits``."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.uids().real == os.getuid() and fits(process.environ()):
                yield process


def how_it_ended(code: int) -> str:
    """The end of a process in words, from its exit code as ``Popen.returncode`` gives it."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
