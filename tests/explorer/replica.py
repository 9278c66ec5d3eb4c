"""One replica: a real Coordinator in a process, the requests that it holds open, and the work of a driver.

It serves requests one at a time, lets time pass and performs tasks as ``coordinator.runtime.driver`` does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from client_sdk.credentials.certificate import RevocationList
from client_sdk.credentials.errors import RolledBackList
from client_sdk.credentials.request_signature import RequestSignature
from client_sdk.protocol.problems import Problem
from coordinator.blobs import BlobError
from coordinator.folding.noise import SEED_BYTES
from coordinator.runtime import sweeping
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core, Task
from coordinator.runtime.identities import PinnedAuthority, Verify
from coordinator.runtime.run_errors import RaisedRunErrors
from coordinator.runtime.signals import Signals
from coordinator.store.port import Store, StoreError
from tests.explorer.disk import FaultyBlobs
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken, Crash
from tests.explorer.holders import counter_of, is_of_key, trusted
from tests.explorer.holds import HeldRequest, HeldRequests
from tests.explorer.ports import FaultyStore
from tests.explorer.process import Process
from tests.explorer.stacks import Stacks
from tests.explorer.watch import InvariantWatch
from tests.explorer.world import World

if TYPE_CHECKING:
    from tests.explorer.http.served import ServedApp, ServedRequest

IDLE_S = 10.0
"""The longest time between two calls of ``tick``, in seconds."""
RETRY_S = 2.0
LIST_AGAIN_S = 2.0
"""Seconds until a list that could not be taken is handed over again."""
SOON_S = 1.0
"""Seconds in which what is held open for a revoked key ends."""
EVERYWHERE_S = 16.0
"""Seconds in which every replica has read a list that one of them has stored: it reads at each tick, five seconds after
the last time."""


class QueuedLock:
    """The lock of one group commit, for the threads of one process, with a place before it where the fault ``queued``
    may strike: a thread that has put its proposal in the queue stands still there, and another thread commits both in
    one transaction. Nothing else of the product is changed.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lock = threading.Lock()
        self.locked = self._lock.locked

    def __enter__(self) -> None:
        if not self._lock.locked():
            self._process.queued()
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def watch_turns(process: Process, coordinator: Coordinator, watched: int) -> int:
    """Every group commit that the coordinator has by now gets a ``QueuedLock``; the first ``watched`` have one. Returns
    how many there are."""
    logs = coordinator.core.logs()
    for log in logs[watched:]:
        commit: Any = log.commits
        commit._turn = QueuedLock(process)
    return len(logs)


class Replica(Process):
    """``holds`` has its held requests."""

    def __init__(self, world: World, durable: Durable, watch: InvariantWatch, stacks: Stacks, number: int) -> None:
        super().__init__(world, durable, watch, stacks, f"r{number}")
        self._number = number
        self.holds = HeldRequests(self)
        self.app: ServedApp | None = None
        """Its HTTP side, in schedules over HTTP, while the process lives."""
        self.gathered: list[Any] = []
        """Requests that are about to be served in one call: see ``serving``."""
        self._ticking_at = float("inf")
        self._working = False
        self._watched = 0
        """How many logs of runs have a lock at which the fault ``queued`` may strike."""

    def boot(self) -> None:
        """Starts the process on what is durable. A start that fails is tried again."""
        if self.up or self.gone:
            return
        world = self.world
        self.life += 1
        world.starts, world.started_at = world.starts + 1, self.now()
        self.up, self._condemned, self._working, self._ticking_at = True, False, False, float("inf")
        self.fences, self.frozen, self.halted, self._watched = {}, 0, 0, 0
        world.log(f"{self.name} starts")
        self.admitted.forget()
        self.list_counter = self._stored_list()
        verify: Verify = RequestSignature.require_signed
        if not world.shape.http:
            verify = is_of_key
        noise = world.chance.entropy(f"noise {self.name}")
        try:
            self.coordinator = Coordinator(
                Core(
                    cast("Store", FaultyStore(self.durable.store, self)),
                    FaultyBlobs(self.durable.open_blobs(self.die_at), self),
                    clock=self,
                    signals=HttpSignals(self) if world.shape.http else ReplicaSignals(self),
                    settings=world.settings,
                    entropy=world.chance.entropy(f"entropy {self.name}"),
                    noise_seed=lambda run, number: noise(SEED_BYTES),
                    run_errors=RaisedRunErrors(),
                ),
                authority=PinnedAuthority(trusted()),
                verify=verify,
            )
            if world.shape.replicas == 1:
                sweeping.sweep(self.coordinator.core)
            self.coordinator.recover()
        except (StoreError, BlobError) as error:
            world.log(f"{self.name} cannot start: {error}")
            self.stop()
            world.agenda.after(1.0, self.boot)
            return
        except Crash as crash:
            self.fall(crash)
            return
        if world.shape.http:
            from tests.explorer.http.served import ServedApp  # the service's packages take a second to import

            self.app = ServedApp(self, self._number, self.coordinator)
        self.watch.discarded()
        if self.list_counter < world.authority.newest_list.counter:
            world.agenda.after(world.chance.between("fetch-list", 0.05, 5.0), self.take_list, None)
        self._tick_after(0.0)
        self._work_after(0.0)

    def before_call(self) -> None:
        if "queued" in self.world.possible:
            self._watched = watch_turns(self, self.coordinator, self._watched)

    def stop(self) -> None:
        """Ends the process, while none of its calls stands still."""
        self.up = False
        gathered, self.gathered = self.gathered, []
        for _, _, _, _, answer, _ in gathered:
            answer(None)
        self.holds.cut()
        self.end_app()

    def end_app(self) -> None:
        """Breaks the connections of its HTTP side, if it has one."""
        app, self.app = self.app, None
        if app is not None:
            app.end()

    def held_by(self, peer: str) -> HeldRequest | ServedRequest | None:
        """The newest held request of this peer."""
        return self.holds.of(peer) if self.app is None else self.app.of(peer)

    def held_for(self, key: str) -> Sequence[HeldRequest | ServedRequest]:
        """The held requests that the signal of this key wakes."""
        return self.holds.waiting_for(key) if self.app is None else self.app.waiting_for(key)

    # ------------------------------------------------------------ the authority's list

    def take_list(self, found: RevocationList | None, *, again: bool = False) -> None:
        """The process is handed this revocation list; None: the newest. A new one is handed to it until it is taken."""
        world = self.world
        if self.gone or not self.up:
            return  # it gets the newest one when it starts
        offered = found or world.authority.newest_list
        if self.busy() or (self.halted and self._locked()):
            world.agenda.after(LIST_AGAIN_S, lambda: self.take_list(found, again=True))
            return

        def take(coordinator: Coordinator) -> int:
            try:
                return coordinator.identities.take_list(offered.encoded).counter
            except RolledBackList:
                return 0

        stored, taken = self._stored_list(), dict(world.listed_at)
        counter, before = self.attempt("take-list", take), self.list_counter
        if not isinstance(counter, int):
            world.agenda.after(LIST_AGAIN_S, lambda: self.take_list(found, again=True))
            return
        if 0 < counter < before and not self.disturbed:
            raise Broken("list", f"{self.name} took list {counter} after list {before}")
        world.log(f"{self.name} " + (f"has list {counter}" if counter else f"refuses list {offered.counter}"))
        self.list_counter = max(counter, before)
        if self._stored_list() < self.list_counter:
            raise Broken("ack-durable", f"{self.name} took list {counter}, and the store does not have it")
        world.listed_at.setdefault(self.list_counter, world.agenda.now)
        if counter > before and not self.disturbed:
            new = {name for name, first in world.authority.left_out.items() if before < first <= counter}
            if stored < counter:
                fresh = {name for name in new if world.authority.left_out[name] > stored}
                self._require_dropped(fresh)
                self._expect_dropped_everywhere(fresh)
            elif counter in taken and world.shape.replicas == 2 and not world.interruptions:
                self._require_dropped(new)  # both replicas have it
            if world.shape.replicas == 1 and not again:
                self._expect_ended(new)

    def _require_dropped(self, new: set[str]) -> None:
        """These devices, whose keys are new on the list, wait no more."""
        still = sorted(new & {row.device for row in self.durable.store.waiting(float("-inf"))})
        if still:
            raise Broken("draw", f"{still} are on list {self.list_counter}, and wait to be drawn")

    def _expect_dropped_everywhere(self, new: set[str]) -> None:
        """Other replicas let these devices in until they have read the list, and then drop them, whichever of them had
        let them in, where no call stands still and no process dies meanwhile."""
        world = self.world
        place = (world.interruptions, world.tally.crashes)

        def look() -> None:
            if place == (world.interruptions, world.tally.crashes):
                self._require_dropped(new)

        if new and world.shape.replicas > 1 and not self._stacks.suspended:
            world.agenda.after(EVERYWHERE_S, look)

    def _expect_ended(self, new: set[str]) -> None:
        """What is held open for keys that are new on the list ends soon, where nothing comes between."""
        world = self.world
        keys = (*(f"device:{name}" for name in sorted(new)), "workers")
        held = [one for key in keys for one in self.held_for(key) if one.peer.split()[0] in new]
        place = (self.life, self.failures, world.interruptions)

        def look() -> None:
            if place == (self.life, self.failures, world.interruptions) and self.up and not self.frozen:
                for one in held:
                    if self.held_by(one.peer) is one:
                        raise Broken("liveness", f"{one.peer} is held open, and its key was revoked a second ago")

        if held:
            world.agenda.after(SOON_S, look)

    def _stored_list(self) -> int:
        stored = self.durable.store.revocations(self.world.authority.id)
        return 0 if stored is None else counter_of(stored)

    # ------------------------------------------------------------ what a driver does

    def _tick_after(self, delay_s: float) -> None:
        at = self.world.agenda.now + delay_s
        if at < self._ticking_at - 1e-9:
            self._ticking_at = at
            self.world.agenda.after(delay_s, self._tick, self.life, at)

    def _tick(self, life: int, at: float) -> None:
        if life != self.life or not self.up or at != self._ticking_at:
            return
        if self.busy():
            self.world.agenda.after(0.5, self._tick, life, at)
            return
        self._ticking_at = float("inf")
        deadline = self.attempt("tick", lambda coordinator: coordinator.tick())
        if not self.up:
            return
        sleep_s = IDLE_S
        if isinstance(deadline, float):
            sleep_s = min(IDLE_S, max(0.0, deadline - self.now()) + 0.001)
        elif isinstance(deadline, Problem):
            sleep_s = 1.0
        self._tick_after(sleep_s)
        self._work_after(0.0)

    def _work_after(self, delay_s: float) -> None:
        if not self._working:
            self._working = True
            if self.strikes("lazy", "task"):
                delay_s += self.world.chance.between("lazy-s", 0.5, 15.0)
            self.world.agenda.after(delay_s, self._work, self.life)

    def _work(self, life: int) -> None:
        if life != self.life or not self.up:
            return
        if self.busy() or (self.halted and self._locked()):
            self.world.agenda.after(0.2, self._work, life)
            return
        self._working = False
        task = self.coordinator.core.take_task()
        if task is None:
            return
        kind = type(task[1]).__name__.lower()
        result = self.attempt(kind, lambda coordinator: coordinator.perform(task))
        if not self.up or life != self.life:
            return
        if kind == "discard":
            self.watch.discarded()
        if isinstance(result, Problem):
            self.world.agenda.after(RETRY_S, self._put_back, life, task)
        self._work_after(0.002)

    def _put_back(self, life: int, task: Task) -> None:
        if life == self.life and self.up:
            self.coordinator.core.put_back(task)

    def woken(self, keys: Iterable[str]) -> None:
        """Handles signals of the coordinator: waiting requests are called again."""
        for key in keys:
            if key == "tasks":
                self._work_after(0.001)
            elif key == "fleet":
                self._tick_after(0.02)
            else:
                self.holds.woken(key)


class ReplicaSignals(Signals):
    """Signals that reach the replica's own loop instead of threads. Nobody waits for them, so they count nothing."""

    def __init__(self, replica: Replica) -> None:  # the table of versions has 128 KiB, and each start would make one
        self._replica = replica

    def wake(self, key: str) -> None:
        self._require_durable(key)
        self._replica.woken((key,))

    def wake_many(self, keys: Iterable[str]) -> None:
        self._require_durable("work")
        self._replica.woken(keys)

    def _require_durable(self, what: str) -> None:
        if self._replica.writing:
            raise Broken("ack-durable", f"{what} is handed out before its transaction has ended")


class HttpSignals(ReplicaSignals):
    """Signals of a replica for which tasks of its event loop wait."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        Signals.__init__(self)

    def wake(self, key: str) -> None:
        self.wake_many((key,))

    def wake_many(self, keys: Iterable[str]) -> None:
        found = list(keys)
        super().wake_many(found)
        Signals.wake_many(self, found)
