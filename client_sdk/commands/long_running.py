"""What commands that run until they are stopped share: log, last line and exit.

``exit_process`` ends without Python's shutdown. DistributedDataParallel keeps its process group alive in C++, with
Gloo's threads, also after ``destroy_process_group``; the shutdown beside them aborted one of some sixty finished ranks
on a busy machine, which costs a job on two machines minutes. Functions that a learner registers with ``atexit``
therefore do not run in ranks.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from client_sdk.terminal import note, show_answer, spoken_by

# ------------------------------------------------------------ threads
# How many threads the numerical libraries of a process use: one, unless the user gives another number.
#
# A machine runs many devices or ranks beside each other, and each of them would otherwise take every core; a
# coordinator's requests wait where such a library's threads look for work on every core. In order:
# ``--threads``, then OMP_NUM_THREADS of the environment, then 1. Libraries read the environment when they are loaded,
# so a process calls ``use_threads`` before it imports numpy or torch; a parent passes ``thread_variables`` to its
# children.


VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=1024,
        help="Threads of numerical libraries in each process (default: OMP_NUM_THREADS, else 1).",
    ),
]


def thread_variables(threads: int | None, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables for a process that computes with ``threads``; None: as ``environment`` (this process's) says, and
    with one thread where it says nothing."""
    given = os.environ if environment is None else environment
    if threads is not None:
        return dict.fromkeys(VARIABLES, str(threads))
    usual = given.get("OMP_NUM_THREADS", "1")
    return {name: given.get(name, usual) for name in VARIABLES}


def use_threads(threads: int | None) -> None:
    """Set them for this process and its children. Call it before numerical libraries are imported."""
    os.environ.update(thread_variables(threads))


# ------------------------------------------------------------ log, last line and exit


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


def say_stopped(ended: int, as_json: bool, more: str = "", *, what: str = "round") -> None:
    """Print the last line: how many rounds, or ``what`` else, ended here. ``more`` is appended to the text."""
    text = f"Stopped after {ended} {what}{'' if ended == 1 else 's'}.{more and ' ' + more}"
    show_answer({**spoken_by(), "kind": "stopped", f"{what}s": ended}, text, as_json=as_json)


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
