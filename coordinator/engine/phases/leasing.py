"""The leasing phase: a datacenter round waits for a worker. Also decides which worker gets a lease.

::

    leasing ------------> training ------------> (committed) next round
      |  ^    Leased         |  |    Delivered, under the fence of the last lease
      |  +-------------------+  |
      |     no heartbeat in     |  max_s since the first lease, or the worker reports a failure
      |     lease_s, or given   +------------------------------------------------------------------------+
      |     back                                                                                         v
      +-- enough devices wait, and no worker has the round: FleetReturned --> abandoned: the fleet's turn

Every grant raises the fence, also one to the same worker started again; a message under an older fence is refused. So
time, which ends leases, decides which worker may continue, and never which result is committed. While a lease is live,
only a process of the same installation of the same worker gets a new one: that is the worker started again.

There is no phase *committing* here. A result is checked and durable as a blob before ``Delivered`` is proposed, and
that event commits it, so nothing is left to be made that could be interrupted. A heartbeat is logged when a quarter of
``lease_s`` has passed since the last logged one: an hour of training makes 240 rows at 60 s, however often the worker
speaks. After a round that was given up it is the devices' turn once, so that a worker that always fails cannot keep
the run.
"""

from __future__ import annotations

import math
from dataclasses import replace

from client_sdk.protocol.workers import DatacenterTask, WorkerPoll, strategies_of
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.kinds import kind_of
from coordinator.engine.phases.lifecycle import abandon
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.plan import Plan
from coordinator.engine.state import GrantedLease, RunState


def reason_against(plan: Plan, poll: WorkerPoll, model_bytes: int = 0) -> str | None:
    """Why the worker of this poll cannot take this plan's rounds; None: it can. ``model_bytes``: of the checkpoint."""
    section, task = plan.datacenter, plan.task
    learners, data, nproc = poll.learners, poll.data, poll.nproc
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
    if lacking := [name for name in strategies_of(section.work) if name not in poll.strategies]:
        return f"the plan wants {', '.join(lacking)}, which this worker cannot do"
    if poll.memory_bytes is not None and (needed := least_bytes(section.work, model_bytes)) > poll.memory_bytes:
        return (
            f"weights, gradients and optimizer are {needed / 1e9:.3g} GB of each process; this worker has "
            f"{poll.memory_bytes / 1e9:.3g} GB for each"
        )
    return None


def least_bytes(work: DatacenterTask, model_bytes: int) -> int:
    """What one process holds, between steps and without activations: its part of weights, gradients and optimizer."""
    moments = 2 if work.optimizer == "lamb" else 1 if work.optimizer == "lars" or work.momentum else 0
    stages, shares = (1, work.nproc) if work.mesh is None else (work.mesh.tensor * work.mesh.pipeline, work.mesh.data)
    divided = {"none": 0, "optimizer": moments, "gradients": moments + 1, "full": moments + 2}[work.shard]
    return math.ceil(model_bytes / stages * (moments + 2 - divided + divided / shares))


def fleet_is_back(state: RunState, at: float, waiting: int, unspendable: int = 0) -> bool:
    """Whether so many eligible waiting devices end a datacenter round that no worker has.

    A run that fell back returns to its devices as soon as a whole cohort waits; where no worker takes the round, the
    fewest are enough with which a round begins. A round that is the datacenter's by plan first
    waits ``wait_s`` for a worker. ``unspendable``: devices that wait and can contribute to the model no more. Where the
    run lacks only these, a draw has to show once that it is exhausted: then its owner can advance it.
    """
    section, current = state.plan.datacenter, state.round
    if section is None or current is None or current.phase != "leasing" or current.deadline is None:
        return False
    if not current.planned and waiting >= section.devices_back(state.plan.cohort):
        return True
    fewest = state.plan.fewest_devices
    shown = waiting >= fewest or (not state.exhausted and unspendable > 0 and waiting + unspendable >= fewest)
    return at >= current.deadline and shown


def leased(state: RunState, event: ev.Leased) -> Step:
    section, current = state.plan.datacenter, state.round
    open_ = current is not None and current.phase in ("leasing", "training")
    if section is None or current is None or not open_ or event.round != current.number:
        return refuse(state, "stale", f"round {event.round} is not open for workers")
    lease = current.lease
    if current.phase == "training" and lease is not None:
        if lease.worker != event.worker:
            return refuse(state, "conflict", f"round {event.round} is leased to worker {lease.worker}")
        if lease.instance == event.instance:
            return state, [_granted(state, lease)]
        if not is_restart(lease, event.installation):
            return refuse(state, "conflict", f"another process of worker {lease.worker} has round {event.round}")
    if event.attempt != current.attempt + 1 or event.fence != state.fence + 1:
        return refuse(state, "stale", f"the next lease is attempt {current.attempt + 1}, fence {state.fence + 1}")
    give_up_at = event.at + section.max_s if current.give_up_at is None else current.give_up_at
    lease = GrantedLease(
        worker=event.worker,
        instance=event.instance,
        fence=event.fence,
        granted_at=event.at,
        renewed_at=event.at,
        installation=event.installation,
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


def fleet_returned(state: RunState, event: ev.FleetReturned) -> Step:
    if event.round != state.round_number or not fleet_is_back(state, event.at, event.waiting, event.unspendable):
        return refuse(state, "stale", f"round {event.round} does not wait for devices")
    state = state.with_round(replace(state.current, waiting=event.waiting))
    reason = f"{event.waiting} eligible devices wait, and no worker has the round"
    if event.unspendable:
        reason = f"{event.unspendable} devices wait that contribute to this model no more, and no worker has the round"
    return give_up(state, event.at, reason, failed=False)


def time_passes(state: RunState, at: float) -> Step:
    """A round of which a worker had the lease, and that takes too long, is given up. For its deadline in this phase see
    ``fleet_is_back``."""
    reason = too_long(state, at)
    return give_up(state, at, reason) if reason is not None else (state, [])


def pending(state: RunState) -> list[fx.Action]:
    return [fx.Offer(round=state.round_number)]


def is_restart(lease: GrantedLease, installation: str) -> bool:
    """Whether another process of the lease's worker, of this installation, is that worker started again. A
    process that does not name its installation may be any that has the certificate."""
    return installation != "" and installation == lease.installation


def lease_again(state: RunState, at: float) -> Step:
    """Back from *training*: the round waits for a worker once more."""
    current = replace(state.current, phase="leasing")
    if state.status != "running":
        return abandon(state.with_round(current), at, "the run was paused while no worker had the round")
    current = replace(current, deadline=at + kind_of(current).lasts_s(state.plan, current))
    return state.with_round(current), [fx.Offer(round=current.number)]


def give_up(state: RunState, at: float, reason: str, *, failed: bool = True) -> Step:
    """The round is abandoned, and the next one is the fleet's. ``failed``: as for ``abandon``."""
    fallback = replace(state.fallback, away_since=None, abandoned_in_a_row=0, fleet_first=True)
    return abandon(replace(state, fallback=fallback), at, reason, failed=failed)


def too_long(state: RunState, at: float) -> str | None:
    """Why the round is to be given up now, for any worker; None: there is time left."""
    section, current = state.plan.datacenter, state.current
    if section is None or current.give_up_at is None or at < current.give_up_at:
        return None
    return f"no result within {section.max_s:g} s of the first lease ({current.attempt} in all)"


def _granted(state: RunState, lease: GrantedLease) -> fx.Granted:
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
