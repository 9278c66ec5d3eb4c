"""The outcome of a device's part in a round: counted, refused, dropped, withdrawn, or still pending.

Reads the run's state and the store. The same facts answer bytes that are sent again after the end of their round.
"""

from __future__ import annotations

from functools import partial

from client_sdk.protocol.devices import LoggedEvent, Outcome, Receipt
from client_sdk.protocol.problems import problem
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.rounds import kind_of
from coordinator.engine.state import RunState
from coordinator.runtime import records, views
from coordinator.runtime.core import Core
from coordinator.store.port import Reader


class Outcomes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def outcome(self, device: str, run: str, round: int) -> Outcome:
        """Returns the outcome of this device's part in a round."""
        found = partial(Outcome, run=run, round=round, device=device)
        state = self._core.log(run).catch_up()
        if not 1 <= round <= state.round_number:
            raise problem("unknown-round", f"run {run} has no round {round}: it is at round {state.round_number}")
        # First: an attempt of this round that was given up leaves refusals, and the round goes on.
        if state.round is not None and round == state.round.number and device in state.round.members:
            member = state.round.members[device]
            if member.status in ("withdrawn", "refused"):
                return found(result=member.status, reason=member.reason, digest=member.digest)
            awaited = member.status == "reported" or kind_of(state.round).awaits(state, device)
            return found(result="pending" if awaited else "dropped", reason=member.reason, digest=member.digest)
        settled = self.settled(device, run, round)
        if settled is not None:
            return settled
        refusal = views.latest_refusal(self._core.store.refusals(run, round), device)
        if refusal is not None:
            return found(result="refused", reason=refusal.reason, digest=refusal.digest)
        if self.was_selected(device, run, round):
            reason = "the device was selected, and no update of it was received while the round was open"
            return found(result="dropped", reason=reason)
        return found(result="unknown", reason="the device was not selected for this round")

    def was_selected(self, device: str, run: str, round: int) -> bool:
        """Whether the device was in the cohort of a round that has ended."""
        row = self._core.store.round(run, round)
        cohort = row.body.get("cohort") if row is not None else None
        return isinstance(cohort, list) and device in cohort

    def invalid_update(self, state: RunState, device: str, round: int) -> str | None:
        """Returns why an update of this device was refused as invalid in this round, which may have ended; None where
        none was."""
        if state.round is not None and round == state.round.number:
            member = state.round.members.get(device)
            return member.reason if member is not None and member.status == "refused" else None
        if not 1 <= round <= state.round_number:
            return None
        mine = [row for row in self._core.store.refusals(state.run, round) if row.device == device]
        return next((row.reason for row in mine if row.kind == "invalid-update"), None)

    def settled(self, device: str, run: str, round: int) -> Outcome | None:
        """Returns the stored outcome of this device's acknowledged update in a round that has ended, or None."""
        found = partial(Outcome, run=run, round=round, device=device)
        row = self._core.store.contribution(run, round, device)
        if row is not None:
            return found(result="counted", digest=row.digest, version=row.version)
        refusal = views.latest_refusal(
            [r for r in self._core.store.refusals(run, round) if r.kind == "abandoned"], device
        )
        return None if refusal is None else found(result="refused", reason=refusal.reason, digest=refusal.digest)

    def receipt(self, outcome: Outcome, digest: str, device: str, run: str, round: int, attempt: int) -> Receipt:
        """Returns the answer to bytes that are sent again after the end of their round."""
        if outcome.result == "refused":
            raise problem("late", outcome.reason)
        if outcome.digest != digest:
            raise problem("duplicate", "another update of this device was received in this round; the first one counts")
        row = self._core.store.contribution(run, round, device)
        if row is None:
            raise RuntimeError("the update was counted, and has no row")
        beginning: dict[str, object] = {"round": round, "attempt": attempt, "device": device, "digest": digest}
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
            counts = reader.contribution(run, round, device)
            return counts is None and views.latest_refusal(reader.refusals(run, round), device) is None

        refusal = fx.RecordRefusal(round=round, device=device, digest=None, kind="late", reason=reason)
        if unrecorded(self._core.store):
            with self._core.store.transaction(run) as tx:
                if unrecorded(tx):
                    records.write(tx, run, [(self._core.clock.now(), refusal)])
