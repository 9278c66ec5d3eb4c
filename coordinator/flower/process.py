"""The parent's side of a ServerApp's process: it is started by ``Orders``, followed, and ended with the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

END_S = 10.0
"""After SIGTERM, until SIGKILL."""

OnEvent = Callable[[dict[str, Any]], None]


class Orders(BaseModel):
    """The command's options, as the child process gets them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path
    """Of the app."""
    coordinator: str
    key_file: Path | None = None
    run: str | None = None
    """None: a new name."""
    simulation: int | None = Field(default=None, ge=1)
    """How many nodes are simulated; None: the devices of the coordinator."""
    data: Path | None = None
    """Of a simulation: the data folder that keeps it."""
    overrides: tuple[str, ...] = ()
    quorum: float | None = Field(default=None, gt=0, le=1)
    grace_s: float = Field(default=0.0, ge=0)
    max_reply: int | None = Field(default=None, ge=1)
    """Bytes."""
    longest_wait_s: float | None = Field(default=None, gt=0)
    quiet: bool = False
    """Whether Flower's own log is left at warnings."""
    events: int = -1
    """The file descriptor for lines of JSON."""


class ServerAppEnded(Exception):
    """The process of the ServerApp is over before the ServerApp was."""

    def __init__(self, sentence: str, frames: str = "", left: str = "") -> None:
        """``frames``: of the app, where it raised; ``left``: the run, where nobody has ended it by this."""
        super().__init__(sentence)
        self.frames, self.left = frames, left


def follow(orders: Orders, on_event: OnEvent) -> dict[str, Any]:
    """Run a ServerApp in a process of its own; ``on_event`` gets each line; returns the last one, ``end``.

    Raises ServerAppEnded where there is none.
    """
    run, left = orders.run, ""
    with _started(orders) as (process, lines):
        for line in lines:
            event = json.loads(line)
            match event["event"]:
                case "end":
                    process.wait()
                    return dict(event)
                case "failed":
                    process.wait()
                    raise ServerAppEnded(event["text"], event["frames"], "" if event["frames"] else left)
                case "run":
                    run = event["run"]
                    left = "" if orders.simulation is not None else run
                case _:
                    pass
            on_event(event)
        raise ServerAppEnded(_how(process.wait(), run, kept=orders.simulation is None))


def _how(code: int, run: str | None, *, kept: bool) -> str:
    what = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    if run is None or not kept:
        return f"The ServerApp's process {what}."
    return (
        f"The ServerApp's process {what}. Its messages and replies are kept: the same command with --run {run} starts "
        "it again and goes on."
    )


@contextmanager
def _started(orders: Orders) -> Iterator[tuple[subprocess.Popen[bytes], Iterator[str]]]:
    """The process and its lines. It leads a session of its own: a terminal's Ctrl-C reaches only the parent."""
    reader, writer = os.pipe()
    with os.fdopen(reader, encoding="utf-8") as lines:
        try:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "coordinator.flower.child"],
                stdin=subprocess.PIPE,
                stdout=sys.stderr,
                pass_fds=(writer,),
                start_new_session=True,
            )
        finally:
            os.close(writer)
        try:
            assert process.stdin is not None  # noqa: S101
            process.stdin.write(orders.model_copy(update={"events": writer}).model_dump_json().encode() + b"\n")
            process.stdin.flush()
            yield process, iter(lines)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, where it runs, and what it has started."""
    if process.stdin is not None:
        process.stdin.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
