"""Answers the requests of devices: check-ins, updates, outcomes. Translates a request to an event, and the
event's effects to the answer.

What comes hundreds of times a round is taken in two steps: ``check_in``, ``started``, ``report`` and ``count`` check it
and queue it, and the function that they return makes it durable, together with all that was queued meanwhile, and
returns the answer.

Raises ``ProblemError`` for an error of the device; ``StoreError`` and ``BlobError`` pass through where the database or
the disk failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from client_sdk.protocol.devices import (
    Assignment,
    CheckIn,
    CheckpointRef,
    LoggedEvent,
    Outcome,
    Receipt,
    UpdateReport,
    Wait,
)
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.secure import SecureTask, SignedModel
from client_sdk.secagg.header import task_of
from coordinator.blobs import Spool
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.event_fields import UNTREATED, Treated
from coordinator.engine.reasons import printable
from coordinator.engine.rounds import KINDS, kind_of
from coordinator.engine.state import Member, RunState
from coordinator.folding import validation
from coordinator.runtime import records
from coordinator.runtime.core import Core
from coordinator.runtime.fleet import Fleet, PoolPlace
from coordinator.runtime.uncertain_updates import UncertainUpdates
from coordinator.store.port import DeviceRow, MessageRow, Reader, StoreError

SHORT_BYTES = 16 * 1024
"""Up to this length an update is stored beside its event, in the same transaction; a longer one is a blob. To make,
sync and delete a file costs more than all else that a short update needs."""


class Outcomes:
    """The outcome of a device's part in a round: counted, refused, dropped, withdrawn, or still pending.

    It is read from the run's state and the store. The same facts answer bytes that are sent again after the end of
    their round."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._cohort: tuple[str, int, frozenset[str]] = "", 0, frozenset()
        """(run, round, its cohort) of the round that has ended and was asked for last: many may come late to one."""

    def outcome(self, device: str, run: str, round: int) -> Outcome:
        """Returns the outcome of this device's part in a round."""
        found = partial(Outcome, run=run, round=round, device=device)
        state = self._core.log(run).catch_up()
        if not 1 <= round <= state.round_number:
            raise problem("unknown-round", f"run {run} has no round {round}: it is at round {state.round_number}")
        # First: an attempt of this round that was given up leaves refusals, and the round goes on.
        member = _member(state, device, round)
        if state.round is not None and member is not None:
            if member.status in ("withdrawn", "refused"):
                return found(result=member.status, reason=member.reason, digest=member.digest)
            awaited = member.status == "reported" or kind_of(state.round).awaits(state, device)
            return found(result="pending" if awaited else "dropped", reason=member.reason, digest=member.digest)
        settled = self.settled(device, run, round)
        if settled is not None:
            return settled
        for number in self._rounds_of(device, run, round):
            for refusal in reversed(self._core.store.refusals_of(run, number, device)):
                return found(result="refused", reason=refusal.reason, digest=refusal.digest)
        if self.was_selected(device, run, round):
            reason = "the device was selected, and no update of it was received while the round was open"
            return found(result="dropped", reason=reason)
        return found(result="unknown", reason="the device was not selected for this round")

    def was_selected(self, device: str, run: str, round: int) -> bool:
        """Whether the device was in the cohort of a round that has ended."""
        kept = self._cohort
        if kept[:2] != (run, round):
            row = self._core.store.round(run, round)
            cohort = None if row is None else row.body.get("cohort")
            kept = run, round, frozenset(cohort if isinstance(cohort, list) else ())
            if row is not None and row.status != "open":
                self._cohort = kept
        return device in kept[2]

    def invalid_update(self, state: RunState, device: str, round: int) -> str | None:
        """Returns why an update of this device was refused as invalid in this round, which may have ended; None where
        none was."""
        if (member := _member(state, device, round)) is not None:
            return member.reason if member.status == "refused" else None
        if not 1 <= round <= state.round_number:
            return None
        rounds = self._rounds_of(device, state.run, round)
        mine = [row for one in rounds for row in self._core.store.refusals_of(state.run, one, device)]
        return next((row.reason for row in mine if row.kind == "invalid-update"), None)

    def settled(self, device: str, run: str, round: int) -> Outcome | None:
        """Returns the stored outcome of this device's acknowledged update in a round that has ended, or None."""
        found = partial(Outcome, run=run, round=round, device=device)
        for number in self._rounds_of(device, run, round):
            row = self._core.store.contribution(run, number, device)
            if row is not None:
                return found(result="counted", digest=row.digest, version=row.version)
            for refusal in reversed(self._core.store.refusals_of(run, number, device)):
                if refusal.kind == "abandoned":
                    return found(result="refused", reason=refusal.reason, digest=refusal.digest)
        return None

    def _rounds_of(self, device: str, run: str, round: int) -> Iterator[int]:
        """The round to which the device was assigned, and those after it that it was in by the same assignment, as
        their rows say: only a buffered round lets it train on."""
        number = round
        yield number
        if self._core.log(run).state.plan.buffered is None:
            return
        while (row := self._core.store.round(run, number := number + 1)) is not None and row.kind == "buffered":
            since = row.body.get("since")
            if not isinstance(since, dict) or since.get(device) != round:
                return
            yield number

    def receipt(self, outcome: Outcome, digest: str, device: str, run: str, round: int, attempt: int) -> Receipt:
        """Returns the answer to bytes that are sent again after the end of their round."""
        if outcome.result == "refused":
            raise problem("late", outcome.reason)
        if outcome.digest != digest:
            raise problem("duplicate", "another update of this device was received in this round; the first one counts")
        found = (self._core.store.contribution(run, number, device) for number in self._rounds_of(device, run, round))
        row = next(filter(None, found), None)
        if row is None:
            raise RuntimeError("the update was counted, and has no row")
        logged = round if self._core.log(run).state.plan.buffered is not None else attempt
        beginning: dict[str, object] = {"round": row.round, "attempt": logged, "device": device, "digest": digest}
        event = self._core.store.find_event(run, ev.Reported.kind, beginning)
        return Receipt(
            run=run,
            round=round,
            attempt=attempt,
            device=device,
            digest=digest,
            weight=row.weight,
            logged=None if event is None or not event.link else LoggedEvent(seq=event.seq, link=event.link),
        )

    def record_late(self, device: str, run: str, round: int, reason: str) -> None:
        """Records a late update, or a late masked vector, that is not stored: once for a device and round, and not
        where its update counts or is refused already."""

        def unrecorded(reader: Reader) -> bool:
            return reader.contribution(run, round, device) is None and not reader.refusals_of(run, round, device)

        refusal = fx.RecordRefusal(round=round, device=device, digest=None, kind="late", reason=reason)
        if unrecorded(self._core.store):
            with self._core.store.transaction(run) as tx:
                if unrecorded(tx):
                    records.write(tx, run, [(self._core.clock.now(), refusal)])


def _member(state: RunState, device: str, round: int) -> Member | None:
    """The device in the round under way, where it was assigned to it in this round."""
    found = None if state.round is None else state.round.members.get(device)
    return None if found is None or (found.since or state.round_number) != round else found


SOON_S = (0.0, 1.0)
"""When a process of a device comes back whose hold another process has ended: that shows whether both are alive."""
_NEVER_IN_CLEAR = "this round is secure: a device sends its update masked, never in clear"


@dataclass(frozen=True, slots=True)
class ArrivedUpdate:
    """A validated update with its device."""

    device: DeviceRow
    report: UpdateReport
    digest: str
    size: int
    at: float | None = None
    """Unix time of its arrival in seconds; None: now."""
    treated: Treated = UNTREATED
    content: bytes | None = field(default=None, repr=False)
    """Its bytes, where they are to be stored beside its event."""


class DeviceRequests:
    def __init__(self, core: Core, fleet: Fleet, uncertain: UncertainUpdates) -> None:
        self._core = core
        self._fleet = fleet
        self._uncertain = uncertain
        self._outcomes = Outcomes(core)

    def check_in(self, device: DeviceRow, check_in: CheckIn) -> Callable[[], Assignment | Wait | PoolPlace]:
        """The answer is an assignment, or why there is none for this device, or its place in the pool: the device
        waits, and its signal wakes it."""
        if check_in.examples > device.examples_cap:
            check_in = check_in.model_copy(update={"examples": device.examples_cap})
        answer = self.assignment(device.device) or self._fleet.refusal(device.device, check_in, self._core.states())
        if answer is None:
            return self._fleet.wait(device, check_in)
        found, noted = answer, self._fleet.seen(device, check_in)

        def settle() -> Assignment | Wait:
            noted()
            return found.model_copy(update={"warning": self._fleet.warning(device.device)})

        return settle

    def assignment(self, device: str) -> Assignment | None:
        """The device's live assignment: the same one however often it is asked for."""
        claim = self._core.store.claim(device)
        if claim is None:
            return None
        log = self._core.log(claim.run)
        state = log.state
        kind = KINDS[state.plan.kind]
        place = None if kind.keeps_claims else kind.assigned(state, claim.round, device)
        if place is None:  # another replica may have drawn this cohort, or ended the phase
            state = log.catch_up()
            place = kind.assigned(state, claim.round, device)
        if place is None:
            return None
        version, ends_at = place
        return Assignment(
            run=claim.run,
            round=claim.round,
            attempt=claim.attempt,
            device=device,
            checkpoint=self._checkpoint(state, version),
            plan_digest=log.row.plan_digest,
            task=self._core.task(state, device, version),
            secure=self._terms(state),
            report_within_s=max(0.0, min(ends_at - self._core.clock.now(), state.plan.cohort.collect_s)),
            partial=state.plan.aggregation.partial,
            privacy=state.plan.privacy_terms,
            roles=dict(state.roles),
            roles_digest=state.roles_digest,
            max_update_bytes=self._limit(claim.run),
            warning=self._fleet.warning(device),
        )

    def hold_over(self, device: str, check_in: CheckIn) -> Wait:
        """Returns the answer to a check-in whose hold has expired."""
        states = self._core.states()
        if self._fleet.superseded(device, check_in.process):
            reason = "another process of this device has checked in"
            return Wait(reason=reason, min_s=SOON_S[0], max_s=SOON_S[1])
        found = self._fleet.refusal(device, check_in, states) or self._fleet.hold_over(check_in, states)
        return found.changed(warning=self._fleet.warning(device))

    def started(self, device: str, run: str, round: int, attempt: int) -> Callable[[], object]:
        return self._core.enter(run, lambda at: ev.TrainingStarted(at=at, round=round, attempt=attempt, device=device))

    def abandon(self, device: str, reason: str) -> None:
        """Withdraws the device from the round under way, where it has one."""
        claim = self._core.store.claim(device)
        if claim is not None:
            with suppress(ProblemError):  # it has reported, or the round is over
                self.withdraw(device, claim.run, claim.round, claim.attempt, reason)

    def withdraw(self, device: str, run: str, round: int, attempt: int, reason: str) -> None:
        self._core.submit(
            run, lambda at: ev.Withdrew(at=at, round=round, attempt=attempt, device=device, reason=reason)
        )

    def update_limit(self, device: str, run: str, round: int, attempt: int) -> int:
        """Returns the longest accepted body of this device in bytes. ProblemError where no body can count.

        After the end of a round the body of a device whose update was acknowledged is still read: the same bytes get
        the same receipt. A device whose update was refused is not read again: it gets the same reason.
        """
        state = self._core.log(run).state
        kind = KINDS[state.plan.kind]
        against = kind.against(state, round, attempt, device)
        if against is not None:  # unless another replica has opened the round, or drawn its cohort
            state = self._core.log(run).catch_up()
            against = kind.against(state, round, attempt, device)
        invalid = self._outcomes.invalid_update(state, device, round)
        if invalid is not None:
            raise problem("invalid-update", invalid)
        if not kind.single_updates:
            raise problem(*(against or ("invalid-update", _NEVER_IN_CLEAR)))
        if against is None or (against[0] == "late" and self._outcomes.settled(device, run, round) is not None):
            return self._limit(run)
        if against[0] == "late" and not self._outcomes.was_selected(device, run, round):
            raise problem("not-selected", f"device {device} was not selected for round {round}, which is over")
        if against[0] == "late":
            self._outcomes.record_late(device, run, round, against[1])
        raise problem(*against)

    @contextmanager
    def late_recorded(self, device: str, run: str, round: int) -> Iterator[None]:
        """Where what is sent in it is refused as late, that is recorded: once for a device of the round."""
        try:
            yield
        except ProblemError as error:
            if error.kind == "late" and self._outcomes.was_selected(device, run, round):
                self._outcomes.record_late(device, run, round, str(error))
            raise

    def report(self, device: DeviceRow, run: str, round: int, attempt: int, spool: Spool) -> Callable[[], Receipt]:
        """Validates a spooled update, makes its bytes durable, and counts it.

        The same digest again gives the same receipt.
        """
        state = self._core.log(run).state
        under_way = (
            _member(state, device.device, round) is not None
        )  # another replica may have ended it: see ``settle``
        before = None if under_way else self._outcomes.settled(device.device, run, round)
        if before is not None:
            receipt = self._outcomes.receipt(before, spool.digest, device.device, run, round, attempt)
            if spool.digest in self._core.blobs.damaged():  # the device has the right bytes still
                spool.commit()
            return lambda: receipt
        aggregator = self._core.aggregator(run)
        try:
            report, measures = validation.check(
                spool.handle, aggregator.layout, state.plan, run=run, round=round, attempt=attempt
            )
        except ProblemError as invalid:
            why = str(invalid) if state.plan.privacy is None else "the update cannot be counted"
            raise self._refused(device, run, round, attempt, spool.digest, why) from None
        size, content = spool.size, None
        if size <= SHORT_BYTES:
            spool.handle.seek(0)
            digest, content = spool.digest, spool.handle.read()
        else:
            digest = spool.commit()
        aggregator.remember(digest, measures)
        treated = measures.treated if state.plan.privacy is None else UNTREATED
        arrived = ArrivedUpdate(device, report, digest, size, treated=treated, content=content)
        counted = self.count(arrived, still_there=lambda: content is not None or self._core.blobs.has(digest))

        def settle() -> Receipt:
            try:
                return counted()
            except StoreError:
                if content is None:
                    self._uncertain.add(run, round, digest)
                raise
            except ProblemError:
                if content is None:
                    self._uncertain.drop_unless_counted(run, round, digest)
                ended = self._outcomes.settled(device.device, run, round)
                if ended is None:
                    raise
                return self._outcomes.receipt(ended, digest, device.device, run, round, attempt)

        return settle

    def count(self, arrived: ArrivedUpdate, *, still_there: Callable[[], bool] = lambda: True) -> Callable[[], Receipt]:
        """Counts a validated update that ``Sums`` can read under its digest. ProblemError where it is refused.

        ``still_there`` is called under the run's lock.
        """

        def reported(at: float) -> ev.Reported:
            if not still_there():  # the same bytes under another request were refused meanwhile
                raise problem("busy", "the update's bytes were removed again: send them once more", retry_after_s=1)
            return _reported(arrived, at if arrived.at is None else arrived.at)

        short = None
        if arrived.content is not None:
            short = MessageRow(
                run=arrived.report.run, digest=arrived.digest, round=arrived.report.round, content=arrived.content
            )
        entered = self._core.enter(arrived.report.run, reported, short)
        return lambda: _receipt(arrived, entered())

    def outcome(self, device: str, run: str, round: int) -> Outcome:
        """Returns the outcome of this device's part in a round."""
        return self._outcomes.outcome(device, run, round)

    # ------------------------------------------------------------ inside

    def _checkpoint(self, state: RunState, version: int) -> CheckpointRef:
        """Returns the checkpoint of this version, which devices fetch; the size of the newest is read once."""
        if version != state.version and (row := self._core.store.checkpoint(state.run, version)) is not None:
            return CheckpointRef(version=version, digest=row.digest, bytes=row.bytes)
        offered = self._core.process.offered.get(state.run)
        if offered is None or (offered.version, offered.digest) != (state.version, state.checkpoint):
            size = self._core.blobs.size(state.checkpoint)
            offered = CheckpointRef(version=state.version, digest=state.checkpoint, bytes=size)
            self._core.process.offered[state.run] = offered
        return offered

    def _terms(self, state: RunState) -> SecureTask | None:
        """The plan's terms of secure rounds, and what is said of the origin of its model; None: it has plain ones."""
        terms, secure = state.terms, state.plan.secure
        if terms is None or secure is None:
            return None
        signed, (version, signature) = None, state.vouched or (0, secure.first_signature)
        if signature is not None and (row := self._core.store.checkpoint(state.run, version)) is not None:
            signed = SignedModel(digest=row.digest, bytes=row.bytes, version=version, signature=signature)
        task = task_of(terms, weighting=state.plan.weighting)
        return task.changed(first_seed=secure.first_seed, signed=signed)

    def _limit(self, run: str) -> int:
        return min(self._core.aggregator(run).max_update_bytes, self._core.settings.max_update_bytes)

    def _refused(self, device: DeviceRow, run: str, round: int, attempt: int, digest: str, reason: str) -> ProblemError:
        """Ends the device's part in the round, durably. Returns the error for this request and for its repetitions;
        raises another where the device has no open place in the round."""
        shown = printable(reason)
        self._core.submit(
            run,
            lambda at: ev.UpdateRefused(
                at=at, round=round, attempt=attempt, device=device.device, digest=digest, reason=shown
            ),
        )
        return problem("invalid-update", shown)


def _reported(arrived: ArrivedUpdate, at: float) -> ev.Reported:
    report, most = arrived.report, arrived.device.examples_cap
    score = report.held_out
    share = min(1.0, most / score.examples) if score else 1.0
    """Of its held-out examples those that the device may claim."""
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
        held_out=dict(score.metrics) if score else {},
        held_out_examples=min(score.examples, most) if score else 0,
        held_out_weights={name: weight * share for name, weight in score.weights.items()} if score else {},
        held_out_states={name: [one * share for one in state] for name, state in score.states.items()} if score else {},
        seconds=(report.fetch_s, report.train_s, report.encode_s),
        treated=replace(arrived.treated, capped=report.examples > most),
    )


def _receipt(arrived: ArrivedUpdate, effects: Sequence[fx.Effect]) -> Receipt:
    accepted = next(effect for effect in effects if isinstance(effect, fx.Accepted))
    return Receipt(
        run=arrived.report.run,
        round=arrived.report.round,
        attempt=arrived.report.attempt,
        device=arrived.device.device,
        digest=arrived.digest,
        weight=accepted.weight,
        logged=LoggedEvent(seq=accepted.seq, link=accepted.link) if accepted.link else None,
    )
