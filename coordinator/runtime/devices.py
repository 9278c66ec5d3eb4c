"""The devices' desk: enrolment, check-ins, updates, outcomes. Which event a device's request is, and what it is
answered.

Raises ``ProblemError`` for what the device did wrong; lets ``StoreError`` and ``BlobError`` pass for what the machine
could not do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from client_sdk.protocol.devices import (
    Assignment,
    CheckIn,
    CheckpointRef,
    Enrolled,
    EnrolRequest,
    Outcome,
    Receipt,
    UpdateReport,
    Wait,
)
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.blobs import Spool
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.collecting import membership
from coordinator.engine.state import RunState
from coordinator.folding import validation
from coordinator.runtime import records, views
from coordinator.runtime.core import Hub
from coordinator.runtime.run_log import Make
from coordinator.store.port import DeviceRow, Transaction


@dataclass(frozen=True, slots=True)
class Arrived:
    """A validated update, and whose it is."""

    device: DeviceRow
    report: UpdateReport
    digest: str
    size: int
    at: float | None = None
    """When it arrived; None: now."""


class DeviceDesk(Hub):
    def enrol(self, request: EnrolRequest) -> Enrolled:
        return self.fleet.enrol(request)

    def authenticate(self, token: str) -> DeviceRow:
        return self.fleet.authenticate(token)

    def check_in(self, device: DeviceRow, check_in: CheckIn) -> Assignment | Wait | None:
        """Work, or why there is none for this device; None: it waits in the pool, and its signal wakes it."""
        return self.check_in_all([(device, check_in)])[0]

    def check_in_all(self, arrivals: Sequence[tuple[DeviceRow, CheckIn]]) -> list[Assignment | Wait | None]:
        """The same for devices that arrive together."""
        answers: list[Assignment | Wait | None] = []
        waiting = []
        for device, check_in in arrivals:
            answer: Assignment | Wait | None = self.assignment(device.device)
            if answer is None:
                if check_in.examples > device.examples_cap:
                    check_in = check_in.model_copy(update={"examples": device.examples_cap})
                answer = self.fleet.refusal(device.device, check_in, self._states())
                if answer is None:
                    waiting.append((device, check_in))
            answers.append(answer)
        if waiting:
            self.fleet.wait_all(waiting)
        return answers

    def assignment(self, device: str) -> Assignment | None:
        """The device's live assignment: the same one however often it is asked for."""
        claim = self.store.claim(device)
        if claim is None:
            return None
        state = self._log(claim.run).state
        if state.round_number != claim.round or state.phase != "collecting":  # another replica drew this cohort
            state = self._log(claim.run).catch_up()
        if state.round_number != claim.round or state.phase != "collecting" or state.deadline is None:
            return None
        return Assignment(
            run=claim.run,
            round=claim.round,
            attempt=claim.attempt,
            device=device,
            checkpoint=self._checkpoint(state),
            plan_digest=self._log(claim.run).row.plan_digest,
            task=state.plan.task,
            report_within_s=max(0.0, min(state.deadline - self.clock.now(), state.plan.cohort.collect_s)),
            partial=state.plan.aggregation.partial,
            max_update_bytes=self._limit(claim.run),
        )

    def hold_over(self, device: str, check_in: CheckIn) -> Wait:
        """The answer when a check-in was held to its end."""
        return self.fleet.refusal(device, check_in, self._states()) or self.fleet.hold_over(check_in, self._states())

    def leave(self, device: str) -> None:
        """The device no longer waits in the pool."""
        self.fleet.leave(device)

    def started(self, device: str, run: str, round: int, attempt: int) -> None:
        self._submit(run, lambda at: ev.Started(at=at, round=round, attempt=attempt, device=device))

    def started_all(self, run: str, round: int, attempt: int, devices: Sequence[str]) -> None:
        """The same for devices that start together. Those that have no place in the round are passed over."""

        def started(device: str) -> Make:
            return lambda tx, state, at: ev.Started(at=at, round=round, attempt=attempt, device=device)

        for result in self._log(run).submit_all([started(device) for device in devices]):
            if isinstance(result, BaseException):
                raise result

    def withdraw(self, device: str, run: str, round: int, attempt: int, reason: str) -> None:
        self._submit(run, lambda at: ev.Withdrew(at=at, round=round, attempt=attempt, device=device, reason=reason))

    def update_limit(self, device: str, run: str, round: int, attempt: int) -> int:
        """The longest body worth reading from this device; ProblemError when no body can count.

        For a round that is over the body of a device whose update was acknowledged is still read: the same bytes get
        the same receipt.
        """
        state = self._log(run).state
        against = membership(state, round, attempt, device)
        if against is not None:  # unless another replica has opened the round, or drawn its cohort
            against = membership(self._log(run).catch_up(), round, attempt, device)
        if against is None or (against[0] == "late" and self._settled(device, run, round) is not None):
            return self._limit(run)
        if against[0] == "late" and not self._was_selected(device, run, round):
            raise problem("not-selected", f"device {device} was not selected for round {round}, which is over")
        if against[0] == "late":
            self._late(device, run, round)
        raise problem(*against)

    def report(self, device: DeviceRow, run: str, round: int, attempt: int, spool: Spool) -> Receipt:
        """Validates a spooled update, makes it durable, and has it counted.

        The same digest again gives the same receipt.
        """
        before = self._settled(device.device, run, round)
        if before is not None:
            return self._settle(before, spool.digest, device.device, run, round, attempt)
        aggregator = self._aggregator(run)
        plan = self._log(run).state.plan
        report, measures = validation.check(spool.path, aggregator.delta, plan, run=run, round=round, attempt=attempt)
        size = spool.size
        digest = spool.commit()
        aggregator.remember(digest, measures)
        try:
            return self.count(device, report, digest, size, still_there=lambda: self.blobs.has(digest))
        except ProblemError:
            self._drop_unless_counted(run, round, digest)
            ended = self._settled(device.device, run, round)
            if ended is None:
                raise
            return self._settle(ended, digest, device.device, run, round, attempt)

    def count(
        self,
        device: DeviceRow,
        report: UpdateReport,
        digest: str,
        size: int,
        *,
        still_there: Callable[[], bool] = lambda: True,
    ) -> Receipt:
        """Has an update counted that was validated, and that ``Sums`` holds under this digest. ProblemError.

        ``still_there`` is asked under the run's lock.
        """

        def reported(at: float) -> ev.Reported:
            if not still_there():  # the same bytes under another request were refused meanwhile
                raise problem("busy", "the update's bytes were removed again: send them once more", retry_after_s=1)
            return _reported(Arrived(device, report, digest, size), at)

        return _receipt(report, device.device, digest, self._submit(report.run, reported))

    def count_all(self, run: str, arrivals: Sequence[Arrived]) -> list[Receipt | ProblemError]:
        """The same for validated updates of one run that arrived one after another, each at its own time."""

        def reported(arrived: Arrived) -> Make:
            return lambda tx, state, now: _reported(arrived, now if arrived.at is None else arrived.at)

        answers: list[Receipt | ProblemError] = []
        results = self._log(run).submit_all([reported(arrived) for arrived in arrivals])
        for arrived, effects in zip(arrivals, results, strict=True):
            if isinstance(effects, BaseException):
                raise effects
            refused = next((effect for effect in effects if isinstance(effect, fx.Refused)), None)
            if refused is not None:
                answers.append(problem(refused.kind, refused.reason))
            else:
                answers.append(_receipt(arrived.report, arrived.device.device, arrived.digest, effects))
        return answers

    def outcome(self, device: str, run: str, round: int) -> Outcome:
        """What became of this device's part in a round."""
        state = self._log(run).catch_up()
        if not 1 <= round <= state.round_number:
            raise problem("unknown-round", f"run {run} has no round {round}: it is at round {state.round_number}")
        settled = self._settled(device, run, round)
        if isinstance(settled, Outcome):
            return settled
        if state.round is not None and round == state.round.number and device in state.round.members:
            member = state.round.members[device]
            result = {"reported": "pending", "withdrawn": "withdrawn"}.get(member.status)
            if result is None:
                result = "pending" if state.phase == "collecting" else "dropped"
            return Outcome.model_validate(
                {"run": run, "round": round, "device": device, "result": result, "digest": member.digest}
            )
        refusal = views.latest_refusal(self.store.refusals(run, round), device)
        if refusal is not None:
            return Outcome(
                run=run, round=round, device=device, result="refused", reason=refusal.reason, digest=refusal.digest
            )
        if self._was_selected(device, run, round):
            told = "the device was selected, and no update of it was received while the round was open"
            return Outcome(run=run, round=round, device=device, result="dropped", reason=told)
        told = "the device was not selected for this round"
        return Outcome(run=run, round=round, device=device, result="unknown", reason=told)

    # ------------------------------------------------------------ inside

    def _checkpoint(self, state: RunState) -> CheckpointRef:
        """What every device of the round fetches: its size is looked up once."""
        offered = self._offered.get(state.run)
        if offered is None or (offered.version, offered.digest) != (state.version, state.checkpoint):
            size = self.blobs.size(state.checkpoint)
            offered = CheckpointRef(version=state.version, digest=state.checkpoint, bytes=size)
            self._offered[state.run] = offered
        return offered

    def _limit(self, run: str) -> int:
        return min(self._aggregator(run).max_update_bytes, self.settings.max_update_bytes)

    def _was_selected(self, device: str, run: str, round: int) -> bool:
        """Whether the device was of the cohort of a round that has ended."""
        row = self.store.round(run, round)
        cohort = row.body.get("cohort") if row is not None else None
        return isinstance(cohort, list) and device in cohort

    def _settled(self, device: str, run: str, round: int) -> Outcome | None:
        """What the database says of this device's acknowledged update in a round that has ended, or None."""
        for row in self.store.contributions(run, round):
            if row.device == device:
                return Outcome(
                    run=run, round=round, device=device, result="counted", digest=row.digest, version=row.version
                )
        refusal = views.latest_refusal([r for r in self.store.refusals(run, round) if r.kind == "abandoned"], device)
        if refusal is not None:
            return Outcome(
                run=run, round=round, device=device, result="refused", reason=refusal.reason, digest=refusal.digest
            )
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
        refusal = fx.RecordRefusal(
            round=round, device=device, digest=None, kind="late", reason=f"round {round} is over"
        )
        if round >= 1 and views.latest_refusal(self.store.refusals(run, round), device) is None:
            with self.store.transaction(run) as tx:
                records.write(tx, run, [(at, refusal)])

    def _drop_unless_counted(self, run: str, round: int, digest: str) -> None:
        """A refused update's bytes go, unless the same bytes are acknowledged under another request, and still kept.

        Looked up and deleted under the run's lock, so that nobody acknowledges them in between.
        """

        def drop(tx: Transaction, state: RunState, at: float) -> None:
            members = {} if state.round is None else state.round.members
            acknowledged = {member.digest for member in members.values()}
            if round > state.round_number - (state.phase != "idle") - state.plan.retention.rounds:
                acknowledged |= {row.digest for row in tx.contributions(run, round)}
            if digest not in acknowledged:
                self.blobs.delete(digest)

        self._log(run).submit(drop)


def _reported(arrived: Arrived, at: float) -> ev.Reported:
    report, most = arrived.report, arrived.device.examples_cap
    return ev.Reported(
        at=at,
        round=report.round,
        attempt=report.attempt,
        device=arrived.device.device,
        digest=arrived.digest,
        bytes=arrived.size,
        examples=min(report.examples, most),
        steps=report.work.steps,
        steps_planned=report.work.steps_planned,
        complete=report.work.complete,
        metrics=dict(report.metrics),
        held_out=dict(report.held_out.metrics) if report.held_out else {},
        held_out_examples=min(report.held_out.examples, most) if report.held_out else 0,
        seconds=(report.fetch_s, report.train_s, report.encode_s),
    )


def _receipt(report: UpdateReport, device: str, digest: str, effects: Sequence[fx.Effect]) -> Receipt:
    accepted = next(effect for effect in effects if isinstance(effect, fx.Accepted))
    return Receipt(
        run=report.run, round=report.round, attempt=report.attempt, device=device, digest=digest, weight=accepted.weight
    )
