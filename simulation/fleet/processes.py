"""The worker processes of a fleet, from both sides: orders are made, workers started as supervised children, their
tallies summed, and all stopped; and what one worker does with its devices.

Run as a module this is one such worker."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Condition, Event, Lock, Thread

from pydantic import BaseModel, ConfigDict

from client_sdk.commands.long_running import thread_variables
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.data import Examples
from client_sdk.device.checkpoint_cache import CheckpointCache, Download, MemoryCheckpoints
from client_sdk.device.record import Storage
from client_sdk.device.requests import Pacing
from client_sdk.device.storage import FileStorage
from client_sdk.http.client import Client, Notice
from client_sdk.http.operator import OperatorClient
from client_sdk.http.transport import open_http
from client_sdk.learners import catalogue_for
from client_sdk.protocol.devices import CheckpointRef, Policy, SecureBounds
from client_sdk.terminal import sentence_of
from coordinator.child_processes import SupervisedChild, SupervisedChildren, end_with_parent
from simulation.fleet.split import Split, cut
from simulation.fleet.trainer import FleetHabits, FleetTrainer, RoundTimes, Vanished, VanishesInExchanges

# ------------------------------------------------------------ a worker
# One process of a fleet: many devices, a thread each, idle in a long poll most of the time.
#
# It reads its orders from standard input and writes counts to standard output. Each device is a ``Client``.
#
# ::
#
#     standard input     one line: WorkerOrders, JSON. Then nothing; its end means that the parent has ended
#     standard output    a line for each half second with a change: FleetTally, JSON; a last one at the end
#     SIGTERM            stops it
#     exit code          0 stopped on request, 1 failed: the tally's ``fatal`` is the error
#
# The data set is loaded once; its devices' shards are copied from it and the rest is released. Each device has its own
# connection, as on its own machine: hundreds of threads would contend for the lock of a shared pool.


REPORT_S = 0.5
GRACE_S = 2.0
"""Seconds that threads have to end after they are asked; then the process ends in any case."""
STOP_S = GRACE_S + 0.6
"""Seconds that a worker has to end after it is asked; then it is killed."""
HOLD_S = 50.0
PACING = Pacing(withdrawn_s=(1.0, 3.0))


KEEP = 3
PATIENCE_S = 10.0
"""Seconds that others wait for the one that fetches before one of them fetches itself."""
_LOOK_S = 0.25


class SharedCheckpoints:
    """Checkpoints in memory for the threads of one process, each of which is downloaded once: hundreds of devices need
    the same bytes at the same moment, the first one fetches them, and the others wait for it. ``stop`` ends all
    waiting."""

    def __init__(self, stop: Event) -> None:
        self._cache = MemoryCheckpoints(keep=KEEP)
        self._stop = stop
        self._changed = Condition()
        self._since: dict[str, float] = {}

    def get(self, digest: str) -> bytes | None:
        """The checkpoint; None for the one caller that must fetch it now."""
        with self._changed:
            while (body := self._cache.get(digest)) is None and not self._stop.is_set():
                since = self._since.get(digest)
                if since is None or time.monotonic() - since > PATIENCE_S:
                    self._since[digest] = time.monotonic()
                    return None
                self._changed.wait(_LOOK_S)
            return body

    def has(self, digest: str) -> bool:
        """Whether the model is cached, after the wait of ``get``: False for the one caller that must fetch it now."""
        return self.get(digest) is not None

    def held(self) -> list[str]:
        return self._cache.held()

    @contextmanager
    def download(self, ref: CheckpointRef) -> Iterator[Download]:
        """The download of ``CheckpointCache``. Its end, also by an error, wakes all that wait."""
        try:
            with self._cache.download(ref) as download:
                yield download
        finally:
            with self._changed:
                self._since.pop(ref.digest, None)
                self._changed.notify_all()


class FleetStorage(FileStorage):
    """A device's folder without checkpoints of its own, and without fsync: it survives its process, not the machine."""

    def __init__(self, folder: Path | str, shared: CheckpointCache) -> None:
        super().__init__(folder, durable=False)
        self._checkpoints = shared


class WorkerOrders(BaseModel):
    """The orders of one worker."""

    model_config = ConfigDict(extra="forbid")

    coordinator: str
    enrolment_token: str
    """Of an authority: each device enrols with it, with a key of its own."""
    folder: Path
    split: Split
    habits: FleetHabits
    learner: str
    """Name of an installed learner, or ``module:attribute``."""
    smallest_cohort: int | None = None
    """The owners' bound on secure rounds; None: the SDK's."""
    worker: int
    workers: int
    """This worker has the devices whose number modulo ``workers`` is ``worker``."""

    @property
    def numbers(self) -> range:
        return range(self.worker, self.split.devices, self.workers)


class FleetTally(BaseModel):
    """Counts of the events of this process's devices so far."""

    worker: int
    devices: int = 0
    examples: int = 0
    enrolled: int = 0
    """Devices that have a certificate, from this start or an earlier one."""
    kinds: dict[str, int] = {}
    """Notices by kind: see ``Notice``; and ``vanished``."""
    fatal: str | None = None

    @property
    def sentence(self) -> str:
        """The result of the work, as text."""
        kinds = self.kinds
        return (
            f"Devices were selected {kinds.get('assigned', 0)} times: {kinds.get('receipt', 0)} updates were accepted, "
            f"{kinds.get('refused', 0)} came too late or were refused; {kinds.get('vanished', 0)} times one vanished."
        )


class FleetWorker:
    """The devices of one process."""

    def __init__(self, orders: WorkerOrders, stop: Event) -> None:
        """Loads the learner and the data. LearnerError, DataSourceError or ValueError where they cannot be loaded."""
        self._orders = orders
        self._stop = stop
        self._catalogue = catalogue_for([orders.learner])
        self._shards: dict[int, Examples] = cut(orders.split, orders.numbers)[1]
        smallest = orders.smallest_cohort
        self._policy = Policy(secure=None if smallest is None else SecureBounds(smallest_cohort=smallest))
        self._round_times = RoundTimes()
        self._checkpoints = SharedCheckpoints(stop)
        self._turn = Lock()
        self._counts: Counter[str] = Counter()
        self._counting = Lock()
        self._enrolled: set[int] = set()
        self._fatal: str | None = None
        self._threads = [
            Thread(target=self._live, args=(number,), name=f"device-{number}", daemon=True)
            for number in self._orders.numbers
        ]

    def run(self, report: Callable[[FleetTally], None]) -> str | None:
        """Run all devices until ``stop``. Returns the error where one of them may not take part."""
        for thread in self._threads:
            thread.start()
        last = None
        while not self._stop.wait(REPORT_S):
            if (tally := self.tally()) != last:
                report(tally)
                last = tally
        until = time.monotonic() + GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        report(self.tally())
        return self._fatal

    def tally(self) -> FleetTally:
        with self._counting:
            return FleetTally(
                worker=self._orders.worker,
                devices=len(self._shards),
                examples=sum(len(shard) for shard in self._shards.values()),
                enrolled=len(self._enrolled),
                kinds=dict(sorted(self._counts.items())),
                fatal=self._fatal,
            )

    def _live(self, number: int) -> None:
        """Run one device from its folder until it is stopped; start it again after it vanished."""
        trainer = FleetTrainer(
            number,
            self._shards[number],
            self._catalogue,
            learner=self._orders.learner,
            habits=self._orders.habits,
            round_times=self._round_times,
            turn=self._turn,
            stop=self._stop,
        )
        vanishes = VanishesInExchanges(number, self._orders.habits)
        try:
            while not self._stop.is_set():
                with FleetStorage(self._orders.folder / f"device-{number:04d}", self._checkpoints) as storage:
                    away = self._take_part(number, storage, trainer, vanishes)
                self._stop.wait(away * self._round_times.round_s)
        except Exception as error:  # noqa: BLE001  (any error becomes one sentence for the user of the fleet)
            self._fatal = self._fatal or f"{self._orders.split.label(number)}: {sentence_of(error)}"
            self._stop.set()

    def _take_part(self, number: int, storage: Storage, trainer: FleetTrainer, vanishes: VanishesInExchanges) -> float:
        """Take part until stopped or vanished. Returns how long the device stays away, in round durations."""

        def note(notice: Notice) -> None:
            self._round_times.note(notice)
            self._count(number, notice.kind)

        record = storage.load()
        if record is not None and record.registered is not None and record.coordinator == self._orders.coordinator:
            self._count(number, "back")
        try:
            with open_http(self._orders.coordinator) as http:
                http.event_hooks = {"request": [vanishes]}
                client = Client(
                    self._orders.coordinator,
                    storage,
                    trainer,
                    enrolment_token=self._orders.enrolment_token,
                    policy=self._policy,
                    label=self._orders.split.label(number),
                    http=http,
                    hold_s=HOLD_S,
                    pacing=PACING,
                    on_notice=note,
                )
                client.run(stop=self._stop)
        except Vanished as vanished:
            self._count(number, "vanished")
            return vanished.away
        return 0.0

    def _count(self, number: int, kind: str) -> None:
        with self._counting:
            self._counts[kind] += 1
            if kind in ("enrolled", "back"):
                self._enrolled.add(number)


def main() -> int:
    """Run the orders that standard input holds."""
    stop = Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    orders = WorkerOrders.model_validate_json(sys.stdin.readline())
    end_with_parent(STOP_S)

    def report(tally: FleetTally) -> None:
        try:
            print(tally.model_dump_json(), flush=True)
        except BrokenPipeError:
            stop.set()

    try:
        worker = FleetWorker(orders, stop)
    except Exception as error:  # noqa: BLE001  (the parent prints it as one sentence)
        report(FleetTally(worker=orders.worker, fatal=sentence_of(error)))
        return 1
    return 1 if worker.run(report) is not None else 0


# ------------------------------------------------------------ the processes


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
        command = [sys.executable, "-m", "simulation.fleet.processes"]
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


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that still run a learner's code must not block the exit
