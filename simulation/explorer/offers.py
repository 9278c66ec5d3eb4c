"""Checks what devices and workers are offered: assignments, leases, outcomes; and who is served at all.

Each check compares an answer with the run's log (``Followed``) and with the durable rows at the moment of the answer,
so the caller leaves out answers that were suspended on the way.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from client_sdk.protocol.devices import Assignment, CheckpointRef, Outcome, Task
from client_sdk.protocol.workers import Lease
from coordinator.requests.callers import Caller
from coordinator.store.port import DeviceRow, WorkerRow
from simulation.explorer.durable import Durable, hash_of
from simulation.explorer.faults import Broken
from simulation.explorer.follow import Followed
from simulation.explorer.world import World

CACHED_S = 12.0
"""Seconds for which a replica may still serve a token that was replaced: five, and what a clock that falls adds."""


def served(world: World, durable: Durable, caller: Caller, token: str) -> None:
    """A caller is who the token says, is not revoked, and has the rights that it has now."""
    match caller:
        case DeviceRow():
            row, replaced_at = durable.store.device(caller.device), world.replaced.get(caller.token_hash)
            if caller.token_hash != hash_of(token) or row is None:
                raise Broken("permission", f"{caller.device} was served with the token of another")
            if row.token_hash != caller.token_hash and world.agenda.now > (replaced_at or 0.0) + CACHED_S:
                raise Broken("permission", f"{caller.device} was served with a token that was replaced")
            if row.examples_cap != caller.examples_cap:
                raise Broken("permission", f"{caller.device} was served with a cap of {caller.examples_cap} examples")
        case WorkerRow():
            worker = durable.store.worker_by_token(hash_of(token))
            if worker is None or worker.worker != caller.worker or worker.revoked_at is not None:
                raise Broken("permission", f"{caller.worker} was served, and it is revoked or has another token")
        case _:
            pass


def token_is_good(world: World, durable: Durable, token: str) -> None:
    """Who was served at once has a token that is good, or was replaced just now."""
    hashed = hash_of(token)
    known = durable.store.device_by_token(hashed) or durable.store.worker_by_token(hashed)
    if token and known is None and world.agenda.now > world.replaced.get(hashed, 0.0) + CACHED_S:
        raise Broken("permission", "a request was served with a token that is not known any more")


def assigned(run: Followed, device: str, answer: Assignment, now: float) -> None:
    """An assignment is of the round that collects, to a device of its cohort that it waits for, from the round's
    parent, until the round's deadline. ``now``: by the clock of the replica."""
    _require("assignment's round", (answer.round, "collecting"), (run.round, run.phase))
    if answer.device != device or device not in run.cohort or device in run.reported or device in run.left:
        raise Broken("offer", f"{device} was assigned round {run.round} of {run.run}, which does not wait for it")
    _offered(run, answer.checkpoint, answer.plan_digest, answer.task)
    _require("rule for partial work", answer.partial, run.plan["aggregation"]["partial"])
    collect_s = float(run.plan["cohort"]["collect_s"])
    possible = [max(0.0, min(deadline - now, collect_s)) for deadline in run.deadlines]
    if not any(abs(answer.report_within_s - left_s) < 1e-6 for left_s in possible):
        raise Broken("offer", f"{device} was given {answer.report_within_s} s; the deadline is in {possible} s")


def leased(run: Followed, worker: str, answer: Lease, now: float) -> None:
    """A lease is from the round's parent, for the plan's time, until the round is given up."""
    section = run.plan["datacenter"]
    _require("lease's worker and round", (answer.worker, answer.round), (worker, run.round))
    _offered(run, answer.checkpoint, answer.plan_digest, answer.task)
    _require("lease's length", answer.lease_s, section["lease_s"])
    left_s = max(0.0, min((run.give_up_at or 0.0) - now, section["max_s"]))
    if abs(answer.within_s - left_s) > 1e-6:
        raise Broken("offer", f"{worker} was given {answer.within_s} s; round {run.round} is given up in {left_s} s")


def outcome(durable: Durable, run: Followed, device: str, answer: Outcome) -> None:
    """An outcome is what the log says of this device in this round."""
    number, digest, version = answer.round, None, None
    _require("outcome's device", answer.device, device)
    known, ending = run.known(number, device), run.ended.get(number)
    if ending is not None and known is not None:
        result, digest = ("counted" if ending.committed else "refused"), known[0]
        version = ending.version if ending.committed else None
    elif ending is None and device in run.cohort:
        waits = known is not None or run.phase == "collecting"
        gone = "withdrawn" if device in run.withdrawn else "refused" if device in run.invalid else ""
        result, digest = gone or ("pending" if waits else "dropped"), known and known[0]
    else:
        refusals = [row for row in durable.store.refusals(run.run, number) if row.device == device]
        cohort = frozenset() if ending is None else ending.cohort
        result = "refused" if refusals else "dropped" if device in cohort else "unknown"
        digest = refusals[-1].digest if refusals else None
    answered = (answer.result, answer.digest, answer.version)
    _require(f"outcome of {device} in round {number}", answered, (result, digest, version))


def _offered(run: Followed, checkpoint: CheckpointRef, plan_digest: str, task: Task) -> None:
    _require("offered checkpoint", (checkpoint.version, checkpoint.digest), (run.version, run.digest))
    _require("offered plan", plan_digest, run.row.plan_digest)
    _require("offered task", task, _task(**_plain(run.plan["task"])))


def _plain(task: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in task.items()}


@cache
def _task(**fields: Any) -> Task:
    return Task.model_validate(fields)


def _require(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Broken("offer", f"the {what} is {found}, the log has {wanted}")
