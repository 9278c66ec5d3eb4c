"""What time does: recovery after a start, deadlines, pools that filled up, commits that nobody finishes, runs of other
replicas, rows that expired.
"""

from __future__ import annotations

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.phases.leasing import fleet_is_back
from coordinator.engine.phases.lifecycle import phase_s
from coordinator.engine.state import RunState
from coordinator.runtime.commits import Commits
from coordinator.runtime.core import Core
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.run_log import RunLog

_HOUSEKEEPING_S = 30.0
"""How often runs that other replicas created are looked for, and expired rows deleted."""
_AGAIN_S = 0.1
"""The soonest that a deadline is looked at again: a draw may still wait for a free thread, or for the disk."""
_COMMIT_S = 10.0
"""How long a round may be committing before its commit is asked for again; doubled each time."""
_SKEW_S = 5.0
"""How far the clocks of two replicas may differ before a deadline looks as if the clock had fallen."""


class Timekeeping:
    """``recover`` is called once, ``tick`` whenever a deadline may have passed; by one thread."""

    def __init__(self, core: Core, fleet: Fleet, commits: Commits) -> None:
        self._core = core
        self._fleet = fleet
        self._commits = commits
        self._latest_now = core.clock.now()
        self._cleaned_at = self._latest_now
        self._committing: dict[str, tuple[int, float, float]] = {}
        """Of runs that are committing: (round, since when, seconds until it is asked for again)."""

    def recover(self) -> None:
        """Whatever was in flight is in flight again."""
        for row in self._core.store.runs():
            log = self._begun(row.run)
            self._core.hand_out(row.run, rounds.pending(log.catch_up()))

    def tick(self) -> float | None:
        """Lets time pass. Returns the next deadline in the clock's time, None when there is none."""
        now = self._core.clock.now()
        fell, self._latest_now = self._latest_now - now, now
        self._keep_house(now)
        counts: dict[str, int] | None = None
        deadlines = []
        for log in self._core.logs():
            if log.state.over:
                continue
            state = log.catch_up()
            if fell > 0 or _beyond_s(state, now) > _SKEW_S:
                log.submit(lambda tx, state, at: _clock_fell(state, at, fell))
            state = log.state
            if state.phase == "committing":
                self._see_through(log.run, state, now)
            if state.deadline is None:
                continue
            if state.phase == "leasing":
                counts = self._fleet.counts() if counts is None else counts
                deadlines += self._let_wait(log, counts, now)
                continue
            if state.phase == "selecting":
                if now < state.deadline:
                    counts = self._fleet.counts() if counts is None else counts
                if now >= state.deadline or self._pool_is_full(state, counts or {}):
                    self._core.hand_out_once(log.run, fx.Draw(round=state.round_number))
            elif now >= state.deadline:
                log.submit(lambda tx, state, at: ev.Tick(at=at))
            if log.state.deadline is not None:
                deadlines.append(max(log.state.deadline, now + _AGAIN_S))
        return min(deadlines, default=None)

    def _keep_house(self, now: float) -> None:
        if 0 <= now - self._cleaned_at < _HOUSEKEEPING_S:
            return
        self._cleaned_at = now
        for row in self._core.store.runs():
            self._begun(row.run)
        with self._core.store.transaction() as tx:
            tx.expire_waiting(now)

    def _let_wait(self, log: RunLog, counts: dict[str, int], now: float) -> list[float]:
        """A datacenter round that waits for a worker: given up when it is time, or when enough devices wait.

        Returns when to look again, where that is known: once a quorum is enough, devices' arrivals say.
        """
        state = log.state
        give_up_at = None if state.round is None else state.round.give_up_at
        if give_up_at is not None and now >= give_up_at:
            log.submit(lambda tx, state, at: ev.Tick(at=at))
            return [now + _AGAIN_S]
        if fleet_is_back(state, now, self._fleet.count_eligible(state, counts)):
            self._core.hand_out_once(log.run, fx.Return(round=state.round_number))
        return [at for at in (state.deadline, give_up_at) if at is not None and at > now]

    def _pool_is_full(self, state: RunState, counts: dict[str, int]) -> bool:
        return self._fleet.count_eligible(state, counts) >= state.plan.cohort.pool_count

    def _begun(self, run: str) -> RunLog:
        """The run's log; begins the run where whoever created it died, or was cut off, before its first event."""
        log = self._core.log(run)
        if not log.state.round_number and not log.catch_up().round_number:
            log.submit(lambda tx, state, at: ev.Created(at=at))
        return log

    def _see_through(self, run: str, state: RunState, now: float) -> None:
        """Asks again for a commit that nobody may be at: its task died with another replica, or with an answer of the
        database that was lost. Each time later, so that replicas never keep taking one long commit from each other.
        """
        number, since, patience_s = self._committing.get(run, (0, now, _COMMIT_S))
        if number != state.round_number or now < since:
            self._committing[run] = (state.round_number, now, _COMMIT_S)
        elif now - since >= patience_s:
            self._committing[run] = (state.round_number, now, 2 * patience_s)
            if not self._commits.under_way(run) and not any(task == run for task, _ in self._core.tasks()):
                self._core.hand_out(run, rounds.pending(state))


def _beyond_s(state: RunState, now: float) -> float:
    """By how much the open deadline lies further ahead than its phase is long: the clock fell while nobody looked."""
    if state.round is None or state.round.deadline is None:
        return 0.0
    return state.round.deadline - now - phase_s(state.plan, state.round)


def _clock_fell(state: RunState, at: float, fell_s: float) -> ev.ClockFell | None:
    """The event, where there is an open deadline to move: back by what was seen, or to where it could be at most."""
    if state.deadline is None:
        return None
    by_s = max(fell_s, _beyond_s(state, at))
    return ev.ClockFell(at=at, by_s=by_s) if by_s > 0 else None
