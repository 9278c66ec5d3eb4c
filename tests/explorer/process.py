"""One process of the coordinator: it can die, come back or stand still between any two durable steps.

A call that stands still keeps its stack (``stacks``): the world goes on, so values that the code has read by then are
old when it continues. ``replica`` implements what a running process does.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from client_sdk.protocol.problems import Problem, ProblemError, problem
from coordinator.blobs import BlobError, DiskFull
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.secure_rounds import SecureRoundsWait
from coordinator.store.port import StoreError
from tests.explorer.admission import Admitted
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken, Crash
from tests.explorer.stacks import Stacks
from tests.explorer.watch import InvariantWatch
from tests.explorer.world import World

T = TypeVar("T")

DEEPEST = 3
"""How many calls stand still at the same time at most."""


class Process(ABC):
    """``up`` while the process lives."""

    coordinator: Coordinator

    def __init__(self, world: World, durable: Durable, watch: InvariantWatch, stacks: Stacks, name: str) -> None:
        self.world = world
        self.durable = durable
        self.watch = watch
        self._stacks = stacks
        self.name = name
        self.up = False
        self.gone = False
        """Whether this process never comes back."""
        self.frozen = 0
        """How many of its calls stand still as a whole process."""
        self.halted = 0
        """How many of its threads stand still."""
        self.went_on_at = 0.0
        """When a call of it that stood still went on last: what it has read may be from before."""
        self.skew_s = 0.0
        """By how much this machine's clock differs from the world's as long as nothing makes it jump."""
        self.clock_offset_s = 0.0
        self.writing = False
        """Whether a transaction is open: a call that stands still in one would block the whole store."""
        self.disturbed = False
        """Whether the world went on while the last call stood still."""
        self._queued = 0
        """How many proposals wait for their turn: another call may commit them with its own."""
        self.life = 0
        self.failures = 0
        """How often a call ended with an error of the store or the disk."""
        self.fences: dict[str, int] = {}
        """The fence that this process raised last, by run."""
        self.admitted = Admitted()
        self.list_counter = 0
        """The highest counter of a revocation list that this process has taken, or found in the store at its start."""
        self._condemned = False

    @abstractmethod
    def boot(self) -> None:
        """Starts the process on what is durable."""

    @abstractmethod
    def before_call(self) -> None:
        """Called before each call of the coordinator."""

    @abstractmethod
    def stop(self) -> None:
        """Ends the process; its connections are cut."""

    def fall(self, crash: Crash) -> None:
        """Ends the dead process and closes its connections."""
        world = self.world
        world.tally.crashes += 1
        world.log(f"{self.name} dies at: {crash}")
        self.stop()
        self.durable.crash(alone=world.shape.replicas == 1 and not self._stacks.suspended)
        self.watch.crashed()
        if self.durable.flips is not None:
            self.durable.flips.died(self.watch.committing)
        if world.lost_replicas > 0 and world.stormy and world.replicas_left > 1:
            world.lost_replicas -= 1
            world.replicas_left -= 1
            self.gone = True
            world.log(f"{self.name} never comes back")
            return
        delay = world.chance.between("restart", 0.05, 20.0) if world.stormy else 0.1
        world.agenda.after(delay, self.boot)

    # ------------------------------------------------------------ faults

    def now(self) -> float:
        """The Clock port: the world's time by this machine's clock."""
        return self.world.agenda.now + self.clock_offset_s

    def elapsed(self) -> float:
        return self.world.agenda.now

    def strikes(self, fault: str, where: str) -> bool:
        world = self.world
        return world.stormy and fault in world.possible and world.struck(fault, f"{self.name} {where}")

    def die_at(self, where: str) -> None:
        if self._condemned or self.strikes("crash", where):
            self._condemned = True
            raise Crash(where)

    def point(self, where: str) -> None:
        """A place between two durable steps: the process may die here, or stand still while others go on."""
        self.die_at(where)
        world, life = self.world, self.life
        if world.stormy and not self.writing and self._stacks.suspended < DEEPEST:
            if self.strikes("pause", where):
                self._stand_still(where, "frozen", world.chance.between("pause-s", 0.1, 40.0))
            elif "interleave" in world.possible and not self._locked() and self.strikes("interleave", where):
                self._stand_still(where, "halted", world.chance.between("interleave-s", 0.01, 8.0))
        if self._condemned or life != self.life or not self.up:
            raise Crash(where)

    def queued(self) -> None:
        """A thread has queued a proposal and waits for its turn: it may stand still while another commits it."""
        world, life = self.world, self.life
        if "queued" not in world.possible or not world.stormy or self.writing:
            return
        if self._stacks.suspended < DEEPEST and not self._locked() and self.strikes("queued", "turn"):
            self._queued += 1
            self._stand_still("turn", "halted", world.chance.between("queued-s", 0.01, 3.0))
            self._queued -= 1
            if self._condemned or life != self.life or not self.up:
                raise Crash("turn")

    def _stand_still(self, where: str, how: str, seconds: float) -> None:
        world, life = self.world, self.life
        self.watch.step()
        world.interruptions += 1
        what = "stands still" if how == "frozen" else "has a thread that stands still"
        world.log(f"{self.name} {what} for {seconds:.1f} s at: {where}")
        setattr(self, how, getattr(self, how) + 1)

        def plan_return(back: Callable[[], None]) -> None:
            def go_on() -> None:
                if how == "halted" and self.frozen and life == self.life:
                    world.agenda.after(0.5, go_on)
                else:
                    back()

            world.agenda.after(seconds, go_on)

        self._stacks.suspend(plan_return)
        if life == self.life:
            self.went_on_at = world.agenda.now
            setattr(self, how, getattr(self, how) - 1)
            world.log(f"{self.name} goes on")

    def _locked(self) -> bool:
        """Whether the thread that stands here holds a lock that another of this process would wait for."""
        to, core = self.coordinator, self.coordinator.core
        folding = [aggregator._lock for aggregator in list(core.process.aggregators.values())]
        of_identities = (to.identities.registrations, to.identities._list._taking)
        held: list[Any] = [core._lock, to.fleet.arrivals, *of_identities, to.workers._leasing]
        return any(lock.locked() for lock in (*held, *folding, *(log.commits for log in core.logs())))

    # ------------------------------------------------------------ calls

    def busy(self) -> bool:
        """Whether nothing can be asked of this process right now, though it lives."""
        return self.frozen > 0

    def attempt(self, event: str, work: Callable[[Coordinator], T]) -> T | Problem | None:
        """Makes one call of the coordinator. None: the process died in it, or was dead. ``Broken`` for a bug of the
        product."""
        world = self.world
        if not self.up:
            return None
        life = self.life
        world.met(event)
        self.before_call()
        before, entered = world.interruptions, self._has_entered()
        try:
            result: T | Problem = work(self.coordinator)
            self._die_before_answer(event)
        except ProblemError as error:
            world.log(f"{self.name} refuses {event}: {error.problem.kind}: {error}")
            if before == world.interruptions and not self._queued and not entered:
                self.watch.require_unmoved(event, error.problem)
            result = error.problem
        except (StoreError, BlobError) as error:
            world.log(f"{self.name} fails at {event}: {error}")
            self.failures += 1
            result = _problem_of(error)
        except SecureRoundsWait as error:
            world.log(f"{self.name} waits at {event}: {error}")
            result = problem("busy", str(error), retry_after_s=2).problem
        except Crash as crash:
            if life == self.life and self.up:
                self.fall(crash)
            return None
        except Exception as error:
            trace = "".join(traceback.format_exception(error)[-3:])
            raise Broken("no-bug", f"{event} raised {type(error).__name__}: {error}\n{trace}") from error
        self.disturbed = before != world.interruptions
        return result

    def _has_entered(self) -> bool:
        """Whether a proposal is queued that its request settles later: whoever is settled next commits it too."""
        commits: list[Any] = [log.commits for log in self.coordinator.core.logs()]
        return any(commit._queue for commit in commits)

    def _die_before_answer(self, event: str) -> None:
        if self._condemned or self.strikes("crash-before-answer", event):
            raise Crash(f"{event} done, not answered")


def _problem_of(error: StoreError | BlobError) -> Problem:
    """The answer where the database or the disk failed, as ``service.errors`` gives it."""
    if isinstance(error, StoreError):
        return problem("busy", "The coordinator's database is busy; nothing happened.", retry_after_s=2).problem
    if isinstance(error, DiskFull):
        return problem("disk-full", "The coordinator has no room left; nothing was stored.", retry_after_s=30).problem
    return problem("internal", "The coordinator's disk failed.").problem
