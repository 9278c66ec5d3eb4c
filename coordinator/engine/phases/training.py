"""The training phase: one worker has a datacenter round, under a fence, as long as its heartbeats arrive.

Its result is the next checkpoint. For what leads here see ``leasing``.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.committing import advance
from coordinator.engine.phases.leasing import give_up, lease_again, too_long
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.phases.round_kind import rest_s
from coordinator.engine.state import RunState

RENEWALS = 4
"""A heartbeat is logged when this part of ``lease_s`` has passed since the last logged one."""


def heartbeat(state: RunState, event: ev.WorkerHeartbeat) -> Step:
    section, current = state.plan.datacenter, state.round
    lease = None if current is None else current.lease
    against = reason_lost(state, event.round, event.attempt, event.fence, event.worker)
    if against is not None or section is None or current is None or lease is None or current.deadline is None:
        return refuse(state, "lease-lost", against or "no lease is held")
    if 0 <= event.at - lease.renewed_at < section.lease_s / RENEWALS:
        return state, [fx.Renewed(ends_at=current.deadline)]
    lease = replace(lease, renewed_at=event.at, step=event.step, metrics=event.metrics)
    ends_at = event.at + section.lease_s
    ends_at = min(ends_at, current.give_up_at or ends_at)
    return state.with_round(replace(current, lease=lease, deadline=ends_at)), [fx.Renewed(ends_at=ends_at)]


def lease_ended(state: RunState, event: ev.LeaseEnded) -> Step:
    against = reason_lost(state, event.round, event.attempt, event.fence, event.worker)
    if against is not None:
        return refuse(state, "lease-lost", against)
    if event.failed:
        return _failed(state, event.at, f"worker {event.worker} could not train: {event.reason}")
    return lease_again(state, event.at)


def delivered(state: RunState, event: ev.Delivered) -> Step:
    """A result under the live lease is committed at once: it was validated and durable before. Where enough devices
    wait by then, a run that had fallen back returns to them."""
    section, current, fallback = state.plan.datacenter, state.round, state.fallback
    lease = None if current is None else current.lease
    against = reason_lost(state, event.round, event.attempt, event.fence, event.worker)
    if against is not None or section is None or current is None or lease is None:
        reason = against or "no lease is held"
        refusal = fx.RecordRefusal(
            round=event.round, device=event.worker, digest=event.digest, kind="lease-lost", reason=reason
        )
        return state, [fx.Refused(kind="lease-lost", reason=reason), refusal]
    lease = replace(lease, renewed_at=event.at, step=event.steps, bytes=event.bytes, metrics=event.metrics)
    fallback = replace(fallback, failures=0, rests_until=None)
    if fallback.away_since is not None and (event.waiting or 0) >= section.devices_back(state.plan.cohort):
        fallback = replace(fallback, away_since=None, back_with=event.waiting)
    state = replace(state, round=replace(current, lease=lease), fallback=fallback)
    following, effects = advance(
        state,
        event.at,
        digest=event.digest,
        size=event.bytes,
        tensors=event.tensors,
        origin=f"round {current.number}, in the datacenter by {event.worker}",
    )
    return following, [fx.Taken(version=following.version), *effects]


def time_passes(state: RunState, at: float) -> Step:
    """A lease that is not renewed ends; a round that takes too long is given up."""
    reason = too_long(state, at)
    if reason is not None:
        return give_up(state, at, reason)
    deadline = state.current.deadline
    return lease_again(state, at) if deadline is not None and at >= deadline else (state, [])


def reason_lost(state: RunState, round: int, attempt: int, fence: int, worker: str) -> str | None:
    """Why a worker does not hold the round under this fence; None: it does."""
    current = state.round
    if round > state.round_number:
        return f"round {round} has not been opened: the run is at round {state.round_number}"
    if current is None or round < current.number:
        return f"round {round} is over"
    lease = current.lease
    if lease is None or current.kind != "datacenter":
        return f"worker {worker} has no lease of round {round}"
    if fence < state.fence:
        return f"round {round} has been leased again: its fence is {state.fence}, not {fence}"
    if fence > state.fence:
        return f"round {round} was never leased under fence {fence}: its fence is {state.fence}"
    if worker != lease.worker:
        return f"round {round} is leased to another worker, under fence {fence}"
    if attempt != current.attempt:
        return f"fence {fence} is that of attempt {current.attempt} of round {round}, not {attempt}"
    if state.phase != "training":
        return f"the lease of round {round} has ended: no heartbeat arrived in time, or it was given back"
    return None


def _failed(state: RunState, at: float, reason: str) -> Step:
    """The worker reports that it cannot train the round. After several such reports in a row, the datacenter rests."""
    failures = state.fallback.failures + 1
    rest = rest_s(failures)
    fallback = replace(state.fallback, failures=failures, failure=reason, rests_until=at + rest if rest else None)
    return give_up(replace(state, fallback=fallback), at, reason)
