"""Checks what devices and workers are offered: assignments, leases, outcomes.

Each check compares an answer with the run's log (``TrackedRun``) and with the durable rows at the moment of the answer,
so the caller leaves out answers that were suspended on the way.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import cache
from typing import Any

from client_sdk.protocol.devices import Assignment, CheckIn, CheckpointRef, Outcome, Task, TaskStrategy, Wait
from client_sdk.protocol.workers import DatacenterTask, Lease, LeaseRenewed, WorkerPoll
from client_sdk.tensors import SHORT_HEADER
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken
from tests.explorer.follow import TrackedRun
from tests.explorer.plans import KEEPS
from tests.explorer.world import World

HEARTBEATS = 4
"""Heartbeats in the length of a lease."""
SOON = (0.0, 1.0)
"""Seconds until the next request of a peer that some run may use."""


def assigned(world: World, run: TrackedRun, device: str, answer: Assignment, now: float) -> None:
    """An assignment is of the round that collects, to a device of its cohort that it waits for, from the round's
    parent, until the round's deadline. ``now``: by the clock of the replica."""
    if run.buffered:
        _place_given(world, run, device, answer, now)
        return
    _require("assignment's round", (answer.round, "collecting"), (run.round, run.phase))
    if answer.device != device or device not in run.cohort or device in run.reported or device in run.left:
        raise Broken("offer", f"{device} was assigned round {run.round} of {run.run}, which does not wait for it")
    _offered(run, answer.checkpoint, answer.plan_digest, answer.task, mu=run.mu.mu)
    _require("rule for partial work", answer.partial, run.plan["aggregation"]["partial"])
    _require("limit of an update", answer.max_update_bytes, world.register.longest(run.plan["task"]["codec"]))
    if answer.secure is not None:
        signed = answer.secure.signed
        _require("signed version", signed and (signed.version, signed.signature), run.vouched)
    collect_s = float(run.plan["cohort"]["collect_s"])
    possible = [max(0.0, min(deadline - now, collect_s)) for deadline in run.deadlines]
    if not any(abs(answer.report_within_s - left_s) < 1e-6 for left_s in possible):
        raise Broken("offer", f"{device} was given {answer.report_within_s} s; the deadline is in {possible} s")


def _place_given(world: World, run: TrackedRun, device: str, answer: Assignment, now: float) -> None:
    """Of a buffered run: the device has this place, and gets the version that was the newest when it was drawn."""
    place = run.places.get(device)
    if place is None or (answer.device, answer.round, answer.attempt) != (device, place.since, 0):
        raise Broken("offer", f"{device} was assigned round {answer.round} of {run.run}, and has the place {place}")
    _offered(run, answer.checkpoint, answer.plan_digest, answer.task, made=run.bases[place.version])
    _require("rule for partial work", answer.partial, run.plan["aggregation"]["partial"])
    _require("limit of an update", answer.max_update_bytes, world.register.longest(run.plan["task"]["codec"]))
    possible = [max(0.0, min(until - now, float(run.plan["cohort"]["collect_s"]))) for until in place.until]
    if not any(abs(answer.report_within_s - left_s) < 1e-6 for left_s in possible):
        raise Broken("offer", f"{device} was given {answer.report_within_s} s; its place ends in {possible} s")


def leased(run: TrackedRun, worker: str, poll: WorkerPoll, answer: Lease, now: float) -> None:
    """A lease is from the round's parent, for the plan's time, until the round is given up, and for a worker with the
    plan's data."""
    section = run.plan["datacenter"]
    if not serves(run.plan, poll):
        raise Broken("offer", f"{worker} was given round {run.round} of {run.run}, and lacks what the plan asks for")
    _require("lease's worker and round", (answer.worker, answer.round), (worker, run.round))
    _offered(run, answer.checkpoint, answer.plan_digest, answer.task)
    _require("lease's length", answer.lease_s, section["lease_s"])
    _require("part of a lease between heartbeats", answer.heartbeat_s, section["lease_s"] / HEARTBEATS)
    wanted = _datacenter_task(**{name: section[name] for name in DatacenterTask.model_fields if name in section})
    _require("lease's work", answer.datacenter, wanted)
    _require("limit of a result", answer.max_result_bytes, run.size + SHORT_HEADER)
    left_s = max(0.0, min((run.give_up_at or 0.0) - now, section["max_s"]))
    if abs(answer.within_s - left_s) > 1e-6:
        raise Broken("offer", f"{worker} was given {answer.within_s} s; round {run.round} is given up in {left_s} s")


def renewed(run: TrackedRun, answer: LeaseRenewed, now: float) -> None:
    """A heartbeat is told when its lease ends."""
    left_s = max(0.0, run.lease_ends_at - now)
    if abs(answer.ends_in_s - left_s) > 1e-6:
        raise Broken("offer", f"the lease of round {run.round} of {run.run} ends in {left_s} s, not {answer.ends_in_s}")
    lease_s = float(run.plan["datacenter"]["lease_s"])
    if left_s < min((1 - 1 / HEARTBEATS) * lease_s, (run.give_up_at or 0.0) - now) - 1e-6:
        raise Broken(
            "offer", f"a heartbeat left {left_s} s of a lease of {lease_s} s in round {run.round} of {run.run}"
        )


def waits(world: World, runs: Iterable[TrackedRun], message: CheckIn | WorkerPoll, answer: Wait) -> None:
    """Who has no work asks again at once where a run may use it, and otherwise as slowly as the settings say."""
    window, settings = (answer.min_s, answer.max_s), world.settings
    if window not in (SOON, (settings.pace_min_s, settings.pace_max_s)) or not answer.reason:
        raise Broken("offer", f"a peer shall wait for {window} s: {answer.reason!r}")
    running = [run for run in runs if run.status == "running"]
    if isinstance(message, CheckIn):
        rests = dict(message.policy.rests)
        useful = any(fits(run, message.learners, rests, message.examples) for run in running)
    else:
        asked_for = [run.plan["datacenter"]["data"] for run in running if "datacenter" in run.plan]
        useful = not asked_for or any(data in message.data for data in asked_for)
    if window == SOON and not useful:
        raise Broken("offer", f"no run may use this peer, and it shall ask again at once: {answer.reason}")


def fits(run: TrackedRun, learners: Container[str], rests: Mapping[str, int], examples: int) -> bool:
    """Whether the run may use a device that has these learners, takes no part in runs until their model has the version
    that ``rests`` says, or never (-1), and says that it has so many examples: in the secure rounds of these schedules,
    whose plans do not go by sizes, none."""
    plan, until = run.plan, rests.get(run.run, 0)
    least = plan["cohort"]["min_examples"] if plan.get("secure") is None else 0
    return plan["task"]["learner"] in learners and examples >= least and 0 <= until <= run.version


def serves(plan: dict[str, Any], poll: WorkerPoll) -> bool:
    """Whether a worker that asks so has what the plan's rounds in a datacenter need."""
    return plan["datacenter"]["data"] in poll.data and plan["task"]["learner"] in poll.learners


def outcome(durable: Durable, run: TrackedRun, device: str, answer: Outcome) -> None:
    """An outcome is what the log says of this device in this round."""
    number, digest, version, reason = answer.round, None, None, answer.reason
    _require("outcome's device", answer.device, device)
    known, ending = run.known(number, device), run.ended.get(number)
    if run.buffered:
        _buffered_outcome(run, device, answer)
        return
    if ending is not None and known is not None:
        result, digest = ("counted" if ending.committed else "refused"), known[0]
        version = ending.version if ending.committed else None
    elif ending is None and device in run.cohort and run.secure is not None:
        account = run.secure
        there = account.advertised if run.phase in ("sharing", "masking") else account.masked
        awaited = run.phase == "collecting" or device in there.keys() - account.excluded
        result = "withdrawn" if device in account.withdrawn else "pending" if awaited else "dropped"
        if device in account.excluded or result == answer.result == "withdrawn":
            return
    elif ending is None and device in run.cohort:
        waits = known is not None or run.phase == "collecting"
        gone = "withdrawn" if device in run.withdrawn else "refused" if device in run.invalid else ""
        result, digest = gone or ("pending" if waits else "dropped"), known and known[0]
    else:
        rows = [row for row in durable.store.refusals(run.run, number) if row.device == device]
        refusals = [row for row in rows if row.kind == "abandoned"] or rows  # acknowledged ones first
        cohort = frozenset() if ending is None else ending.cohort
        result = "refused" if refusals else "dropped" if device in cohort else "unknown"
        digest = refusals[-1].digest if refusals else None
        reason = refusals[-1].reason if refusals else reason
    answered = (answer.result, answer.digest, answer.version)
    _require(f"outcome of {device} in round {number}", answered, (result, digest, version))
    if answer.reason != reason or (result in ("refused", "dropped", "unknown") and not reason and ending is not None):
        raise Broken("offer", f"the outcome of {device} in round {number} has the reason {answer.reason!r}")


def _buffered_outcome(run: TrackedRun, device: str, answer: Outcome) -> None:
    """A report counts, is refused with its round, or waits for the commit; without one the device has a place still,
    or its part has ended, for which there is a reason."""
    known, ending = run.known(answer.round, device), run.ended.get(run.went.get((answer.round, device), 0))
    place = run.places.get(device)
    result, version, allowed = "pending", None, {"refused", "withdrawn", "dropped", "unknown"}
    if known is not None and ending is not None:
        result, version = ("counted", ending.version) if ending.committed else ("refused", None)
    if known is not None or (place is not None and place.since == answer.round):
        wanted = (result, None if known is None else known[0], version)
        _require(f"outcome of {device}", (answer.result, answer.digest, answer.version), wanted)
    elif answer.result not in allowed or not answer.reason:
        raise Broken("offer", f"{device} has no place since round {answer.round} of {run.run}, and got {answer}")


def _offered(
    run: TrackedRun,
    checkpoint: CheckpointRef,
    plan_digest: str,
    task: Task,
    mu: float = 0.0,
    made: tuple[int, str, int] | None = None,
) -> None:
    """``made``: (version, digest, size) of what is offered; None: the newest."""
    offered = (checkpoint.version, checkpoint.digest, checkpoint.bytes)
    _require("offered checkpoint", offered, made or (run.version, run.digest, run.size))
    _require("offered plan", plan_digest, run.row.plan_digest)
    named = run.plan.get("strategy", {}).get("name")
    half = TaskStrategy(**KEEPS, version="1", keeps="committed") if named == KEEPS["name"] else None
    changed = {"mu": mu, "strategy": half}
    _require("offered task", task, _task(**_plain(run.plan["task"])).model_copy(update=changed))


def _plain(task: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in task.items()}


@cache
def _task(**fields: Any) -> Task:
    return Task.model_validate(fields)


@cache
def _datacenter_task(**fields: Any) -> DatacenterTask:
    return DatacenterTask.model_validate(fields)


def _require(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Broken("offer", f"the {what} is {found}, the log has {wanted}")
