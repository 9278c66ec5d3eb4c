"""Complaints of shares that do not open: they settle while the others mask, before the list of survivors is shown.

A dealer that is accused opens the pair of that one holder, and the pair goes to the holder, which masks. Where it has
not by the end of the phase, or opens another pair than it signed the digests of (``events.Faulted``), the dealer is out
of the round, with its vector, and the holder masks without that pair. A complaint gives both ``secure.quiet_s``. It is
taken while the phase lasts as long as it does without complaints, once of each device: so their number bounds how long
they delay a round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine.phases.refusing import Step
from coordinator.engine.secure.attempts import present, under_way, with_secure
from coordinator.engine.state import RunState


def accused(state: RunState) -> frozenset[str]:
    """The dealers that have not answered a complaint, and are not out."""
    secure, _ = under_way(state)
    dealers = {dealer for unheld in secure.lacks.values() for dealer in unheld}
    return frozenset(dealers - state.current.excluded.keys())


def accusing(state: RunState, dealer: str) -> tuple[str, ...]:
    """The devices whose complaints of this dealer it has not answered, sorted."""
    secure, _ = under_way(state)
    return tuple(sorted(holder for holder, unheld in secure.lacks.items() if dealer in unheld))


def is_settled(state: RunState, holder: str) -> bool:
    """Whether each dealer of which this device has complained has opened its pair, or is out."""
    secure, _ = under_way(state)
    return set(secure.lacks.get(holder, ())) <= state.current.excluded.keys()


def settled(state: RunState) -> tuple[str, ...]:
    """The devices whose complaints are settled, and which have not masked yet, sorted."""
    secure, _ = under_way(state)
    left = present(state, secure.complaints.keys() - secure.masked.keys())
    return tuple(holder for holder in left if is_settled(state, holder))


def with_time(state: RunState, at: float) -> RunState:
    """The state in which whoever has to answer, or to mask after an answer, has ``quiet_s`` from now, within the
    attempt's expiry."""
    secure, plan = under_way(state)
    until = min(at + plan.quiet, float(secure.expires_at))
    return with_secure(state, replace(secure, settle_by=max(secure.settle_by, until)))


def put_out(state: RunState, at: float, dealers: Iterable[str]) -> Step:
    """These dealers have answered no complaint: they are out of the round, and their vectors out of the sum."""
    effects: list[fx.Effect] = []
    for dealer in sorted(dealers):
        holders = accusing(state, dealer)
        reason = f"it did not open the shares that {', '.join(holders)} could not open"
        state, refusals = left_out(state, at, dealer, reason)
        effects += [*refusals, fx.Release(round=state.round_number, devices=(dealer,))]
    return state, effects


def left_out(state: RunState, at: float, device: str, reason: str) -> tuple[RunState, list[fx.Effect]]:
    """The state in which the device is excluded in the masking phase without its vector, and the recorded refusal of a
    vector that was acknowledged. Who has complained of it has time to mask."""
    secure, _ = under_way(state)
    digest = secure.masked.get(device)
    excluded = {**state.current.excluded, device: reason}
    state = state.with_round(replace(state.current, excluded=excluded))
    if any(device in unheld for unheld in secure.lacks.values()):
        state = with_time(state, at)
        secure, _ = under_way(state)
    if digest is None:
        return state, []
    member = state.current.members[device]
    if member.status == "reported":
        state = state.with_member(device, replace(member, status="training"))
    why = f"the device was left out: {reason}"
    refused = fx.RecordRefusal(
        round=state.round_number, device=device, digest=digest, kind="invalid-update", reason=why
    )
    return with_secure(state, secure.without("masked", device)), [refused]
