"""The Coordinator: events in, effects performed. One object a process, synchronous, safe from any thread.

``RunLog`` makes an event durable; this file says which event a request is, and performs the actions that come of it. It raises
``ProblemError`` for what a peer did wrong, and lets ``StoreError`` and ``BlobError`` pass for what the machine could not do.

It has never heard of HTTP or asyncio. Who calls ``tick`` and ``perform``, and when, is not its business either: the service runs a
``Driver`` with threads, the simulator a virtual clock, the fault explorer one at a time with crashes between.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from client_sdk.problems import ProblemError, problem
from client_sdk.protocol import (
    Assignment,
    CheckIn,
    CheckpointRef,
    CheckpointView,
    CreateRun,
    DeviceView,
    Enrolled,
    EnrolRequest,
    EventView,
    MetricReport,
    MetricView,
    Outcome,
    Receipt,
    RoundView,
    RunView,
    Wait,
)
from coordinator import creation, intake, records, views
from coordinator.aggregator import Aggregator, CannotAggregate
from coordinator.blobs import Blobs, Spool
from coordinator.clock import Clock, SystemClock
from coordinator.drawing import draw_cohort
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.state import RunState
from coordinator.fleet import Entropy, Fleet
from coordinator.runlog import RunLog
from coordinator.settings import Settings
from coordinator.signals import Signals
from coordinator.store.port import DeviceRow, FenceLost, Store

Task = tuple[str, fx.Action]
"""(run, action) that waits to be performed."""


class Coordinator:
    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        *,
        clock: Clock | None = None,
        signals: Signals | None = None,
        settings: Settings | None = None,
        entropy: Entropy = secrets.token_bytes,
    ) -> None:
        self.store = store
        self.blobs = blobs
        self.clock = clock or SystemClock()
        self.signals = signals or Signals()
        self.settings = settings or Settings()
        self.fleet = Fleet(store, self.clock, self.signals, self.settings, entropy)
        self._entropy = entropy
        self._lock = threading.Lock()
        self._logs: dict[str, RunLog] = {}
        self._aggregators: dict[str, Aggregator] = {}
        self._known: set[str] = set()
        self._todo: deque[Task] = deque()
        self._latest_now = self.clock.now()

    # ------------------------------------------------------------ devices

    def enrol(self, request: EnrolRequest) -> Enrolled:
        return self.fleet.enrol(request)

    def authenticate(self, token: str) -> DeviceRow:
        return self.fleet.authenticate(token)

    def check_in(self, device: DeviceRow, check_in: CheckIn) -> Assignment | Wait | None:
        """Work, or why there is none for this device; None: it waits in the pool, and its signal wakes it."""
        assignment = self.assignment(device.device)
        if assignment is not None:
            return assignment
        refusal = self.fleet.refusal(check_in, self._states())
        if refusal is not None:
            return refusal
        self.fleet.wait(device, check_in)
        return None

    def assignment(self, device: str) -> Assignment | None:
        """The device's live assignment: the same one however often it is asked for."""
        claim = self.store.claim(device)
        if claim is None:
            return None
        state = self._log(claim.run).state
        if state.round < claim.round:  # another replica drew this cohort
            state = self._log(claim.run).catch_up()
        if state.round != claim.round or state.phase != "collecting" or state.deadline is None:
            return None
        return Assignment(
            run=claim.run,
            round=claim.round,
            attempt=claim.attempt,
            device=device,
            checkpoint=CheckpointRef(
                version=state.version, digest=state.checkpoint, bytes=self.blobs.size(state.checkpoint)
            ),
            plan_digest=self._log(claim.run).row.plan_digest,
            task=state.plan.task,
            report_within_s=max(0.0, state.deadline - self.clock.now()),
            partial=state.plan.aggregation.partial,
            max_update_bytes=self._limit(claim.run),
        )

    def hold_over(self, device: str, check_in: CheckIn) -> Wait:
        """The answer when a check-in was held to its end."""
        return self.fleet.refusal(check_in, self._states()) or self.fleet.hold_over(self._states())

    def leave(self, device: str) -> None:
        """The device no longer waits in the pool."""
        self.fleet.leave(device)

    def started(self, device: str, run: str, round: int, attempt: int) -> None:
        self._submit(run, lambda at: ev.Started(at=at, round=round, attempt=attempt, device=device))

    def withdraw(self, device: str, run: str, round: int, attempt: int, reason: str) -> None:
        self._submit(run, lambda at: ev.Withdrew(at=at, round=round, attempt=attempt, device=device, reason=reason))

    def update_limit(self, device: str, run: str, round: int, attempt: int) -> int:
        """The longest body worth reading from this device; ProblemError when no body can count.

        For a round that is over the body of a device whose update was acknowledged is still read: the same bytes get the same receipt.
        """
        state = self._log(run).state
        if (state.round == round and device in state.members) or round > state.round:
            if round > state.round:
                state = self._log(run).catch_up()
            if round > state.round:
                raise problem("stale", f"round {round} has not been opened: run {run} is at round {state.round}")
            return self._limit(run)
        if self._settled(device, run, round) is not None:
            return self._limit(run)
        if round == state.round and state.phase in ("collecting", "committing"):
            raise problem("not-selected", f"device {device} was not selected for round {round}")
        self._late(device, run, round)
        raise problem("late", f"round {round} is over: run {run} is at round {state.round}")

    def report(self, device: DeviceRow, run: str, round: int, attempt: int, spool: Spool) -> Receipt:
        """Validates a spooled update, makes it durable, and has it counted. The same digest again gives the same receipt."""
        log = self._log(run)
        before = self._settled(device.device, run, round)
        if before is not None:
            return self._settle(before, spool.digest, device.device, run, round, attempt)
        aggregator = self._aggregator(run)
        task = log.state.plan.task
        report, measures = intake.check(spool.path, aggregator.manifest, task, run=run, round=round, attempt=attempt)
        size = spool.size
        digest = spool.commit()
        aggregator.remember(digest, measures)
        try:
            effects = self._submit(
                run,
                lambda at: ev.Reported(
                    at=at,
                    round=round,
                    attempt=attempt,
                    device=device.device,
                    digest=digest,
                    bytes=size,
                    examples=min(report.examples, device.examples_cap),
                    steps=report.work.steps,
                    steps_planned=report.work.steps_planned,
                    complete=report.work.complete,
                    metrics=dict(report.metrics),
                    held_out=dict(report.held_out.metrics) if report.held_out else {},
                    held_out_examples=report.held_out.examples if report.held_out else 0,
                    seconds=(report.fetch_s, report.train_s, report.encode_s),
                ),
            )
        except ProblemError:
            self._drop_unless_counted(run, digest)
            raise
        accepted = next(effect for effect in effects if isinstance(effect, fx.Accepted))
        return Receipt(run=run, round=round, attempt=attempt, device=device.device, digest=digest, weight=accepted.weight)

    def outcome(self, device: str, run: str, round: int) -> Outcome:
        """What became of this device's part in a round."""
        state = self._log(run).catch_up()
        settled = self._settled(device, run, round)
        if isinstance(settled, Outcome):
            return settled
        if round == state.round and device in state.members:
            member = state.members[device]
            result = {"reported": "pending", "withdrawn": "withdrawn"}.get(member.status)
            if result is None:
                result = "pending" if state.phase == "collecting" else "dropped"
            return Outcome.model_validate(
                {"run": run, "round": round, "device": device, "result": result, "digest": member.digest}
            )
        refusal = views.latest_refusal(self.store.refusals(run, round), device)
        if refusal is not None:
            return Outcome(run=run, round=round, device=device, result="refused", reason=refusal.reason, digest=refusal.digest)
        if round < 1 or round > state.round:
            raise problem("unknown-round", f"run {run} has no round {round}: it is at round {state.round}")
        return Outcome(run=run, round=round, device=device, result="unknown", reason="no update of this device is known in this round")

    # ------------------------------------------------------------ operators

    def put_checkpoint(self, spool: Spool, digest: str) -> None:
        """Takes an initial checkpoint, checked to be what its digest says and readable as a model."""
        creation.check_checkpoint(spool.path)
        spool.commit(digest)

    def create_run(self, request: CreateRun) -> RunView:
        row = creation.create_run(request, self.store, self.blobs, self.clock, self._entropy)
        self._log(row.run).submit(lambda tx, state, at: ev.Created(at=at))
        return self.run(row.run)

    def runs(self) -> list[RunView]:
        return [self.run(row.run) for row in self.store.runs()]

    def run(self, run: str) -> RunView:
        log = self._log(run)
        state, seq = log.caught_up()
        row = self.store.round(run, state.round) if state.round else None
        return views.run_view(log.row, state, seq, views.round_view(self.store, row, state) if row else None)

    def pause(self, run: str) -> RunView:
        self._submit(run, lambda at: ev.Paused(at=at))
        return self.run(run)

    def resume(self, run: str) -> RunView:
        self._submit(run, lambda at: ev.Resumed(at=at))
        return self.run(run)

    def stop(self, run: str) -> RunView:
        self._submit(run, lambda at: ev.Stopped(at=at))
        return self.run(run)

    def rounds(self, run: str, after: int = 0, limit: int = 1000) -> list[RoundView]:
        state, _ = self._log(run).caught_up()
        return [views.round_view(self.store, row, state) for row in self.store.rounds(run, after, limit)]

    def round(self, run: str, round: int) -> RoundView:
        state, _ = self._log(run).caught_up()
        row = self.store.round(run, round)
        if row is None:
            raise problem("unknown-round", f"run {run} has no round {round}: it is at round {state.round}")
        return views.round_view(self.store, row, state)

    def checkpoints(self, run: str) -> list[CheckpointView]:
        self._log(run)
        line = self.store.checkpoints(run)
        digests = {row.version: row.digest for row in line}
        return [views.checkpoint_view(row, digests) for row in line]

    def checkpoint_file(self, digest: str) -> Path:
        """The file of a checkpoint. Only checkpoints of runs are served: an update's digest is unknown here."""
        if digest not in self._known:
            if not self.store.knows_checkpoint(digest):
                raise problem("unknown-checkpoint", f"no run has a checkpoint {digest}")
            self._known.add(digest)
        return self.blobs.path(digest)

    def metrics(self, run: str) -> list[MetricView]:
        self._log(run)
        return [views.metric_view(row) for row in self.store.metrics(run)]

    def report_metrics(self, run: str, report: MetricReport) -> list[MetricView]:
        """Keeps an evaluator's scores; the run may be finished by them."""
        self._log(run).catch_up()
        row = self.store.checkpoint(run, report.version)
        if row is None:
            raise problem("unknown-checkpoint", f"run {run} has no version {report.version}")
        if row.digest != report.digest:
            raise problem("conflict", f"version {report.version} of run {run} is {row.digest}, but {report.digest} was scored")
        if report.source == "devices":
            raise problem("conflict", 'the source "devices" is kept for the scores that devices report with their updates')
        self._submit(
            run,
            lambda at: ev.Scored(
                at=at,
                version=report.version,
                source=report.source,
                examples=report.score.examples,
                metrics=dict(report.score.metrics),
            ),
        )
        mine = (report.version, report.source)
        return [views.metric_view(row) for row in self.store.metrics(run) if (row.version, row.source) == mine]

    def devices(self, limit: int = 1000, after: str = "") -> list[DeviceView]:
        return self.fleet.devices(limit, after)

    def events(self, run: str, after: int = 0, limit: int = 1000) -> list[EventView]:
        self._log(run)
        return [views.event_view(row) for row in self.store.events(run, after, limit)]

    # ------------------------------------------------------------ driving

    def recover(self) -> None:
        """After a start: whatever was in flight is in flight again."""
        for row in self.store.runs():
            state = self._log(row.run).catch_up()
            self._hand_out(row.run, rounds.pending(state))

    def tick(self, *, pool_changed: bool = True) -> float | None:
        """Lets time pass: deadlines, pools that filled up. Returns the next deadline in the clock's time, None when there is none."""
        now = self.clock.now()
        fell, self._latest_now = self._latest_now - now, now
        counts: dict[str, int] | None = None
        deadlines = []
        for run, log in list(self._logs.items()):
            if fell > 0 and log.state.deadline is not None:
                log.submit(lambda tx, state, at: ev.ClockFell(at=at, by_s=fell))
            state = log.state
            if state.deadline is None:
                continue
            if now >= state.deadline:
                log.submit(lambda tx, state, at: ev.Tick(at=at))
            elif state.phase == "selecting" and pool_changed:
                counts = self.fleet.counts() if counts is None else counts
                if self.fleet.count_eligible(state, counts) >= state.plan.cohort.pool_count:
                    self._hand_out(run, [fx.Draw(round=state.round)])
            if log.state.deadline is not None:
                deadlines.append(log.state.deadline)
        return min(deadlines, default=None)

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
        """Performs one action. Raises StoreError or BlobError when the machine could not; the action may then be performed again."""
        run, action = task
        match action:
            case fx.Draw():
                draw_cohort(self._log(run), self.fleet, self.blobs)
            case fx.Wake():
                self.signals.wake_many([f"device:{device}" for device in action.devices])
            case fx.Fold():
                state = self._log(run).state
                if state.round == action.round and state.phase in ("collecting", "committing"):
                    self._aggregator(run).fold(action.round, action.contribution)
            case fx.Commit():
                self._commit(run, action)
            case fx.Discard():
                self._discard(run, action.round)

    def healthy(self) -> dict[str, object]:
        """What readiness looks at: raises StoreError when the database does not answer."""
        return {"runs": len(self.store.runs()), "tasks": len(self._todo), "waiting": sum(self.fleet.counts().values())}

    # ------------------------------------------------------------ inside

    def _log(self, run: str) -> RunLog:
        log = self._logs.get(run)
        if log is not None:
            return log
        row = self.store.run(run)
        if row is None:
            raise problem("unknown-run", f"there is no run {run!r}")
        with self._lock:
            return self._logs.setdefault(run, RunLog(row, self.store, self.clock, self._hand_out))

    def _aggregator(self, run: str) -> Aggregator:
        aggregator = self._aggregators.get(run)
        if aggregator is not None:
            return aggregator
        state = self._log(run).state
        with self._lock:
            if run not in self._aggregators:
                self._aggregators[run] = Aggregator(self.blobs, state.plan, state.checkpoint)
            return self._aggregators[run]

    def _states(self) -> list[RunState]:
        return [log.state for log in list(self._logs.values())]

    def _limit(self, run: str) -> int:
        return min(self._aggregator(run).max_update_bytes, self.settings.max_update_bytes)

    def _submit(self, run: str, make: Callable[[float], ev.Event]) -> list[fx.Effect]:
        effects = self._log(run).submit(lambda tx, state, at: make(at))
        for effect in effects:
            if isinstance(effect, fx.Refused):
                raise problem(effect.kind, effect.reason)
        return effects

    def _hand_out(self, run: str, actions: Sequence[fx.Action]) -> None:
        for action in actions:
            if isinstance(action, fx.Wake):
                self.perform((run, action))
            else:
                self._todo.append((run, action))
        self.signals.wake_many(("tasks", f"run:{run}"))

    def _settled(self, device: str, run: str, round: int) -> Outcome | None:
        """What the database says of this device's acknowledged update in a round that has ended, or None."""
        for row in self.store.contributions(run, round):
            if row.device == device:
                return Outcome(run=run, round=round, device=device, result="counted", digest=row.digest, version=row.version)
        refusal = views.latest_refusal([r for r in self.store.refusals(run, round) if r.kind == "abandoned"], device)
        if refusal is not None:
            return Outcome(run=run, round=round, device=device, result="refused", reason=refusal.reason, digest=refusal.digest)
        return None

    def _settle(self, outcome: Outcome, digest: str, device: str, run: str, round: int, attempt: int) -> Receipt:
        """The answer to bytes sent again after their round has ended."""
        if outcome.digest != digest:
            raise problem("duplicate", "another update of this device was received in this round; the first one counts")
        if outcome.result == "refused":
            raise problem("late", outcome.reason)
        weight = next(row.weight for row in self.store.contributions(run, round) if row.device == device)
        return Receipt(run=run, round=round, attempt=attempt, device=device, digest=digest, weight=weight)

    def _late(self, device: str, run: str, round: int) -> None:
        """Records a late update whose body was not read."""
        at = self.clock.now()
        refusal = fx.RecordRefusal(round=round, device=device, digest=None, kind="late", reason=f"round {round} is over")
        if round >= 1 and views.latest_refusal(self.store.refusals(run, round), device) is None:
            with self.store.transaction(run) as tx:
                records.write(tx, run, [(at, refusal)])

    def _drop_unless_counted(self, run: str, digest: str) -> None:
        """A refused update's bytes go, unless the same bytes are acknowledged under another request."""
        if all(member.digest != digest for member in self._log(run).state.members.values()):
            self.blobs.delete(digest)

    def _commit(self, run: str, action: fx.Commit) -> None:
        log = self._log(run)
        if log.state.round != action.round or log.state.phase != "committing":
            return
        with self.store.transaction(run) as tx:
            fence = tx.raise_fence(run)
        aggregator = self._aggregator(run)
        try:
            digest, size = aggregator.commit(action.round, action.parent, action.contributions)
        except CannotAggregate as error:
            reason = str(error)
            log.submit(lambda tx, state, at: ev.CommitFailed(at=at, round=action.round, reason=reason), fence=fence)
        else:
            try:
                log.submit(lambda tx, state, at: ev.Committed(at=at, round=action.round, digest=digest, bytes=size), fence=fence)
            except FenceLost:
                return  # another replica commits, to the same bits
        aggregator.forget(action.round)

    def _discard(self, run: str, round: int) -> None:
        """Deletes the raw updates of a round whose retention is over."""
        digests = {row.digest for row in self.store.contributions(run, round)}
        digests |= {row.digest for row in self.store.refusals(run, round) if row.digest is not None}
        for digest in digests:
            self.blobs.delete(digest)
