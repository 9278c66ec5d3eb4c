"""Real agents, devices and commands for tests: processes that are started, listened to and killed."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.forks import ANY, Forked

PATIENCE_S = 120.0
HELD = "held"
LEARNER = """
import os
import time
from pathlib import Path

from torch import nn

from client_sdk.learning import Learner

HELD = Path(__file__).parent / "held"
calls = 0


def held_at():
    try:
        return int(HELD.read_text())
    except FileNotFoundError:  # also where a test lets go between two looks
        return calls


def slow_loss(outputs, targets):
    global calls
    calls += 1
    time.sleep(0.01)
    while calls > held_at():
        time.sleep(0.01)
    return nn.functional.cross_entropy(outputs, targets)


learner = Learner(
    model=lambda: nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 3)),
    loss=slow_loss,
    version="1",
)
"""
"""At a step that a test names training stands still, for as long as a file is there: so nothing is trained to its end
before somebody was killed, however slow the machine. Dropout shows whether what layers draw is resumed too."""
NAME = "fallback_learner:learner"


def write_learner(folder: Path) -> None:
    (folder / "fallback_learner.py").write_text(LEARNER)


def hold_at(folder: Path, calls: int) -> None:
    """Let every process of the learner in ``folder`` stand still after so many steps of its own."""
    fresh = folder / f".{HELD}"
    fresh.write_text(str(calls))
    fresh.replace(folder / HELD)


def let_go(folder: Path) -> None:
    (folder / HELD).unlink()


def write_data(path: Path, count: int, seed: int, labels: int = 3) -> None:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = (rng.normal(size=(count, 6)) + 2 * np.eye(3, 6)[y]).astype(np.float32)
    np.savez(path, x=x, y=y if labels == 3 else rng.integers(3, labels, count))


def until(true: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """The first answer that is not empty."""
    ends_at = time.monotonic() + patience_s
    while time.monotonic() < ends_at:
        if found := true():
            return found
        time.sleep(0.1)
    raise AssertionError("it did not come to that in time")


class Command:
    """``quorate ...`` as a process of its own, in ``folder``; what it says as JSON is kept as it comes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = Forked(list(arguments), ANY, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)
        self.messages: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._more = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_for(self, kind: str, patience_s: float = PATIENCE_S, **about: Any) -> dict[str, Any]:
        """The first message of this kind with these fields; ``step=5`` means 5 or more."""
        ends_at = time.monotonic() + patience_s
        with self._more:
            while True:
                found = next((message for message in self.messages if _fits(message, kind, about)), None)
                if found is not None:
                    return found
                left = ends_at - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self._more.wait(1)):
                    raise AssertionError(f"{kind} {about} was not said: " + "".join(self.lines[-40:]))
                self._more.wait(min(left, 1.0))

    def family(self) -> list[psutil.Process]:
        """The processes that it has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        """SIGKILL, for this process alone."""
        self.process.kill()
        self.process.wait(10)

    def end(self) -> None:
        """For the end of a test: whatever is left is killed."""
        if self.process.poll() is None:
            for process in self.family():
                process.kill()
            self.kill()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            with self._more:
                self.lines.append(line)
                try:
                    message = json.loads(line)
                except ValueError:
                    message = None
                if isinstance(message, dict):
                    self.messages.append(message)
                self._more.notify_all()
        with self._more:
            self._more.notify_all()


def agent(folder: Path, url: str, token_file: str, *more: str) -> Command:
    """``quorate datacenter join`` that holds ``proxy.npz`` of the folder as ``proxy``."""
    options = [
        "--coordinator",
        url,
        "--token-file",
        token_file,
        "--data",
        "proxy=proxy.npz",
        "--learner",
        NAME,
        "--nproc",
        "2",
    ]
    options += ["--folder", "worker", "--device", "cpu", "--json"]
    return Command(folder, "datacenter", "join", *options, *more)


def gone(processes: list[psutil.Process], within_s: float = 60.0) -> bool:
    """Whether all of them end by themselves."""
    return psutil.wait_procs(processes, timeout=within_s)[1] == []


def _fits(message: dict[str, Any], kind: str, about: dict[str, Any]) -> bool:
    if message.get("kind") != kind:
        return False
    return all(
        message.get(name, -1) >= value if name == "step" else message.get(name) == value
        for name, value in about.items()
    )
