"""The Coordinator: events in, effects performed. One object a process, synchronous, safe from any thread.

``RunLog`` makes an event durable; this file says which event a request is, and performs the actions that come of it. It
raises ``ProblemError`` for what a peer did wrong, and lets ``StoreError`` and ``BlobError`` pass for what the machine
could not do.

It has never heard of HTTP or asyncio. Who calls ``tick`` and ``perform``, and when, is not its business either: the
service runs a ``Driver`` with threads, the simulator a virtual clock, the fault explorer one at a time with crashes
between.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from client_sdk import codecs
from coordinator.blobs import Missing
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.phases.leasing import fleet_is_back
from coordinator.engine.phases.lifecycle import phase_s
from coordinator.engine.plan import PlanError, chosen
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import CannotAggregate, NewCheckpoint
from coordinator.runtime.cohort_selection import draw_cohort, return_to_fleet
from coordinator.runtime.core import Task
from coordinator.runtime.devices import DeviceDesk
from coordinator.runtime.extensions import missing
from coordinator.runtime.operators import OperatorDesk
from coordinator.runtime.optimizer_states import optimizer_state_before
from coordinator.runtime.run_log import RunLog
from coordinator.runtime.workers import WorkerDesk
from coordinator.secure.committing import advance
from coordinator.store.port import FenceLost

__all__ = ["Coordinator", "Task"]

_HOUSE_S = 30.0
"""How often runs that other replicas created are looked for, and expired rows deleted."""
_AGAIN_S = 0.1
"""The soonest that a deadline is looked at again: a draw may still wait for a free thread, or for the disk."""
_COMMIT_S = 10.0
"""How long a round may be committing before its commit is asked for again; doubled each time."""
_SKEW_S = 5.0
"""How far the clocks of two replicas may differ before a deadline looks as if the clock had fallen."""


class Coordinator(DeviceDesk, OperatorDesk, WorkerDesk):
    """What devices, operators and workers ask of it is at the three desks; what it does by itself is here."""

    def recover(self) -> None:
        """After a start: whatever was in flight is in flight again. MissingExtension where a run of the store cannot go
        on here."""
        self.require_extensions()
        for row in self.store.runs():
            log = self._begun(row.run)
            self._hand_out(row.run, rounds.pending(log.catch_up()))

    def require_extensions(self) -> None:
        """MissingExtension where a run goes on and its plan names what is not installed here in that version."""
        for row in self.store.runs():
            state = self._log(row.run).catch_up()
            if state.over:
                continue
            try:
                chosen(state.plan, self.extensions(state.plan))
                codecs.get(state.plan.task.codec)
            except (PlanError, codecs.UnknownCodec) as error:
                raise missing(row.run, error) from None

    def tick(self) -> float | None:
        """Lets time pass: deadlines, pools that filled up, other replicas' runs, rows that expired.

        Returns the next deadline in the clock's time, None when there is none.
        """
        now = self.clock.now()
        fell, self._latest_now = self._latest_now - now, now
        self._keep_house(now)
        counts: dict[str, int] | None = None
        deadlines = []
        for run, log in list(self._logs.items()):
            if log.state.over:
                continue
            state = log.catch_up()
            if fell > 0 or _beyond_s(state, now) > _SKEW_S:
                log.submit(lambda tx, state, at: _clock_fell(state, at, fell))
            state = log.state
            if state.phase == "committing":
                self._see_through(run, state, now)
            if state.deadline is None:
                continue
            if state.phase == "leasing":
                counts = self.fleet.counts() if counts is None else counts
                deadlines += self._let_wait(run, log, counts, now)
                continue
            if state.phase == "selecting":
                if now < state.deadline:
                    counts = self.fleet.counts() if counts is None else counts
                if now >= state.deadline or self._pool_is_full(state, counts or {}):
                    self._hand_out_once(run, fx.Draw(round=state.round))
            elif now >= state.deadline:
                log.submit(lambda tx, state, at: ev.Tick(at=at))
            if log.state.deadline is not None:
                deadlines.append(max(log.state.deadline, now + _AGAIN_S))
        return min(deadlines, default=None)

    def _keep_house(self, now: float) -> None:
        if 0 <= now - self._house_kept_at < _HOUSE_S:
            return
        self._house_kept_at = now
        for row in self.store.runs():
            self._begun(row.run)
        with self.store.transaction() as tx:
            tx.expire_waiting(now)

    def _let_wait(self, run: str, log: RunLog, counts: dict[str, int], now: float) -> list[float]:
        """A datacenter round that waits for a worker: given up when it is time, or when enough devices wait.

        Returns when to look again, where that is known: once a quorum is enough, devices' arrivals say.
        """
        state = log.state
        if state.give_up_at is not None and now >= state.give_up_at:
            log.submit(lambda tx, state, at: ev.Tick(at=at))
            return [now + _AGAIN_S]
        if fleet_is_back(state, now, self.fleet.count_eligible(state, counts)):
            self._hand_out_once(run, fx.Return(round=state.round))
        return [at for at in (state.deadline, state.give_up_at) if at is not None and at > now]

    def _pool_is_full(self, state: RunState, counts: dict[str, int]) -> bool:
        return self.fleet.count_eligible(state, counts) >= state.plan.cohort.pool_count

    def _hand_out_once(self, run: str, action: fx.Action) -> None:
        """Hands it out, unless it waits to be performed already."""
        if (run, action) not in list(self._todo):
            self._hand_out(run, [action])

    def _begun(self, run: str) -> RunLog:
        """The run's log; begins the run where whoever created it died, or was cut off, before its first event."""
        log = self._log(run)
        if not log.state.round and not log.catch_up().round:
            log.submit(lambda tx, state, at: ev.Created(at=at))
        return log

    def _see_through(self, run: str, state: RunState, now: float) -> None:
        """Asks again for a commit that nobody may be at: its task died with another replica, or with an answer of the
        database that was lost. Each time later, so that replicas never keep taking one long commit from each other.
        """
        number, since, patience_s = self._closed.get(run, (0, now, _COMMIT_S))
        if number != state.round or now < since:
            self._closed[run] = (state.round, now, _COMMIT_S)
        elif now - since >= patience_s:
            self._closed[run] = (state.round, now, 2 * patience_s)
            if run not in self._at_commit and not any(task == run for task, _ in list(self._todo)):
                self._hand_out(run, rounds.pending(state))

    def take_task(self) -> Task | None:
        """The next action to perform, or None."""
        try:
            return self._todo.popleft()
        except IndexError:
            return None

    def put_back(self, task: Task) -> None:
        """A task that could not be performed waits for another try."""
        self._todo.append(task)
        self.signals.wake("tasks")

    def perform(self, task: Task) -> None:
        """Performs one action.

        Raises StoreError or BlobError when the machine could not; the action may then be performed again.
        """
        run, action = task
        match action:
            case fx.Draw():
                draw_cohort(self._log(run), self.fleet, self.blobs)
            case fx.Return():
                return_to_fleet(self._log(run), self.fleet)
            case fx.Wake():
                self._wake(action)
            case fx.Offer():
                self.signals.wake("workers")
            case fx.Fold():
                self._fold(run, action)
            case fx.Commit():
                self._at_commit.add(run)
                try:
                    self._commit(run, action)
                finally:
                    self._at_commit.discard(run)
            case fx.Advance():
                self._at_commit.add(run)
                try:
                    self._advance(run, action)
                finally:
                    self._at_commit.discard(run)
            case fx.Discard():
                self._discard(run, action.round)
                if action.blobs:
                    self._discard_secure(run, action)

    def healthy(self) -> dict[str, object]:
        """What readiness looks at: raises StoreError when the database does not answer."""
        return {"runs": len(self.store.runs()), "tasks": len(self._todo), "waiting": sum(self.fleet.counts().values())}

    # ------------------------------------------------------------ inside

    def _fold(self, run: str, action: fx.Fold) -> None:
        def wanted(state: RunState) -> bool:
            return state.round == action.round and state.phase in ("collecting", "committing")

        log = self._log(run)
        if not wanted(log.state):
            return
        try:
            self._aggregator(run).fold(action.round, action.contribution)
        except Missing:
            if wanted(log.catch_up()):  # else another replica has committed, and deleted what it added
                raise

    def _take_commit(self, run: str, round: int) -> int | None:
        """The fence under which this replica may commit the round; None when the round needs no commit any more.

        A fence is raised only while the round is committing: raised later it would break into the next round's commit.
        """
        log = self._log(run)
        while True:
            state, seq = log.caught_up()
            if state.round != round or state.phase != "committing":
                return None
            with self.store.transaction(run) as tx:
                if tx.head(run) == seq:
                    return tx.raise_fence(run)

    def _commit(self, run: str, action: fx.Commit) -> None:
        aggregator = self._aggregator(run)
        made = partial(aggregator.commit, action.round, action.parent, action.contributions, action.optimizer)
        if self._commit_made(run, action.round, made):
            aggregator.forget(action.round)

    def _advance(self, run: str, action: fx.Advance) -> None:
        delta = self._aggregator(run).delta
        self._commit_made(run, action.round, partial(advance, self.blobs, action.parent, delta, action.optimizer))

    def _commit_made(self, run: str, round: int, make: Callable[[], NewCheckpoint]) -> bool:
        """Commits the checkpoint that ``make`` writes, under a fence of its own. False where it is another replica's to
        commit."""
        log = self._log(run)
        fence = self._take_commit(run, round)
        if fence is None:
            return False
        try:
            made = make()
        except CannotAggregate as error:
            reason = str(error)
            log.submit(lambda tx, state, at: ev.CommitFailed(at=at, round=round, reason=reason), fence=fence)
        else:
            try:
                log.submit(
                    lambda tx, state, at: ev.Committed(
                        at=at, round=round, digest=made.digest, bytes=made.bytes, optimizer=made.optimizer
                    ),
                    fence=fence,
                )
            except FenceLost:
                return False  # another replica commits, to the same bits
        return True

    def _discard(self, run: str, round: int) -> None:
        """Deletes the raw updates of a round whose retention is over, and the server optimizer's state that they were
        folded with. A datacenter round has no updates: what it refused may be, byte for byte, what it took.
        """
        row = self.store.round(run, round)
        if row is not None and row.kind == "datacenter":
            return
        digests = {row.digest for row in self.store.contributions(run, round)}
        digests |= {row.digest for row in self.store.refusals(run, round) if row.digest is not None}
        state = optimizer_state_before(self.store, run, row)
        for digest in sorted(digests | ({state} if state is not None else set())):
            self.blobs.delete(digest)

    def _discard_secure(self, run: str, action: fx.Discard) -> None:
        """Deletes every blob of a secure round that has ended, and says so: until then they are named again."""
        for digest in action.blobs:
            self.blobs.delete(digest)
        self._log(run).submit(lambda tx, state, at: ev.Discarded(at=at, round=action.round))


def _beyond_s(state: RunState, now: float) -> float:
    """By how much the open deadline lies further ahead than its phase is long: the clock fell while nobody looked."""
    if state.deadline is None:
        return 0.0
    return state.deadline - now - phase_s(state)


def _clock_fell(state: RunState, at: float, fell_s: float) -> ev.ClockFell | None:
    """The event, where there is an open deadline to move: back by what was seen, or to where it could be at most."""
    if state.deadline is None:
        return None
    by_s = max(fell_s, _beyond_s(state, at))
    return ev.ClockFell(at=at, by_s=by_s) if by_s > 0 else None
