"""The requests of operators: create, list, show, pause, resume, stop and advance runs; read their results; upload a
first checkpoint.
"""

from __future__ import annotations

from functools import partial

from client_sdk.protocol.devices import Noted
from client_sdk.protocol.names import Digest, Route, RunId
from client_sdk.protocol.operators import (
    AdvanceRun,
    CheckpointView,
    CreateRun,
    DeviceView,
    MetricReport,
    MetricView,
    RoundView,
    RunView,
)
from coordinator.blobs import Spool
from coordinator.requests.callers import Operator, Permission
from coordinator.requests.entry import Action, AfterDevice, AfterRound, Body, Direct, Entry, Limit, RoundNumber
from coordinator.runtime.coordinator import Coordinator


def checkpoint_limit(to: Coordinator, operator: Operator, *, digest: Digest) -> int:
    return to.core.settings.max_checkpoint_bytes


def put(to: Coordinator, operator: Operator, body: Spool, *, digest: Digest) -> Noted:
    """Uploads a checkpoint, usually the first of a run. Its bytes must have the digest in the path."""
    to.operators.put_checkpoint(body, digest)
    return Noted()


def create(to: Coordinator, operator: Operator, message: CreateRun) -> RunView:
    """Starts a run from a plan and an uploaded checkpoint (`PUT /v1/checkpoints/{digest}`)."""
    return to.operators.create_run(message)


def runs(to: Coordinator, operator: Operator) -> list[RunView]:
    """All runs, oldest first."""
    return to.operators.runs()


def show(to: Coordinator, operator: Operator, *, run: RunId) -> RunView:
    """One run: its status with the reason, the round under way and the progress of its devices."""
    return to.operators.run(run)


def act(to: Coordinator, operator: Operator, *, run: RunId, action: Action) -> RunView:
    """Pauses a run (the round under way is still finished), resumes it, or stops it permanently."""
    acts = {"pause": to.operators.pause, "resume": to.operators.resume, "stop": to.operators.stop}
    return acts[action](run)


def advance(to: Coordinator, operator: Operator, message: AdvanceRun, *, run: RunId) -> RunView:
    """Lets an exhausted run commit its model moved by one unit, without contributions. The audit names the operator."""
    return to.operators.advance(run, message.by)


def rounds(
    to: Coordinator, operator: Operator, *, run: RunId, after: AfterRound = 0, limit: Limit = 1000
) -> list[RoundView]:
    """The rounds of a run, in order."""
    return to.operators.rounds(run, after, limit)


def one_round(to: Coordinator, operator: Operator, *, run: RunId, round: RoundNumber) -> RoundView:
    """One round: its end with the reason, its funnel, its checkpoint."""
    return to.operators.round(run, round)


def checkpoints(to: Coordinator, operator: Operator, *, run: RunId) -> list[CheckpointView]:
    """The run's line of checkpoints, each with its parent."""
    return to.operators.checkpoints(run)


def metrics(to: Coordinator, operator: Operator, *, run: RunId) -> list[MetricView]:
    """All metrics of a run: per checkpoint, source and name, with the number of examples behind each."""
    return to.operators.metrics(run)


def report_metrics(to: Coordinator, operator: Operator, message: MetricReport, *, run: RunId) -> list[MetricView]:
    """An evaluator's scores for one checkpoint. A second report of the same source replaces the first."""
    return to.operators.report_metrics(run, message)


def devices(to: Coordinator, operator: Operator, *, after: AfterDevice = "", limit: Limit = 1000) -> list[DeviceView]:
    """Enrolled devices in order of id: when each was last seen and what it does now."""
    return to.operators.devices(limit, after)


_entry = partial(Entry, permission=Permission.OPERATOR)
_run = partial(_entry, group="runs")

PUT_CHECKPOINT = _entry(
    method="PUT",
    route=Route.CHECKPOINT,
    answer=Noted,
    shape=Body(checkpoint_limit, put),
    summary="Upload a checkpoint",
    group="checkpoints",
    created=True,
)
CREATE = _run(
    method="POST",
    route=Route.RUNS,
    message=CreateRun,
    answer=RunView,
    shape=Direct(create),
    summary="Create a run",
    created=True,
    location=Route.RUN,
)
RUNS = _run(method="GET", route=Route.RUNS, answer=list[RunView], shape=Direct(runs), summary="List runs")
RUN = _run(method="GET", route=Route.RUN, answer=RunView, shape=Direct(show), summary="Show a run")
ROUNDS = _run(
    method="GET", route=Route.ROUNDS, answer=list[RoundView], shape=Direct(rounds), summary="List a run's rounds"
)
ROUND = _run(method="GET", route=Route.ROUND, answer=RoundView, shape=Direct(one_round), summary="Show a round")
CHECKPOINTS = _run(
    method="GET",
    route=Route.RUN_CHECKPOINTS,
    answer=list[CheckpointView],
    shape=Direct(checkpoints),
    summary="List a run's checkpoints",
)
METRICS = _run(
    method="GET", route=Route.METRICS, answer=list[MetricView], shape=Direct(metrics), summary="Read a run's metrics"
)
REPORT_METRICS = _run(
    method="POST",
    route=Route.METRICS,
    message=MetricReport,
    answer=list[MetricView],
    shape=Direct(report_metrics),
    summary="Report metrics",
)
ADVANCE = _run(
    method="POST",
    route=Route.ADVANCE,
    message=AdvanceRun,
    answer=RunView,
    shape=Direct(advance),
    summary="Advance an exhausted run",
)
ACT = _run(
    method="POST", route=Route.RUN_ACTION, answer=RunView, shape=Direct(act), summary="Pause, resume or stop a run"
)
DEVICES = _entry(
    method="GET",
    route=Route.DEVICES,
    answer=list[DeviceView],
    shape=Direct(devices),
    summary="List devices",
    group="fleet",
)
ENTRIES = (
    PUT_CHECKPOINT, CREATE, RUNS, RUN, ROUNDS, ROUND, CHECKPOINTS, METRICS, REPORT_METRICS, ADVANCE, ACT, DEVICES,
)  # fmt: skip
"""The order matters: the template of ``ACT`` also matches the route of ``ADVANCE``."""
