"""Datacenter rounds: who has the lease, what keeps it, and what ends the round.

::

    leasing ------------> training ------------> (committed) next round
      |  ^    Leased         |  |    Delivered, under the fence of the last lease
      |  +-------------------+  |
      |     no heartbeat in     |  max_s since the first lease, or the worker says that it cannot be done
      |     lease_s, or given   +------------------------------------------------------------------------+
      |     back                                                                                         v
      +-- enough devices wait, and no worker has the round: FleetReturned --> abandoned: the fleet's turn

Every grant raises the fence, also one to the same worker started again; what comes under an older fence is refused. So
time, which ends leases, decides who may go on, and never what is committed. While a lease lives, only a process of the
same installation of the same worker gets a new one: that is the worker started again. Knows nothing of devices'
requests, of tensors or of how a worker trains.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.committing import advance
from coordinator.engine.phases.lifecycle import Step, abandon, phase_s, record
from coordinator.engine.phases.round_kind import rest_s
from coordinator.engine.plan import Datacenter, Plan
from coordinator.engine.state import Lease, RunState

RENEWALS = 4
"""A heartbeat is written down when this part of ``lease_s`` has passed since the last one that was."""


def reason_against(plan: Plan, *, learners: dict[str, str], data: tuple[str, ...], nproc: int) -> str | None:
    """Why a worker with these learners, data and processes cannot take this plan's rounds; None: it can."""
    section, task = plan.datacenter, plan.task
    if section is None:
        return "the plan asks for no datacenter rounds"
    have = learners.get(task.learner)
    if have is None:
        return f"the plan wants the learner {task.learner}, which this worker does not have"
    if task.learner_version is not None and have != task.learner_version:
        return f"the plan wants {task.learner} {task.learner_version}; this worker has {have}"
    if section.data not in data:
        return f"the plan wants the data {section.data!r}, which this worker does not hold"
    if nproc < section.nproc:
        return f"the plan wants {section.nproc} processes; this worker has {nproc}"
    return None


def fleet_is_back(state: RunState, at: float, waiting: int) -> bool:
    """Whether so many eligible waiting devices end a datacenter round that no worker has.

    A run that fell back goes as soon as a whole cohort waits; where nobody takes the round a quorum is enough, as it
    is when a cohort is drawn. A round that is the datacenter's by plan first waits ``wait_s`` for a worker.
    """
    section, current = state.plan.datacenter, state.round
    if section is None or current is None or current.phase != "leasing" or current.deadline is None:
        return False
    if not current.planned and waiting >= section.devices_back(state.plan.cohort):
        return True
    return at >= current.deadline and waiting >= state.plan.cohort.quorum_count


def leased(state: RunState, event: ev.Leased) -> Step:
    section, current = state.plan.datacenter, state.round
    if (
        section is None
        or current is None
        or event.round != current.number
        or current.phase not in ("leasing", "training")
    ):
        return _refuse("stale", f"round {event.round} is not to be had", state)
    lease = current.lease
    if current.phase == "training" and lease is not None:
        if lease.worker != event.worker:
            return _refuse("conflict", f"round {event.round} is in the hands of worker {lease.worker}", state)
        if lease.instance == event.instance:
            return state, [_granted(state, lease)]
        if event.installation is not None and not is_restart(lease, event.installation):
            return _refuse("conflict", f"another process of worker {lease.worker} has round {event.round}", state)
    if event.attempt != current.attempt + 1 or event.fence != state.fence + 1:
        return _refuse("stale", f"the next lease is attempt {current.attempt + 1}, fence {state.fence + 1}", state)
    give_up_at = event.at + section.max_s if current.give_up_at is None else current.give_up_at
    lease = Lease(
        worker=event.worker,
        instance=event.instance,
        fence=event.fence,
        granted_at=event.at,
        renewed_at=event.at,
        installation=event.installation or "",
    )
    current = replace(
        current,
        phase="training",
        attempt=event.attempt,
        lease=lease,
        waiting=event.waiting,
        collecting_at=event.at if current.collecting_at is None else current.collecting_at,
        give_up_at=give_up_at,
        deadline=min(event.at + section.lease_s, give_up_at),
    )
    state = replace(state, round=current, fence=event.fence)
    return state, [record(state, "open"), _granted(state, lease)]


def heartbeat(state: RunState, event: ev.Heartbeat) -> Step:
    section, current = state.plan.datacenter, state.round
    lease = None if current is None else current.lease
    against = reason_lost(state, event.round, event.attempt, event.fence, event.worker)
    if against is not None or section is None or current is None or lease is None or current.deadline is None:
        return _refuse("lease-lost", against or "no lease is held", state)
    if 0 <= event.at - lease.renewed_at < section.lease_s / RENEWALS:
        return state, [fx.Kept(ends_at=current.deadline)]
    lease = replace(lease, renewed_at=event.at, step=event.step, metrics=event.metrics)
    ends_at = event.at + section.lease_s
    ends_at = min(ends_at, current.give_up_at or ends_at)
    return state.with_round(replace(current, lease=lease, deadline=ends_at)), [fx.Kept(ends_at=ends_at)]


def lease_ended(state: RunState, event: ev.LeaseEnded) -> Step:
    against = reason_lost(state, event.round, event.attempt, event.fence, event.worker)
    if against is not None:
        return _refuse("lease-lost", against, state)
    if event.failed:
        return _failed(state, event.at, f"worker {event.worker} could not train: {event.reason}")
    return _lease_again(state, event.at)


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
        optimizer=event.optimizer,
        origin=f"round {current.number}, in the datacenter by {event.worker}",
    )
    return following, [fx.Taken(version=following.version), *effects]


def fleet_returned(state: RunState, event: ev.FleetReturned) -> Step:
    if event.round != state.round_number or not fleet_is_back(state, event.at, event.waiting):
        return _refuse("stale", f"round {event.round} does not wait for devices", state)
    state = state.with_round(replace(state.current, waiting=event.waiting))
    return _give_up(state, event.at, f"{event.waiting} eligible devices wait, and no worker has the round")


def tick(state: RunState, at: float, section: Datacenter) -> Step:
    """A lease that nobody keeps ends; a round that takes too long is given up."""
    current = state.current
    if current.give_up_at is not None and at >= current.give_up_at:
        return _give_up(
            state, at, f"no result within {section.max_s:g} s of the first lease ({current.attempt} in all)"
        )
    if current.phase == "training" and current.deadline is not None and at >= current.deadline:
        return _lease_again(state, at)
    return state, []


def clock_fell(state: RunState, by_s: float) -> RunState:
    """The times of a datacenter round that lie ahead, or are counted from, move back with the clock."""
    lease, give_up_at, rests_until = state.current.lease, state.current.give_up_at, state.fallback.rests_until
    current = replace(
        state.current,
        lease=None if lease is None else replace(lease, renewed_at=lease.renewed_at - by_s),
        give_up_at=None if give_up_at is None else give_up_at - by_s,
    )
    rests_until = None if rests_until is None else rests_until - by_s
    return replace(state, round=current, fallback=replace(state.fallback, rests_until=rests_until))


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
        return f"round {round} has been given out anew: its fence is {state.fence}, not {fence}"
    if fence > state.fence:
        return f"round {round} was never given out under fence {fence}: its fence is {state.fence}"
    if worker != lease.worker:
        return f"round {round} is in the hands of another worker, under fence {fence}"
    if attempt != current.attempt:
        return f"fence {fence} is that of attempt {current.attempt} of round {round}, not {attempt}"
    if state.phase != "training":
        return f"the lease of round {round} has ended: nothing was heard in time, or it was given back"
    return None


def is_restart(lease: Lease, installation: str) -> bool:
    """Whether another process of the lease's worker, of this installation, is that worker started again. One that does
    not say where it is installed may be anyone that was given the token."""
    return installation != "" and installation == lease.installation


def _lease_again(state: RunState, at: float) -> Step:
    current = replace(state.current, phase="leasing")
    if state.status != "running":
        return abandon(state.with_round(current), at, "the run was paused while no worker had the round")
    current = replace(current, deadline=at + phase_s(state.plan, current))
    return state.with_round(current), [fx.Offer(round=current.number)]


def _give_up(state: RunState, at: float, reason: str) -> Step:
    fallback = replace(state.fallback, away_since=None, abandoned_in_a_row=0, fleet_first=True)
    return abandon(replace(state, fallback=fallback), at, reason)


def _failed(state: RunState, at: float, reason: str) -> Step:
    """It cannot be trained, says the worker. Said several times in a row, it is not tried again for a while."""
    failures = state.fallback.failures + 1
    rest = rest_s(failures)
    fallback = replace(state.fallback, failures=failures, failure=reason, rests_until=at + rest if rest else None)
    return _give_up(replace(state, fallback=fallback), at, reason)


def _granted(state: RunState, lease: Lease) -> fx.Granted:
    current = state.current
    ends_at = current.deadline if current.deadline is not None else lease.renewed_at
    return fx.Granted(
        round=current.number,
        attempt=current.attempt,
        fence=lease.fence,
        checkpoint=state.checkpoint,
        version=state.version,
        ends_at=ends_at,
        give_up_at=current.give_up_at if current.give_up_at is not None else ends_at,
    )


def _refuse(kind: str, reason: str, state: RunState) -> Step:
    return state, [fx.Refused(kind=kind, reason=reason)]
