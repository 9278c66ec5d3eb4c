"""Makes the orders of a fleet's worker processes, starts these as supervised children, sums their tallies, and stops
them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import cast, get_args

from client_sdk.commands.threads import thread_variables
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.http.operator import OperatorClient
from coordinator.child_processes import SupervisedChild, SupervisedChildren
from simulation.fleet.split import By, Split
from simulation.fleet.trainer import FleetHabits
from simulation.fleet.worker import STOP_S, FleetTally, WorkerOrders


class FleetFailed(Exception):
    """A worker failed: the message is its sentence."""


class FleetProcesses:
    """A context manager that runs the workers. ``watch`` returns the sum of their tallies."""

    def __init__(self, orders: list[WorkerOrders], threads: int | None = None) -> None:
        """``threads``: of numerical libraries in each process; None: OMP_NUM_THREADS, else one."""
        self._orders = orders
        self._environment = {**os.environ, **thread_variables(threads)}
        self._children = SupervisedChildren(STOP_S)
        self._tallies: dict[int, FleetTally] = {}
        self._arrived: SimpleQueue[FleetTally] = SimpleQueue()
        self._stopping = False

    def __enter__(self) -> FleetProcesses:
        try:
            for orders in self._orders:
                self._start(orders)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def watch(self, stop: Event, every_s: float = 0.25) -> FleetTally | None:
        """The next sum of tallies, after a change; None once ``stop`` is set. Raises FleetFailed."""
        while not stop.is_set():
            try:
                tally = self._arrived.get(timeout=every_s)
            except Empty:
                continue
            if tally.fatal is not None:
                raise FleetFailed(tally.fatal)
            self._tallies[tally.worker] = tally
            return self.total()
        return None

    def total(self) -> FleetTally:
        """The sum of all workers' last tallies."""
        kinds: Counter[str] = Counter()
        for tally in self._tallies.values():
            kinds.update(tally.kinds)
        return FleetTally(
            worker=-1,
            devices=sum(tally.devices for tally in self._tallies.values()),
            examples=sum(tally.examples for tally in self._tallies.values()),
            enrolled=sum(tally.enrolled for tally in self._tallies.values()),
            kinds=dict(sorted(kinds.items())),
        )

    def stop(self) -> None:
        """Ask all to end; kill those that still run after STOP_S."""
        self._stopping = True
        self._children.end()

    def _start(self, orders: WorkerOrders) -> None:
        command = [sys.executable, "-m", "simulation.fleet.worker"]
        child = self._children.add(
            SupervisedChild(
                command,
                environment=self._environment,
                threads=None,
                first_line=orders.model_dump_json(),
                grace_s=STOP_S,
            )
        )
        Thread(target=self._follow, args=(child, orders.worker), daemon=True).start()

    def _follow(self, child: SupervisedChild, worker: int) -> None:
        explained = False

        def on_line(line: str) -> None:
            nonlocal explained
            try:
                tally = FleetTally.model_validate_json(line)
            except ValueError:
                return  # printed by a learner
            explained = explained or tally.fatal is not None
            self._arrived.put(tally)

        child.follow(on_line)
        if not self._stopping and not explained:
            fatal = f"A worker process of the fleet {child.ending}, without a request to end."
            self._arrived.put(FleetTally(worker=worker, fatal=fatal))


def split_of(*, data: str, devices: int, by: str, alpha: float, size_sigma: float, seed: int) -> Split:
    """The split of a command's options. ValueError where there is no such method."""
    if by not in get_args(By):
        raise ValueError(f"--by {by}: known are {', '.join(get_args(By))}.")
    return Split(data=data, devices=devices, by=cast("By", by), alpha=alpha, size_sigma=size_sigma, seed=seed)


def worker_orders(
    split: Split,
    habits: FleetHabits,
    *,
    coordinator: str,
    enrolment_token: str,
    folder: Path,
    learner: str,
    processes: int,
    smallest_cohort: int | None = None,
) -> list[WorkerOrders]:
    """Orders for each worker process that has a device. ProblemError where no coordinator answers, ValueError where the
    enrolment token is none."""
    EnrolmentToken.parse(enrolment_token.strip())
    with OperatorClient(coordinator) as operator:
        operator.require_answer()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    workers = min(processes, split.devices)
    return [
        WorkerOrders(
            coordinator=operator.coordinator,
            enrolment_token=enrolment_token,
            folder=folder.resolve(),
            split=split,
            habits=habits,
            learner=learner,
            smallest_cohort=smallest_cohort,
            worker=worker,
            workers=workers,
        )
        for worker in range(workers)
    ]
