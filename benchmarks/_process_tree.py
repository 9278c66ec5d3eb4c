"""CPU seconds of a command and of everything that it starts, whichever of these processes are alive when it ends."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any

SAMPLE_S = 0.1
LONGEST_S = 1200.0
"""Of one command."""
_SUBREAPER = 36
"""Linux: ``PR_SET_CHILD_SUBREAPER``."""


def living(pid: int) -> list[Any]:
    """The process and all that come from it, as psutil has them; empty where it has ended."""
    import psutil

    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def spent_s(process: Any) -> float | None:
    """CPU seconds of one process so far; None where it has ended."""
    import psutil

    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return None
    return float(times.user + times.system)


def end(processes: Sequence[Any]) -> None:
    """Kill these processes, and wait for them."""
    import psutil

    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=10)


class Metered:
    """Commands, their descendants and what these have used: a context manager that ends all of them.

    Every SAMPLE_S each process is looked at, so of one that has ended the last moments may be missing: as much of ours
    as of another project's. Processes whose parent has ended are still found, as they become children of this one."""

    def __init__(self) -> None:
        self._spent: dict[tuple[int, float], float] = {}
        self._over = Event()
        self._thread = Thread(target=self._look, daemon=True)
        self._before = {process.pid for process in living(os.getpid())}

    def __enter__(self) -> Metered:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        end([process for process in living(os.getpid()) if process.pid not in self._before])

    def start(self, command: Sequence[str], log: Path, **variables: str) -> subprocess.Popen[bytes]:
        """Start a command whose output goes to ``log``."""
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **QUIET, **variables},
                start_new_session=True,
            )

    def run(self, command: Sequence[str], log: Path, **variables: str) -> None:
        """Run a command to its end. SystemExit where it fails, with the end of what it wrote, or where it does not end:
        Ray hangs where a busy machine keeps it from starting in time."""
        status: int | str
        try:
            status = self.start(command, log, **variables).wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            status = f"none after {LONGEST_S:.0f} s"
        if status:
            raise SystemExit(f"{' '.join(command)} ended with status {status}:\n{log.read_text()[-3000:]}")

    def until(self, ready: Callable[[], bool], what: str, within_s: float = 120.0) -> None:
        """Wait until it is ready. SystemExit where it never is."""
        ends_at = time.monotonic() + within_s
        while not ready():
            if time.monotonic() > ends_at:
                raise SystemExit(f"{what} did not happen within {within_s:.0f} s")
            time.sleep(0.1)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all of them so far."""
        self._sample()
        return sum(self._spent.values())

    def _look(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        import psutil

        for process in living(os.getpid()):
            if process.pid in self._before:
                continue
            try:
                key, spent = (process.pid, process.create_time()), spent_s(process)
            except psutil.NoSuchProcess:
                continue
            if spent is not None:
                self._spent[key] = spent


QUIET: Mapping[str, str] = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""No statistics leave, and one numerical thread in each process, of ours and of Flower's."""
