"""Bugs in the engine: which updates count, when a round closes, which records are written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.phases import collecting, committing, lifecycle, public_record, refusing, selecting
from coordinator.engine.state import Member, RunState
from coordinator.runtime.devices import Outcomes
from tests.explorer.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]
_against_update = collecting._against_update
_abandon = lifecycle.abandon
_tick = rounds._tick
_committed = committing.committed
_refuse = refusing.refuse
_reported = collecting.reported
_record = public_record.record
_drawn = selecting.drawn
_pending = rounds.pending


@mutant("late-report", "late-report")
def _late_report() -> Patches:
    """An update that comes after the round has closed still counts."""

    def against(state: RunState, member: Member, event: ev.Reported) -> tuple[str, str] | None:
        found = _against_update(state, member, event)
        return None if found is not None and found[0] == "late" else found

    return [(collecting, "_against_update", against)]


@mutant("second-update-wins", "counts-once", "log")
def _second_update_wins() -> Patches:
    """A second, different update takes the place of the first."""

    def against(state: RunState, member: Member, event: ev.Reported) -> tuple[str, str] | None:
        found = _against_update(state, member, event)
        return None if found is not None and found[0] == "duplicate" and state.phase == "collecting" else found

    return [(collecting, "_against_update", against)]


@mutant("withdrawn-counts", "log")
def _withdrawn_counts() -> Patches:
    """An update counts although its device has withdrawn."""

    def against(state: RunState, member: Member, event: ev.Reported) -> tuple[str, str] | None:
        found = _against_update(state, member, event)
        return None if found is not None and found[0] == "withdrawn" and state.phase == "collecting" else found

    return [(collecting, "_against_update", against)]


@mutant("ignored-quorum", "quorum")
def _ignored_quorum() -> Patches:
    """At the deadline a round closes with any number of reports."""

    def tick(state: RunState, event: ev.Tick) -> Any:
        late = state.deadline is not None and event.at >= state.deadline
        if late and state.phase == "collecting" and state.current.count("reported"):
            return committing.close(state, event.at)
        return _tick(state, event)

    return [(rounds, "_tick", tick)]


@mutant("refusal-changes-state", "refusal")
def _refusal_changes_state() -> Patches:
    """A refused event leaves a trace in the state."""

    def refuse(state: RunState, kind: str, reason: str, report: ev.Reported | None = None) -> Any:
        state, effects = _refuse(state, kind, reason, report)
        buggy = (
            state if state.round is None else state.with_round(replace(state.round, waiting=state.round.waiting + 1))
        )
        return buggy, effects

    return [(collecting, "refuse", refuse)]


@mutant("receipt-forgotten", "named", "receipt")
def _receipt_forgotten() -> Patches:
    """An update whose same bytes come again is refused as a second one."""

    def reported(state: RunState, event: ev.Reported) -> Any:
        member = None if state.round is None else state.round.members.get(event.device)
        if member is not None and member.digest == event.digest and event.round == state.round_number:
            return _refuse(state, "duplicate", "an update was received before")
        return _reported(state, event)

    return [(collecting, "reported", reported)]


@mutant("forked-line", "line")
def _forked_line() -> Patches:
    """A checkpoint names the first version as its parent, and the store accepts it."""

    def committed(state: RunState, event: ev.Committed) -> Any:
        state, effects = _committed(state, event)
        buggy = [replace(e, parent=0) if isinstance(e, fx.RecordCheckpoint) else e for e in effects]
        return state, buggy

    from coordinator.store.memory import MemoryTransaction

    take = MemoryTransaction._take

    def lenient(self: MemoryTransaction, table: Any, columns: Any, *rest: Any) -> None:
        if "parent_version" not in columns:
            take(self, table, columns, *rest)

    return [(committing, "committed", committed), (MemoryTransaction, "_take", lenient)]


@mutant("lost-refusal", "named")
def _lost_refusal() -> Patches:
    """When a round is abandoned, nothing is recorded for the updates that were acknowledged."""

    def abandon(state: RunState, at: float, reason: str, **more: Any) -> Any:
        state, effects = _abandon(state, at, reason, **more)
        return state, [effect for effect in effects if not isinstance(effect, fx.RecordRefusal)]

    return [(owner, "abandon", abandon) for owner in (lifecycle, collecting, committing)]


@mutant("round-stays-open", "one-end")
def _round_stays_open() -> Patches:
    """An abandoned round's row is never closed."""

    def record(state: RunState, status: str, **more: Any) -> fx.RecordRound:
        return _record(state, "open" if status == "abandoned" else status, **more)

    return [(lifecycle, "record", record)]


@mutant("two-ends", "one-end")
def _two_ends() -> Patches:
    """A committed round is recorded as abandoned."""

    def record(state: RunState, status: str, **more: Any) -> fx.RecordRound:
        return _record(state, "abandoned" if status == "committed" else status, **more)

    return [(committing, "record", record)]


@mutant("refused-not-left", "left-once", focus=("device-invalid", "collecting"))
def _refused_not_left() -> Patches:
    """The sender of an invalid update gets the refusal and still has its place in the round."""

    def update_refused(state: RunState, event: ev.UpdateRefused) -> Any:
        return state, [fx.Refused(kind="invalid-update", reason=event.reason)]

    return [(collecting, "update_refused", update_refused)]


@mutant("refusal-not-final", "log", "left-once", focus=("device-invalid", "collecting"), liars=2)
def _refusal_not_final() -> Patches:
    """An update counts although one of its device was refused as invalid."""

    def against(state: RunState, member: Member, event: ev.Reported) -> tuple[str, str] | None:
        found = _against_update(state, member, event)
        return None if member.status == "refused" and state.phase == "collecting" else found

    return [(collecting, "_against_update", against), (Outcomes, "invalid_update", lambda *_: None)]


@mutant("never-pauses", "log", "one-end", plan={"finish": {"rounds": 6, "abandoned": 2}})
def _never_pauses() -> Patches:
    """A run goes on although so many rounds in a row were abandoned."""
    return [(lifecycle, "_paused_after", lambda state, *_: state)]


@mutant("lost-assignment", "claims")
def _lost_assignment() -> Patches:
    """One device of the cohort never gets its assignment."""

    def drawn(state: RunState, event: ev.Drawn) -> Any:
        state, effects = _drawn(state, event)
        buggy = [replace(e, devices=e.devices[1:]) if isinstance(e, fx.Claim) else e for e in effects]
        return state, buggy

    return [(selecting, "drawn", drawn)]


@mutant("kept-claim", "claims")
def _kept_claim() -> Patches:
    """The claim of a device that has reported does not end, so no other run can select it."""

    def reported(state: RunState, event: ev.Reported) -> Any:
        state, effects = _reported(state, event)
        return state, [e for e in effects if not (isinstance(e, fx.Release) and e.devices is not None)]

    return [(collecting, "reported", reported)]


@mutant("lost-commit", "liveness")
def _lost_commit() -> Patches:
    """A coordinator that is started again does not find its pending commit."""

    def pending(state: RunState) -> list[fx.Action]:
        return [action for action in _pending(state) if not isinstance(action, fx.Commit)]

    return [(rounds, "pending", pending)]


@mutant("another-reason-told", "named")
def _another_reason_told() -> Patches:
    """Devices of an abandoned round are told another reason than the one that is shown."""
    abandon = lifecycle.abandon

    def other(state: RunState, at: float, reason: str, **more: Any) -> Any:
        following, effects = abandon(state, at, reason, **more)
        told = [
            replace(one, reason="the round was abandoned: it was full") if isinstance(one, fx.RecordRefusal) else one
            for one in effects
        ]
        return following, told

    return [(owner, "abandon", other) for owner in (lifecycle, collecting)]
