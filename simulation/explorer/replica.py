"""One replica: a real Coordinator, the process around it, and everything that can happen to that process.

It serves requests one at a time, lets time pass and performs tasks as ``coordinator.runtime.driver`` does, and can
die, come back, or stand still between any two durable steps. A call that stands still keeps its stack (``baton``): the
world goes on, so whatever the code had read by then is old when it returns.

It knows nothing of what an answer means.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from client_sdk.protocol.problems import Problem, ProblemError, problem
from coordinator.blobs import BlobError, DiskFull
from coordinator.runtime import sweeping
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Task
from coordinator.runtime.signals import Signals
from coordinator.store.port import StoreError
from simulation.explorer.disk import FaultyBlobs
from simulation.explorer.endings import Broken, Crash
from simulation.explorer.holds import Holds
from simulation.explorer.ports import FaultyStore

if TYPE_CHECKING:
    from simulation.explorer.world import World

T = TypeVar("T")

IDLE_S = 10.0
"""The longest time between two looks at the clock."""
RETRY_S = 2.0
DEEPEST = 3
"""How many calls stand still at the same time at most."""


class Replica:
    """``up`` while the process lives; ``stopped`` while it stands still."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.up = False
        self.gone = False
        """Whether this process never comes back."""
        self.frozen = 0
        """How many of its calls stand still as a whole process."""
        self.halted = 0
        """How many of its threads stand still."""
        self.clock_offset_s = 0.0
        self.writing = False
        """Whether a transaction is open: whoever stood still in one would keep the whole store waiting."""
        self.disturbed = False
        """Whether the world went on while the last call stood still."""
        self.life = 0
        self.fences: dict[str, int] = {}
        """The fence that this process raised last, by run."""
        self.holds = Holds(self)
        self._condemned = False
        self._ticking_at = float("inf")
        self._working = False

    # ------------------------------------------------------------ life and death

    def boot(self) -> None:
        """Starts the process on what is durable. A start that fails is tried again."""
        if self.up or self.gone:
            return
        world = self.world
        self.life += 1
        self.up, self._condemned, self._working, self._ticking_at = True, False, False, float("inf")
        self.fences, self.frozen, self.halted = {}, 0, 0
        world.tell(f"{self.name} starts")
        try:
            self.coordinator = Coordinator(
                FaultyStore(world.durable.store, self),
                FaultyBlobs(world.durable.open_blobs(self), self),
                clock=self,
                signals=Bells(self),
                settings=world.settings,
                entropy=world.chance.entropy(f"entropy {self.name}"),
            )
            if len(world.replicas) == 1:
                sweeping.sweep(self.coordinator.core)
            self.coordinator.recover()
        except (StoreError, BlobError) as error:
            world.tell(f"{self.name} cannot start: {error}")
            self._down()
            world.agenda.after(1.0, self.boot)
            return
        except Crash as crash:
            self.fall(crash)
            return
        self._tick_after(0.0)
        self._work_after(0.0)

    def fall(self, crash: Crash) -> None:
        """The process is dead. What it held open is cut."""
        world = self.world
        world.tally.crashes += 1
        world.tell(f"{self.name} dies at: {crash}")
        self._down()
        world.durable.crash(self)
        world.watch.crashed()
        alive = sum(1 for other in world.replicas if other.up or not other.gone)
        if world.lost_replicas > 0 and world.stormy and alive > 1:
            world.lost_replicas -= 1
            self.gone = True
            world.tell(f"{self.name} never comes back")
            return
        delay = world.chance.between("restart", 0.05, 20.0) if world.stormy else 0.1
        world.agenda.after(delay, self.boot)

    def _down(self) -> None:
        self.up = False
        self.holds.cut()

    def stop(self) -> None:
        """The process is ended, with nothing of it standing still."""
        self._down()

    # ------------------------------------------------------------ faults

    def now(self) -> float:
        """The Clock port: the world's time by this machine's clock."""
        return self.world.agenda.now + self.clock_offset_s

    def strikes(self, fault: str, where: str) -> bool:
        world = self.world
        return world.stormy and fault in world.possible and world.strikes(fault, f"{self.name} {where}")

    def die_at(self, where: str) -> None:
        if self._condemned or self.strikes("crash", where):
            self._condemned = True
            raise Crash(where)

    def point(self, where: str) -> None:
        """A place between two durable steps: the process may die here, or stand still while others go on."""
        self.die_at(where)
        world, life = self.world, self.life
        if world.stormy and not self.writing and world.baton.standing < DEEPEST:
            if self.strikes("pause", where):
                self._stand_still(where, "frozen", world.chance.between("pause-s", 0.1, 40.0))
            elif "interleave" in world.possible and not self._locked() and self.strikes("interleave", where):
                self._stand_still(where, "halted", world.chance.between("interleave-s", 0.01, 8.0))
        if self._condemned or life != self.life or not self.up:
            raise Crash(where)

    def _stand_still(self, where: str, how: str, seconds: float) -> None:
        world, life = self.world, self.life
        world.watch.step()
        world.interruptions += 1
        what = "stands still" if how == "frozen" else "has a thread that stands still"
        world.tell(f"{self.name} {what} for {seconds:.1f} s at: {where}")
        setattr(self, how, getattr(self, how) + 1)

        def plan_return(back: Callable[[], None]) -> None:
            def go_on() -> None:
                if how == "halted" and self.frozen and life == self.life:
                    world.agenda.after(0.5, go_on)
                else:
                    back()

            world.agenda.after(seconds, go_on)

        world.baton.stand_still(plan_return)
        if life == self.life:
            setattr(self, how, getattr(self, how) - 1)
            world.tell(f"{self.name} goes on")

    def _locked(self) -> bool:
        """Whether the thread that stands here holds a lock that another of this process would wait for."""
        return self.coordinator.locked()

    # ------------------------------------------------------------ calls

    def busy(self) -> bool:
        """Whether nothing can be asked of this process right now, though it lives."""
        return self.frozen > 0

    def attempt(self, event: str, work: Callable[[Coordinator], T]) -> T | Problem | None:
        """One call into the coordinator. None: the process died in it, or had died. Bugs of the product break."""
        world = self.world
        if not self.up:
            return None
        life = self.life
        world.met(event)
        before = world.interruptions
        try:
            result: T | Problem = work(self.coordinator)
            self._die_before_answer(event)
        except ProblemError as error:
            world.tell(f"{self.name} refuses {event}: {error.problem.kind}: {error}")
            if before == world.interruptions:
                world.watch.require_unmoved(event, error.problem)
            result = error.problem
        except (StoreError, BlobError) as error:
            world.tell(f"{self.name} fails at {event}: {error}")
            result = _told(error)
        except Crash as crash:
            if life == self.life and self.up:
                self.fall(crash)
            return None
        except Exception as error:
            trace = "".join(traceback.format_exception(error)[-3:])
            raise Broken("no-bug", f"{event} raised {type(error).__name__}: {error}\n{trace}") from error
        self.disturbed = before != world.interruptions
        return result

    def _die_before_answer(self, event: str) -> None:
        if self._condemned or self.strikes("crash-before-answer", event):
            raise Crash(f"{event} done, nobody told")

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
        task = self.coordinator.take_task()
        if task is None:
            return
        kind = type(task[1]).__name__.lower()
        result = self.attempt(kind, lambda coordinator: coordinator.perform(task))
        if not self.up or life != self.life:
            return
        if isinstance(result, Problem):
            self.world.agenda.after(RETRY_S, self._put_back, life, task)
        self._work_after(0.002)

    def _put_back(self, life: int, task: Task) -> None:
        if life == self.life and self.up:
            self.coordinator.put_back(task)

    def rung(self, keys: Iterable[str]) -> None:
        """Signals of the coordinator: who waits looks again."""
        for key in keys:
            if key == "tasks":
                self._work_after(0.001)
            elif key == "fleet":
                self._tick_after(0.02)
            else:
                self.holds.rung(key)


class Bells(Signals):
    """Signals that reach the replica's own loop instead of threads."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self._replica = replica

    def wake(self, key: str) -> None:
        self._replica.rung((key,))

    def wake_many(self, keys: Iterable[str]) -> None:
        self._replica.rung(keys)


def _told(error: StoreError | BlobError) -> Problem:
    """What a peer is told when the machine could not, as ``service.errors`` has it."""
    if isinstance(error, StoreError):
        return problem("busy", "The coordinator's database is busy; nothing happened.", retry_after_s=2).problem
    if isinstance(error, DiskFull):
        return problem("disk-full", "The coordinator has no room left; nothing was kept.", retry_after_s=30).problem
    return problem("internal", "The coordinator's disk failed.").problem
