"""The demo's commands as processes of their own: started, watched, and ended whatever happens.

This file knows processes, their logs and signals. It has never heard of rounds.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO

from client_sdk.terminal import Failure
from simulation.demo.tied import END_S

_LOOK_S = 0.05


class Stopped(Exception):
    """The user wants it to end."""


@dataclass(frozen=True)
class Child:
    """A command that runs beside the demo. Its output goes to ``out``, its complaints to ``log``."""

    name: str
    process: subprocess.Popen[bytes]
    out: Path
    log: Path
    lasting: bool

    @property
    def last_words(self) -> str:
        """The last line of its log, for the sentence that says why it ended."""
        lines = [line for line in self.log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].removeprefix("Error: ").strip() if lines else "it said nothing"


class Children:
    """A context: when it ends, no process that it started is left; nor a while after this process was killed.

    ``on_command`` is told each command line before it runs, as a user would type it.
    """

    def __init__(self, folder: Path, stop: Event, on_command: Callable[[str], None]) -> None:
        self._folder = folder
        self._stop = stop
        self._on_command = on_command
        self._children: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, name: str, *arguments: str, lasting: bool = True) -> Child:
        """Run ``quorate ARGUMENTS`` beside. ``lasting``: it is not expected to end by itself."""
        self._on_command(shlex.join(["quorate", *arguments]))
        out, log = self._folder / f"{name}.out", self._folder / f"{name}.log"
        with out.open("wb") as out_file, log.open("wb") as log_file:
            child = Child(name, _spawn(arguments, out_file, log_file), out, log, lasting)
        self._children.append(child)
        return child

    def run(self, name: str, *arguments: str) -> str:
        """Run ``quorate ARGUMENTS`` to its end, and return what it printed. Failure, in its words, where it fails."""
        child = self.start(name, *arguments, lasting=False)
        while child.process.poll() is None:
            self.look()
            time.sleep(_LOOK_S)
        self.look()
        return child.out.read_text("utf-8", "replace")

    def first_line(self, child: Child, within_s: float) -> str:
        """The first line that a child prints: how it says that it is ready."""
        until = time.monotonic() + within_s
        while not (text := child.out.read_text("utf-8", "replace")).count("\n"):
            self.look()
            if time.monotonic() > until:
                raise Failure(f"'quorate {child.name}' was not ready within {within_s:.0f} s; see {child.log}.")
            time.sleep(_LOOK_S)
        return text.splitlines()[0]

    def look(self) -> None:
        """Raise Stopped once the user wants it to end, and Failure where a child ended that should not have."""
        if self._stop.is_set():
            raise Stopped
        for child in self._children:
            code = child.process.poll()
            if code is not None and (child.lasting or code != 0):
                raise Failure(f"'quorate {child.name}' ended with code {code}: {child.last_words}")

    def end(self) -> None:
        """End all, the youngest first: devices and evaluators before the coordinator they talk to."""
        until = time.monotonic() + END_S
        for child in reversed(self._children):
            _signal(child, signal.SIGTERM)
        for child in reversed(self._children):
            try:
                child.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(child, signal.SIGKILL)
                child.process.wait()
            if child.process.stdin is not None:
                child.process.stdin.close()


def _spawn(arguments: tuple[str, ...], out: IO[bytes], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a terminal's Ctrl-C reaches the demo only, which then ends all in order. A demo
    that is killed cannot: see ``tied``."""
    return subprocess.Popen(
        [sys.executable, "-m", "simulation.demo.tied", *arguments],
        stdin=subprocess.PIPE,
        stdout=out,
        stderr=log,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
    )


def _signal(child: Child, number: signal.Signals) -> None:
    """To the child; a kill also to whatever the child had started, which is its session."""
    if child.process.poll() is None:
        try:
            if number == signal.SIGKILL:
                os.killpg(child.process.pid, number)
            else:
                child.process.send_signal(number)
        except ProcessLookupError:
            pass
