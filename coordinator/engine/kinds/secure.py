"""Rounds of which the coordinator sees the sum alone, and not the update of any device.

::

    selecting --> collecting --> sharing --> masking --> agreeing --> unmasking --> committing
       Drawn      Advertised      Shared      Masked      Signed       Revealed      CommitSum
                      ^             |            |
                      +-------------+------------+   attempt + 1, before anybody could sign, under new keys

From *agreeing* on the survivor list is fixed and there is no new attempt: a device that signs is spent on this
checkpoint. An event holds digests and counts, never keys, shares or vectors: no single vector is ever unmasked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never, get_args

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.kinds import Place, RoundKind
from coordinator.engine.phases import collecting as plain
from coordinator.engine.phases import public_record, selecting
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.plan import Plan
from coordinator.engine.secure import (
    agreeing,
    attempts,
    collecting,
    departures,
    exhausted,
    marks,
    masking,
    sharing,
    unmasking,
)
from coordinator.engine.secure.progress import progress
from coordinator.engine.state import Round, RunState

Performed = ev.Announced | ev.Rostered | ev.Opened | ev.OpeningFailed
"""The results of the coordinator's own actions."""


class Secure(RoundKind[ev.DeviceEvent | ev.SecureEvent]):
    first_phase = "selecting"
    events = get_args(ev.SecureEvent)
    masked = keeps_claims = True
    coordinator_works = frozenset({"collecting", "sharing", "unmasking", "committing"})

    def happened(self, state: RunState, event: ev.DeviceEvent | ev.SecureEvent) -> Step:
        match event:
            case ev.Drawn():
                return collecting.drawn(state, event)
            case ev.TrainingStarted():
                return plain.started(state, event)
            case ev.Reported() | ev.UpdateRefused():
                return collecting.reported(state, event)
            case ev.UpdateLost():
                return plain.update_lost(state, event)
            case ev.Withdrew():
                return departures.withdrew(state, event)
            case ev.Announced() | ev.Rostered() | ev.Opened() | ev.OpeningFailed():
                return _performed(state, event)
            case ev.Advertised():
                return collecting.advertised(state, event)
            case ev.Shared():
                return sharing.shared(state, event)
            case ev.Masked():
                return masking.masked(state, event)
            case ev.Complained():
                return masking.complained(state, event)
            case ev.PairsOpened():
                return masking.pairs_opened(state, event)
            case ev.Signed():
                return agreeing.signed(state, event)
            case ev.Revealed():
                return unmasking.revealed(state, event)
            case ev.Faulted():
                return departures.faulted(state, event)
            case ev.Spent():
                return departures.spent(state, event)
            case ev.Declined():
                return departures.declined(state, event)
            case ev.Unbarred():
                return marks.unbarred(state, event)
            case ev.Vouched():
                return marks.vouched(state, event)
            case ev.Discarded():
                return _discarded(state, event)
            case ev.Advanced():
                return exhausted.advanced(state, event)
            case _:
                assert_never(event)

    def time_is_up(self, state: RunState, at: float) -> Step:
        match state.phase:
            case "selecting":
                return state, [*selecting.pending(state)]
            case "collecting":
                return collecting.time_is_up(state, at)
            case "sharing":
                return sharing.time_is_up(state, at)
            case "masking":
                return masking.go_on(state, at, time_is_up=True)
            case "agreeing":
                return agreeing.agreed(state, at)
            case "unmasking":
                return unmasking.time_is_up(state, at)
            case _:
                return state, []

    def recovered(self, state: RunState, at: float) -> RunState:
        attempt = state.secure
        if attempt is None:
            return state
        if state.phase == "collecting" and not state.current.attempt:
            return plain.recovered(state, at, attempt.expires_at)
        return attempts.recovered(state, at)

    def pending(self, state: RunState) -> list[fx.Action]:
        match state.phase:
            case "selecting":
                return selecting.pending(state)
            case "collecting":
                return collecting.pending(state)
            case "sharing":
                return sharing.pending(state)
            case "masking":
                return masking.pending(state)
            case "agreeing":
                return agreeing.pending(state)
            case "unmasking":
                return unmasking.pending(state)
            case "committing":
                advances = state.current.advancing
                return [exhausted.advance_action(state) if advances else unmasking.commit_sum_action(state)]
            case _:
                return []

    def public(self, state: RunState) -> dict[str, object]:
        """With the progress of the exchanges, without the devices' data and without the devices at fault."""
        current, secure, plan = state.current, state.secure, state.plan.secure
        masked = set[str]() if secure is None else secure.masked.keys()
        body = {**public_record.fleet_body(current, masked), "exhausted": state.exhausted}
        if secure is None or plan is None:
            return body
        found, privacy = progress(current, secure, plan, state.plan.cohort), state.plan.privacy
        if privacy is not None:
            found["noise"] = privacy.multiplier(state.plan)
        return {**body, "weight": secure.weight, "secure": found}

    def lasts_s(self, plan: Plan, round: Round) -> float:
        section, attempt = plan.secure, round.secure
        if section is None:
            return 0.0
        match round.phase:
            case "selecting":
                return plan.cohort.select_s
            case "collecting":
                return section.exchange_s if round.attempt else plan.cohort.collect_s
            case "sharing" if attempt is not None and not attempt.roster:
                return section.expires_s
            case "sharing" | "masking" | "agreeing" | "unmasking":
                return section.exchange_s
            case _:
                return 0.0

    def awaits(self, state: RunState, device: str) -> bool:
        came = state.secure is not None and device in state.secure.advertised
        shares = state.phase in ("sharing", "masking") and came and device not in state.current.excluded
        return shares or super().awaits(state, device)

    def place(self, state: RunState) -> Place:
        """Number of the round, phase, attempt, whether there is a header, whether there is a roster."""
        secure, phase = state.secure, state.phase
        if phase == "sharing" and secure is not None and not secure.roster:
            phase = "collecting"  # nobody has an answer by this change: all wait for the roster
        elif phase == "committing":
            phase = "unmasking"  # nobody has an answer by this change: all wait for the end of the round
        attempt = 0 if state.round is None else state.round.attempt
        made = (False, False) if secure is None else (bool(secure.header), bool(secure.roster))
        return (state.round_number, phase, attempt, *made)

    def awaits_authority(self, state: RunState) -> bool:
        """For the header, and for the roster."""
        secure = state.secure
        return secure is not None and (not secure.header or (state.phase == "sharing" and not secure.roster))

    def contributions(self, round: Round) -> tuple[fx.Contribution, ...]:
        """The masked vectors, whose weights are unknown."""
        masked = {} if round.secure is None else round.secure.masked
        return tuple(fx.Contribution(device=one, digest=digest, weight=0) for one, digest in sorted(masked.items()))

    def blobs(self, round: Round) -> tuple[str, ...]:
        return () if round.secure is None else round.secure.blobs


def _performed(state: RunState, event: Performed) -> Step:
    """Stale where the attempt is over."""
    current = state.round
    if current is None or current.secure is None or (event.round, event.attempt) != (current.number, current.attempt):
        reason = f"attempt {event.attempt} of round {event.round} is not under way as a secure round"
        return refuse(state, "stale", reason)
    match event:
        case ev.Announced():
            return collecting.announced(state, event)
        case ev.Rostered():
            return sharing.rostered(state, event)
        case ev.Opened():
            return unmasking.opened(state, event)
        case ev.OpeningFailed():
            return unmasking.opening_failed(state, event)
        case _:
            assert_never(event)


def _discarded(state: RunState, event: ev.Discarded) -> Step:
    """All blobs of that round are deleted."""
    if event.round not in state.leftovers:
        return state, []
    rest = {number: blobs for number, blobs in state.leftovers.items() if number != event.round}
    return replace(state, leftovers=rest), []
