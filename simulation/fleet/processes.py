"""The worker processes of a fleet: started, counted together, stopped.

This file knows processes and tallies. It has never heard of learners, data or HTTP.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import IO

from simulation.fleet.worker import GRACE_S, Orders, Tally

START_METHOD = [sys.executable, "-m", "simulation.fleet.worker"]
STOP_S = GRACE_S + 0.6
"""After this time, from the word to stop, a worker that still runs is killed."""
_ENDED = "A worker process of the fleet ended by itself"


class CrewFailed(Exception):
    """A worker could not go on: its sentence."""


class Crew:
    """A context: inside it the workers run. Its ``watch`` gives the sum of their tallies as they come."""

    def __init__(self, orders: list[Orders]) -> None:
        self._orders = orders
        self._processes: list[subprocess.Popen[str]] = []
        self._tallies: dict[int, Tally] = {}
        self._told: SimpleQueue[Tally] = SimpleQueue()
        self._stopping = False

    def __enter__(self) -> Crew:
        try:
            for orders in self._orders:
                self._start(orders)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def watch(self, stop: Event, every_s: float = 0.25) -> Tally | None:
        """The next sum of tallies, once something has changed; None once ``stop`` is set. Raises CrewFailed."""
        while not stop.is_set():
            try:
                tally = self._told.get(timeout=every_s)
            except Empty:
                continue
            if tally.fatal is not None:
                raise CrewFailed(tally.fatal)
            self._tallies[tally.worker] = tally
            return self.total()
        return None

    def total(self) -> Tally:
        """All workers' last tallies together."""
        kinds: Counter[str] = Counter()
        for tally in self._tallies.values():
            kinds.update(tally.kinds)
        return Tally(
            worker=-1,
            devices=sum(tally.devices for tally in self._tallies.values()),
            examples=sum(tally.examples for tally in self._tallies.values()),
            enrolled=sum(tally.enrolled for tally in self._tallies.values()),
            kinds=dict(sorted(kinds.items())),
        )

    def stop(self) -> None:
        """Tell all, wait a little, kill who is left."""
        self._stopping = True
        for process in self._processes:
            with contextlib.suppress(OSError):
                _pipe(process.stdin).close()
        until = time.monotonic() + STOP_S
        for process in self._processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, orders: Orders) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(
            START_METHOD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._processes.append(process)
        with contextlib.suppress(BrokenPipeError):  # it ended at once: _listen says so
            _pipe(process.stdin).write(orders.model_dump_json() + "\n")
            _pipe(process.stdin).flush()
        Thread(target=self._listen, args=(process, orders.worker), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str], worker: int) -> None:
        told_why = False
        for line in _pipe(process.stdout):
            try:
                tally = Tally.model_validate_json(line)
            except ValueError:
                continue  # what a learner of somebody else's prints is not for the crew
            told_why = told_why or tally.fatal is not None
            self._told.put(tally)
        if not self._stopping and not told_why:
            self._told.put(Tally(worker=worker, fatal=f"{_ENDED} (exit code {process.wait()})."))


def _pipe(end: IO[str] | None) -> IO[str]:
    """A pipe that was asked for when the process was started."""
    if end is None:
        raise RuntimeError("the process was started without this pipe")
    return end
