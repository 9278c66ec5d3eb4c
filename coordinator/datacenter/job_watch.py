"""Watches the processes of a job: reads their messages, and kills them on a stop request, after a hang, or after a
failure.

``coordinator.child_processes`` starts, follows and ends them. This file adds what is specific to training: which
message is the last, how long a silence is allowed, and when to kill what torchrun would wait for. Imports no torch.
"""

from __future__ import annotations

import math
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from coordinator.child_processes import SupervisedChild, how_it_ended
from coordinator.datacenter.job_start import ENV_RESTARTS
from coordinator.datacenter.progress import OnMessage, read_line
from coordinator.datacenter.spec import SHUTDOWN_S, JobResult, JobSpec, JobStopped

AGAIN_S = 60
"""Seconds that torchrun has to start a failed group again, or to give up."""


class JobWatch:
    """Reads the messages of one job's processes, over all their starts. ``on_message`` gets them, and ``restarted``.
    ``stop`` kills the processes."""

    def __init__(self, on_message: OnMessage, stop: threading.Event) -> None:
        self._on_message, self._stop = on_message, stop
        self._starts = 0
        self._silent_after = math.inf
        self._silence = ""
        self.result: JobResult | None = None
        self.failed: str | None = None
        self.reason = ""

    def follow(self, child: SupervisedChild, hang_s: float) -> int:
        """Wait until all processes of a start have ended. Returns the exit code of the first of them; JobStopped where
        ``stop`` was set before there was a result."""
        self._silent_after = math.inf

        def on_line(line: str) -> bool:
            message = read_line(line)
            if message is None:
                sys.stderr.write(line)
                return False
            self._take(message)
            self._expect_more(message["event"], hang_s)
            if message["event"] == "lost":
                _clear_away(child, str(message.get("attempt")))
            return self.failed is not None or self.result is not None  # their own end takes seconds and does not matter

        code = child.follow(on_line, kill_when=self._must_not_go_on, linger_s=SHUTDOWN_S)
        if self._stop.is_set() and self.result is None:
            raise JobStopped("The training was asked to stop.")
        return code

    def _must_not_go_on(self) -> bool:
        silent = time.monotonic() > self._silent_after
        if silent:
            self.reason, self._silent_after = self.reason or self._silence, math.inf
        return silent or self._stop.is_set()

    def _expect_more(self, event: str, hang_s: float) -> None:
        """How long the processes may be silent after this message.

        A rank that waits for another breaks the group itself, after ``hang_s``. Where all of them hang, or the only
        one, only the launcher can notice; it allows twice as long. The time that they load before training is not
        known.
        """
        training = event not in ("lost", "failed", "done")
        self._silence = f"no process did anything for {2 * hang_s:g} s"
        self._silent_after = time.monotonic() + 2 * hang_s if training else math.inf

    def _take(self, message: dict[str, Any]) -> None:
        match message["event"]:
            case "failed":
                self.failed = str(message["reason"])
                return
            case "lost":
                self.reason = self.reason or str(message["reason"])
                return
            case "started":
                if self._starts:
                    reason = self.reason or "a process died"
                    self._on_message({"event": "restarted", "attempt": self._starts, "reason": reason})
                self._starts += 1
                self.reason = ""
            case "done":
                out = message.get("out")
                self.result = JobResult(
                    report=message["report"],
                    out=None if out is None else Path(out),
                    digest=message["digest"],
                    restarts=self._starts - 1,
                )
            case _:  # progress and saved steps change nothing here: they are passed on
                pass
        self._on_message(message)


def _clear_away(child: SupervisedChild, attempt: str) -> None:
    """Send SIGKILL to all processes of a failed group that still run after SHUTDOWN_S: torchrun sends SIGTERM to a
    hung one, and would wait for half a minute. A torchrun that has not started the next group after AGAIN_S is killed
    too.

    ``attempt``: torchrun's count of restarts when the group failed. It may have started the next group already.
    """
    group = [rank for rank, restarts in _ranks(child.pid) if restarts == attempt]

    def kill_what_is_left() -> None:
        for process in group:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def kill_a_launcher_that_stands_still() -> None:
        if child.poll() is None and all(restarts == attempt for _, restarts in _ranks(child.pid)):
            child.kill()

    for after_s, what in ((SHUTDOWN_S, kill_what_is_left), (AGAIN_S, kill_a_launcher_that_stands_still)):
        timer = threading.Timer(after_s, what)
        timer.daemon = True
        timer.start()


def _ranks(launcher: int) -> list[tuple[psutil.Process, str | None]]:
    """The processes that a torchrun has started, each with torchrun's count of restarts at its start."""
    found = []
    with suppress(psutil.Error):
        for process in psutil.Process(launcher).children(recursive=True):
            with suppress(psutil.Error):
                found.append((process, process.environ().get(ENV_RESTARTS)))
    return found


def end_of_process(code: int) -> str:
    """How the first of the processes ended."""
    return f"a process {how_it_ended(code)}"


def broke_off(spec: JobSpec, code: int, log: str, cause: str = "") -> str:
    """The sentence for processes that died too often. ``cause``: empty where it must be found in torchrun's log."""
    times = spec.max_restarts
    again = f", also after {times} restart{'s' if times > 1 else ''}" if times else ""
    saved = f" What was saved is in {spec.checkpoints}." if spec.checkpoints is not None else ""
    return f"The training broke off: {cause or _cause(code, log)}{again}.{saved}"


def _cause(code: int, log: str) -> str:
    root = re.search(r"Root Cause.*?rank\s*: (\d+).*?exitcode\s*: (-?\d+)", log, re.DOTALL)
    if root is not None:
        return f"process {root[1]} {how_it_ended(int(root[2]))}"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"{end_of_process(code)}: {lines[-1][:200]}" if code >= 0 and lines else end_of_process(code)
