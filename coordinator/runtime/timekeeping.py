"""What happens with the passing of time: recovery after a start, deadlines, full pools, commits that nobody finishes,
runs of other replicas, expired rows.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.phases import opening
from coordinator.engine.phases.leasing import fleet_is_back
from coordinator.engine.state import RunState
from coordinator.runtime.commits import Commits
from coordinator.runtime.core import Core
from coordinator.runtime.fleet import Counts, Fleet
from coordinator.runtime.identities import Identities
from coordinator.runtime.log_context import about
from coordinator.runtime.marks import helped_by_another_model
from coordinator.runtime.run_creation import begin_run
from coordinator.runtime.run_log import RunLog
from coordinator.runtime.sweeping import sweep_secure
from coordinator.runtime.uncertain_updates import UncertainUpdates

_HOUSEKEEPING_S = 30.0
"""Seconds between two searches for runs of other replicas, with which expired rows are deleted."""
_SWEEP_S = 600.0
"""Seconds between two searches for blobs that secure rounds have left behind."""
_AGAIN_S = 0.1
"""The least number of seconds until a deadline is checked again: a draw may wait for a free thread, or for the disk."""
_AFTER_ERROR_S = 1.0
"""Seconds until a run that could not be handled is tried again."""
_PATIENCE_S = 10.0
"""Seconds for which a run may wait for an action before it is issued again; doubled each time."""
_WORK = fx.Commit | fx.CommitSum | fx.Advance | fx.Announce | fx.Gather | fx.Open
"""Actions that no event of a device makes unnecessary: without them the run stands still until a deadline, or ever."""
_REOPEN_S = 5.0
"""Seconds until a run whose next round was not opened is looked at again."""
_SKEW_S = 5.0
"""Seconds by which the clocks of two replicas may differ before a deadline seems to show that the clock has fallen."""


class Timekeeping:
    """``recover`` is called once, ``tick`` whenever a deadline may have passed; by one thread.

    An error in one run is noted in ``core.process.run_errors``, and the others are handled."""

    def __init__(
        self, core: Core, identities: Identities, fleet: Fleet, commits: Commits, uncertain: UncertainUpdates
    ) -> None:
        self._core = core
        self._identities = identities
        self._fleet = fleet
        self._commits = commits
        self._uncertain = uncertain
        self._latest_now = core.clock.now()
        self._cleaned_at = self._swept_at = self._latest_now
        self._awaited: dict[str, tuple[fx.Action, float, float]] = {}
        """For runs that wait for an action of a coordinator: (action, since when, seconds until it is issued again)."""
        self._unrecovered: set[str] = set()
        """Runs whose pending actions could not be issued yet."""

    def recover(self) -> None:
        """Issues pending actions again."""
        self._unrecovered = set(self._core.store.run_ids())
        self._recover_left()

    def tick(self) -> float | None:
        """Handles deadlines that have passed. Returns the next deadline in the clock's time, None where there is
        none."""
        now = self._core.clock.now()
        fell, self._latest_now = self._latest_now - now, now
        if fell > 0:
            self._core.process.forget()
        self._clean_up(now)
        counts: list[Counts] = []
        deadlines: list[float] = []

        def waiting() -> Counts:
            if not counts:
                counts.append(self._fleet.counts())
                if counts[0].again_s:
                    deadlines.append(now + counts[0].again_s)
            return counts[0]

        def eligible(state: RunState) -> int:
            found, again_s = self._fleet.count_eligible(state, waiting)
            if again_s:
                deadlines.append(now + again_s)
            return found

        process = self._core.process
        failed = (process.logs.get(run) for run in process.run_errors.all())
        for log in (*process.going(), *(log for log in failed if log is not None and log.state.over)):
            try:
                deadlines += self._handle(log, now, fell, eligible)
            except Exception as error:  # noqa: BLE001 - noted with the run's name; the others have deadlines too
                self._note(log.run, error)
                deadlines.append(now + _AFTER_ERROR_S)
            else:
                self._handled(log.run)
        return min(deadlines, default=None)

    def _handle(self, log: RunLog, now: float, fell: float, eligible: Callable[[RunState], int]) -> list[float]:
        """Handles the deadlines of one run, and returns the next ones. ``eligible`` counts who waits for a run."""
        if log.state.over:
            return []
        state = log.catch_up()
        if fell > 0 or _beyond_s(state, now) > _SKEW_S:
            log.submit(lambda tx, state, at: _clock_fell(state, at, fell))
        state = log.state
        self._retry_work(log.run, state, now)
        if state.round is None and state.begun and state.status == "running":
            if opening.reason_against(state, now) is not None:
                return [now + _REOPEN_S]
            log.submit(lambda tx, state, at: ev.Tick(at=at))
            state = log.state
        places = state.round is not None and state.phase == "collecting" and rounds.kind_of(state.round).free(state)
        if places and eligible(state) >= state.drawn_from:
            self._core.hand_out_once(log.run, fx.Draw(round=state.round_number))
        if state.deadline is None and not state.waits:
            return []
        if state.phase in ("leasing", "selecting"):
            self._core.blobs.size(state.checkpoint)  # Gone: no round of a lost model begins
        late = state.deadline is not None and now >= state.deadline
        if state.phase == "leasing":
            return self._let_wait(log, eligible, now)
        if state.phase == "selecting":
            if late or eligible(state) >= state.drawn_from:
                self._core.hand_out_once(log.run, fx.Draw(round=state.round_number))
        elif late:
            log.submit(lambda tx, state, at: ev.Tick(at=at))
        return [] if log.state.deadline is None else [max(log.state.deadline, now + _AGAIN_S)]

    def _handled(self, run: str) -> None:
        if run not in self._unrecovered:
            self._core.process.run_errors.clear(run)

    def _clean_up(self, now: float) -> None:
        if 0 <= now - self._cleaned_at < _HOUSEKEEPING_S:
            return
        self._cleaned_at = now
        self._recover_left()
        for run in self._core.store.run_ids():
            if run not in self._unrecovered:
                self._noting(run, self._begun)
        self._uncertain.settle()
        if not 0 <= now - self._swept_at < _SWEEP_S:
            self._swept_at = now
            sweep_secure(self._core, now)
        with self._core.store.transaction() as tx:
            tx.expire_waiting(now)

    def _recover_left(self) -> None:
        for run in sorted(self._unrecovered):
            if self._noting(run, self._recover):
                self._unrecovered.discard(run)

    def _recover(self, run: str) -> None:
        log = self._begun(run)
        if log.catch_up().deadline is not None:
            log.submit(lambda tx, state, at: ev.Recovered(at=at))
        self._core.hand_out(run, rounds.pending(log.state))

    def _noting(self, run: str, work: Callable[[str], object]) -> bool:
        """Does the work for one run. Returns False where that failed, which is noted."""
        try:
            work(run)
        except Exception as error:  # noqa: BLE001 - noted with the run's name; the others are handled too
            self._note(run, error)
            return False
        return True

    def _note(self, run: str, error: Exception) -> None:
        with about(run=run):
            self._core.process.storage_errors.note(error)
            self._core.process.run_errors.note(run, error)

    def _let_wait(self, log: RunLog, eligible: Callable[[RunState], int], now: float) -> list[float]:
        """Ends a datacenter round that waits for a worker when its time is over, or when enough devices wait.

        Returns the next times to check, where they are known: once a quorum is enough, each check-in triggers a check.
        """
        state = log.state
        give_up_at = None if state.round is None else state.round.give_up_at
        if give_up_at is not None and now >= give_up_at:
            log.submit(lambda tx, state, at: ev.Tick(at=at))
            return [now + _AGAIN_S]
        unspendable = helped_by_another_model(self._fleet.count_unspendable(state))
        if fleet_is_back(state, now, eligible(state), unspendable):
            self._core.hand_out_once(log.run, fx.Return(round=state.round_number))
        return [at for at in (state.deadline, give_up_at) if at is not None and at > now]

    def _begun(self, run: str) -> RunLog:
        """Returns the run's log; begins the run where its creator died, or was disconnected, before the first event."""
        log = self._core.log(run)
        if not log.state.begun and not log.catch_up().begun:
            begin_run(self._core, log)
        return log

    def _retry_work(self, run: str, state: RunState, now: float) -> None:
        """Issues an action again that may have no thread: its task was lost with another replica, or with a lost answer
        of the database. Each retry waits longer, so that replicas do not take one long commit from each other for ever,
        nor open one sum side by side.
        """
        waits = state.round is not None and state.phase in rounds.kind_of(state.round).coordinator_works
        pending = rounds.pending(state) if waits else []
        wanted = next((action for action in pending if isinstance(action, _WORK)), None)
        if wanted is None:
            self._awaited.pop(run, None)
            return
        action, since, patience_s = self._awaited.get(run, (None, now, _PATIENCE_S))
        if action != wanted or now < since:
            self._awaited[run] = (wanted, now, _PATIENCE_S)
        elif now - since >= patience_s:
            self._awaited[run] = (wanted, now, 2 * patience_s)
            if not self._commits.under_way(run) and not any(task == run for task, _ in self._core.tasks()):
                self._core.hand_out(run, [wanted])


def _beyond_s(state: RunState, now: float) -> float:
    """Returns by how many seconds the open deadline is further ahead than its phase is long: the clock fell between two
    checks."""
    if state.round is None or state.round.deadline is None:
        return 0.0
    return state.round.deadline - now - rounds.kind_of(state.round).lasts_s(state.plan, state.round)


def _clock_fell(state: RunState, at: float, fell_s: float) -> ev.ClockFell | None:
    """Returns the event, where there is an open deadline to move: back by ``fell_s``, or to the latest possible
    time. A replica that stood still since it looked may find another deadline, set by a clock that differs a little."""
    if state.deadline is None:
        return None
    beyond_s = _beyond_s(state, at)
    by_s = max(fell_s, beyond_s if beyond_s > _SKEW_S else 0.0)
    return ev.ClockFell(at=at, by_s=by_s) if by_s > 0 else None
