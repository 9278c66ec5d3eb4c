"""Liveness within a phase: in calm weather nobody who waits for work, and no full pool, waits for a deadline, and no
phase outlasts its own.

A worker that no run may use is not woken for a round: it began to wait while all runs were paused, and is told when its
hold ends that it lacks what a plan asks for. Until then it has nothing to do that it could miss.

Without faults, and with one replica, a signal reaches at once the devices that were drawn and the workers that wait,
and a full pool is drawn at once. After a storm this is required only when what the storm has delayed is over. That a
phase ends is required of every run, with any number of replicas: a round that commits in one run excuses no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.explorer.draws import EVER, eligible
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken
from tests.explorer.follow import TrackedRun
from tests.explorer.holds import HeldRequest
from tests.explorer.offers import serves
from tests.explorer.replica import Replica
from tests.explorer.world import World

if TYPE_CHECKING:
    from tests.explorer.http.served import ServedRequest

SOON_S = 1.0
"""Virtual seconds within which a signal has its effect."""
LATE_S = 15.0
"""Seconds after its deadline in which a phase ends: the longest time between two calls of ``tick``, and a retry."""
COMMIT_S = 60.0
"""Seconds in which a round is committed: another replica takes it over where the first one cannot."""
CALM_S = 20.0
"""Seconds after the storm in which tasks and threads that it delayed may still be late."""


class WakeupChecks:
    """``replicas`` is filled by the schedule."""

    def __init__(self, world: World, durable: Durable, replicas: Sequence[Replica]) -> None:
        self._world = world
        self._durable = durable
        self._replicas = replicas

    def moved(self, run: TrackedRun) -> None:
        """A run has come to another phase."""
        self._expect_end(run)
        if self._world.stormy or len(self._replicas) != 1:
            return
        replica = self._replicas[0]
        match run.phase:
            case "collecting" if run.secure is None or not run.secure.attempt:
                held = [replica.held_by(device) for device in run.awaited]
                self._expect(run, [one for one in held if one is not None])
            case "leasing" if self._calm:
                held_for = replica.held_for("workers")
                self._expect(run, [one for one in held_for if serves(run.plan, one.message)])
            case "selecting":
                self.pool_grew([run])
            case _:
                pass

    def pool_grew(self, runs: Sequence[TrackedRun]) -> None:
        """A device has come to the pool, or a run begins to draw from it."""
        if not self._calm or len(self._replicas) != 1:
            return
        at = self._replicas[0].now()
        for run in runs:
            if run.phase == "selecting" and self._is_full(run, at):
                self._world.agenda.after(SOON_S, self._require_drawn, run, run.round, at)

    @property
    def _calm(self) -> bool:
        world = self._world
        return not world.stormy and world.agenda.now >= world.calm_since + CALM_S

    def calmed(self, runs: Sequence[TrackedRun]) -> None:
        """What the storm has delayed is over: the phases under way last no longer than if they began now."""
        for run in runs:
            self._expect_end(run)

    def _expect_end(self, run: TrackedRun) -> None:
        cohort = run.plan["cohort"]
        lasts_s = {
            "selecting": cohort["select_s"] + LATE_S,
            "collecting": cohort["collect_s"] + LATE_S,
            "committing": COMMIT_S,
        }.get(run.phase)
        if not self._calm or (run.phase == "collecting" and run.buffered):  # it closes when so many have reported
            return
        if lasts_s is not None:
            self._world.agenda.after(lasts_s, self._require_ended, run, _place(run), lasts_s)
        elif run.phase in ("leasing", "training"):
            self._world.agenda.after(LATE_S, self._require_no_standstill, run, (run.round, run.attempt, run.phase))

    def _require_no_standstill(self, run: TrackedRun, place: tuple[int, int, str]) -> None:
        """A lease ends when its heartbeats do, or the round's time. A round that no worker has ends when enough
        devices wait to begin one, after its own wait."""
        if (run.round, run.attempt, run.phase) != place:
            return
        now = self._replicas[0].now()
        if run.phase == "training":
            late_s, stands = now - run.lease_ends_at, True
        else:
            late_s = now - (run.deadline or now)
            stands = late_s > LATE_S and self._waiting_since(run, now - LATE_S) >= run.fewest
        if late_s > LATE_S and stands:
            raise Broken("liveness", f"round {run.round} of {run.run} is {run.phase}, {late_s:.0f} s after its time")
        self._world.agenda.after(LATE_S, self._require_no_standstill, run, place)

    def _require_ended(self, run: TrackedRun, place: tuple[int, int, str, int], lasts_s: float) -> None:
        """A phase ends in its time; a selection may have been missed, which begins it anew. A run that only other
        devices help waits for them."""
        number, _, phase, _ = place
        waits = phase == "selecting" and run.deadline is None
        if _place(run) == place and not (
            waits and self._waiting_since(run, self._replicas[0].now() - LATE_S) < run.fewest
        ):
            raise Broken("liveness", f"round {number} of {run.run} is {phase} after {lasts_s:.0f} s, in calm weather")

    def _expect(self, run: TrackedRun, held: Sequence[HeldRequest | ServedRequest]) -> None:
        self._world.agenda.after(SOON_S, self._require_woken, run, run.round, run.phase, held)

    def _require_woken(
        self, run: TrackedRun, round: int, phase: str, held: Sequence[HeldRequest | ServedRequest]
    ) -> None:
        for one in held:
            if (run.round, run.phase) == (round, phase) and self._replicas[0].held_by(one.peer) is one:
                raise Broken("liveness", f"{one.peer} waits for work, there is some ({phase}), and it is not woken")

    def _require_drawn(self, run: TrackedRun, round: int, at: float) -> None:
        if (run.round, run.phase) == (round, "selecting") and self._is_full(run, at):
            raise Broken("liveness", f"enough devices wait for round {round} of {run.run}, and none is drawn")

    def _is_full(self, run: TrackedRun, at: float) -> bool:
        return self._waiting_since(run, at) >= (run.fewest if run.deadline is None else int(run.plan["cohort"]["pool"]))

    def _waiting_since(self, run: TrackedRun, at: float) -> int:
        """How many devices that the run may use have waited since then, or longer."""
        now = self._replicas[0].now()
        rows = [row for row in self._durable.store.waiting(EVER) if row.since <= at and row.expires > now]
        return len(eligible(run, rows))


def _place(run: TrackedRun) -> tuple[int, int, str, int]:
    """(round, attempt, phase, missed selections)"""
    return run.round, run.attempt if run.secure is None else run.secure.attempt, run.phase, run.failed
