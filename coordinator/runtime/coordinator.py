"""The Coordinator: events in, effects performed. One object a process, synchronous, safe from any thread.

It is composed: a core (ports, logs, the queue of actions), and collaborators over it that answer devices, operators
and workers, let time pass, and perform actions. ``RunLog`` makes an event durable; the collaborators decide which event
a request is. They raise ``ProblemError`` for what a peer did wrong, and let ``StoreError`` and ``BlobError`` pass for
what the machine could not do.

Who calls ``tick`` and ``perform``, and when, is decided elsewhere: the service runs a ``Driver`` with threads, the
simulator a virtual clock, the fault explorer one call at a time with crashes between.
"""

from __future__ import annotations

import secrets

from coordinator.blobs import Blobs
from coordinator.folding.aggregator import MakeSums
from coordinator.folding.sums import SpooledSums
from coordinator.runtime.actions import Actions
from coordinator.runtime.clock import Clock
from coordinator.runtime.commits import Commits
from coordinator.runtime.core import Core, Entropy, Task
from coordinator.runtime.devices import DeviceRequests
from coordinator.runtime.extensions import FindExtensions, installed
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.operators import OperatorRequests
from coordinator.runtime.signals import Signals
from coordinator.runtime.timekeeping import Timekeeping
from coordinator.runtime.workers import WorkerRequests
from coordinator.settings import Settings
from coordinator.store.port import Store

__all__ = ["Coordinator", "Task"]


class Coordinator:
    """``devices``, ``operators`` and ``workers`` answer requests; what happens without a request is here."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        *,
        clock: Clock | None = None,
        signals: Signals | None = None,
        settings: Settings | None = None,
        entropy: Entropy = secrets.token_bytes,
        sums: MakeSums = SpooledSums,
        extensions: FindExtensions = installed,
    ) -> None:
        self.core = Core(
            store,
            blobs,
            clock=clock,
            signals=signals,
            settings=settings,
            entropy=entropy,
            sums=sums,
            extensions=extensions,
        )
        self.fleet = Fleet(store, self.core.clock, self.core.signals, self.core.settings, entropy)
        self.devices = DeviceRequests(self.core, self.fleet)
        self.operators = OperatorRequests(self.core, self.fleet)
        self.workers = WorkerRequests(self.core, self.fleet)
        commits = Commits(self.core)
        self._actions = Actions(self.core, self.fleet, commits)
        self._time = Timekeeping(self.core, self.fleet, commits)

    def recover(self) -> None:
        """After a start: whatever was in flight is in flight again. MissingExtension where a run of the store cannot go
        on here."""
        self.core.require_extensions()
        self._time.recover()

    def tick(self) -> float | None:
        """Lets time pass. Returns the next deadline in the clock's time, None when there is none."""
        return self._time.tick()

    def take_task(self) -> Task | None:
        """The next action to perform, or None."""
        return self.core.take_task()

    def put_back(self, task: Task) -> None:
        """A task that could not be performed waits for another try."""
        self.core.put_back(task)

    def perform(self, task: Task) -> None:
        """Performs one action.

        Raises StoreError or BlobError when the machine could not; the action may then be performed again.
        """
        self._actions.perform(task)

    def healthy(self) -> dict[str, object]:
        """What readiness looks at: raises StoreError when the database does not answer."""
        waiting = sum(self.fleet.counts().values())
        return {"runs": len(self.core.store.runs()), "tasks": len(self.core.tasks()), "waiting": waiting}

    def locked(self) -> bool:
        """Whether any thread holds a lock of this process that another would wait for."""
        return self.core.locked() or self.fleet.locked()
