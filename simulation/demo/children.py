"""Runs the demo's commands as supervised children: each is shown as a user would type it, watched, and always ended.

Run as a module this is one such command: ``python -m simulation.demo.children serve --data FOLDER`` is ``quorate serve
--data FOLDER`` that ends with the demo.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from client_sdk.terminal import Failure
from coordinator.child_processes import SupervisedChild, SupervisedChildren, end_with_parent

END_S = 4.0
"""Seconds that a command has to end after it is asked; then it is killed."""
_LOOK_S = 0.05


class StoppedByUser(Exception):
    """The user stopped the demo."""


@dataclass(frozen=True)
class CommandChild:
    """A command in the background. ``out`` receives its standard output, ``log`` its standard error."""

    name: str
    process: SupervisedChild
    out: Path
    log: Path
    keeps_running: bool

    @property
    def last_line(self) -> str:
        """The last line of its log, for the error message."""
        lines = [line for line in self.log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].removeprefix("Error: ").strip() if lines else "its log is empty"


class CommandChildren:
    """A context manager that ends all processes that it started, on exit and soon after this process is killed.

    ``on_command`` gets each command line before it runs. ``stop`` is set once the user stops the demo.
    """

    def __init__(self, folder: Path, stop: Event, on_command: Callable[[str], None]) -> None:
        self._folder = folder
        self._stop = stop
        self._on_command = on_command
        self._children: list[CommandChild] = []
        self._processes = SupervisedChildren(END_S)

    def __enter__(self) -> CommandChildren:
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.end()

    def start(self, name: str, *arguments: str, keeps_running: bool = True) -> CommandChild:
        """Run ``quorate ARGUMENTS`` in the background. ``keeps_running``: it is not expected to end by itself."""
        self._on_command(shlex.join(["quorate", *arguments]))
        out, log = self._folder / f"{name}.out", self._folder / f"{name}.log"
        command = [sys.executable, "-m", "simulation.demo.children", *arguments]
        with out.open("wb") as out_file, log.open("wb") as log_file:
            process = self._processes.add(SupervisedChild(command, output=out_file, errors=log_file))
        child = CommandChild(name, process, out, log, keeps_running)
        self._children.append(child)
        return child

    def run(self, name: str, *arguments: str) -> str:
        """Run ``quorate ARGUMENTS`` to its end, and return its output. Failure, with its error text, where it fails."""
        child = self.start(name, *arguments, keeps_running=False)
        while child.process.poll() is None:
            self.look()
            time.sleep(_LOOK_S)
        self.look()
        return child.out.read_text("utf-8", "replace")

    def first_line(self, child: CommandChild, within_s: float) -> str:
        """The first line that a child prints, once it is ready."""
        until = time.monotonic() + within_s
        while not (text := child.out.read_text("utf-8", "replace")).count("\n"):
            self.look()
            if time.monotonic() > until:
                raise Failure(f"'quorate {child.name}' was not ready within {within_s:.0f} s; see {child.log}.")
            time.sleep(_LOOK_S)
        return text.splitlines()[0]

    def look(self) -> None:
        """Raise StoppedByUser once the user stops the demo, and Failure where a child ended unexpectedly."""
        if self._stop.is_set():
            raise StoppedByUser
        for child in self._children:
            code = child.process.poll()
            if code is not None and (child.keeps_running or code != 0):
                raise Failure(f"'quorate {child.name}' {child.process.ending}: {child.last_line}")


def main() -> None:
    """Run the command in the arguments as a child of the demo."""
    from client_sdk.cli import main as quorate

    end_with_parent(END_S)
    quorate(sys.argv[1:])


if __name__ == "__main__":
    main()
