"""The requests of operators: create, list, show, pause, resume, stop and advance runs; unbar devices; read results;
upload a first checkpoint.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from client_sdk.protocol.names import DeviceId, Digest, Route, RunId
from client_sdk.protocol.operators import (
    AdvanceRun,
    CheckpointStored,
    CheckpointView,
    CreateRun,
    MetricReport,
    MetricView,
    RenameRun,
    RoundView,
    RunView,
    SignRun,
    UnbarDevice,
)
from coordinator.access import Operator, Role
from coordinator.blobs import Spool
from coordinator.requests.entry import (
    About,
    Action,
    AfterRound,
    AfterVersion,
    Audited,
    Body,
    Direct,
    Entry,
    Limit,
    Permission,
    RoundNumber,
)
from coordinator.runtime.coordinator import Coordinator

AfterRun = Annotated[RunId | Literal[""], About("runs that come after this one in the list, for paging")]
NewestFirst = Annotated[bool, About("the newest first; else the oldest")]


def checkpoint_limit(to: Coordinator, operator: Operator, *, digest: Digest) -> int:
    return to.core.settings.max_checkpoint_bytes


def put(to: Coordinator, operator: Operator, body: Spool, *, digest: Digest) -> CheckpointStored:
    """Uploads a checkpoint, usually the first of a run. Its bytes must have the digest in the path. Where the stored
    file was damaged, they replace it, and `repaired` is true."""
    return CheckpointStored(repaired=to.operators.put_checkpoint(body, digest))


def create(to: Coordinator, operator: Operator, message: CreateRun) -> RunView:
    """Starts a run from a plan and an uploaded checkpoint (`PUT /v1/checkpoints/{digest}`).

    The run's name must be in the caller's scope."""

    def permitted(run: str) -> bool:
        return operator.may_with(Role.OPERATOR, run)

    sees = None if operator.sees_everything else operator.sees
    return to.operators.create_run(message, permitted=permitted, sees=sees)


def runs(
    to: Coordinator, operator: Operator, *, after: AfterRun = "", limit: Limit = 1000, newest_first: NewestFirst = False
) -> list[RunView]:
    """The runs in scope, in order of creation."""
    return to.operators.runs(operator.sees, after, limit, newest_first=newest_first)


def show(to: Coordinator, operator: Operator, *, run: RunId) -> RunView:
    """One run: its status with the reason, the round under way and the progress of its devices."""
    return to.operators.run(run)


def act(to: Coordinator, operator: Operator, *, run: RunId, action: Action) -> RunView:
    """Pauses a run (the round under way is still finished), resumes it, or stops it permanently."""
    acts = {"pause": to.operators.pause, "resume": to.operators.resume, "stop": to.operators.stop}
    return acts[action](run)


def rename(to: Coordinator, operator: Operator, message: RenameRun, *, run: RunId) -> RunView:
    """Shows a run by another name. Its id stays, and so does the name in its plan, which its devices agree to."""
    return to.operators.rename(run, message.name)


def advance(to: Coordinator, operator: Operator, message: AdvanceRun, *, run: RunId) -> RunView:
    """Lets an exhausted run commit its model moved by one unit, without contributions. The audit names the operator:
    the id of the credentials, and the name that was given, which is not verified."""
    return to.operators.advance(run, f"{operator.id} ({message.by})")


def unbar(to: Coordinator, operator: Operator, message: UnbarDevice, *, run: RunId, device: DeviceId) -> RunView:
    """Lets a barred device take part in the run's secure rounds again. The audit names the operator as in an
    advance."""
    return to.operators.unbar(run, device, f"{operator.id} ({message.by})")


def sign(to: Coordinator, operator: Operator, message: SignRun, *, run: RunId) -> RunView:
    """Gives devices the signature of the authority, or of another key that their owners trust, under the newest version
    of the run's model, such as one that a datacenter has made. Devices check it."""
    return to.operators.vouch(run, message.version, message.signature)


def rounds(
    to: Coordinator, operator: Operator, *, run: RunId, after: AfterRound = 0, limit: Limit = 1000
) -> list[RoundView]:
    """The rounds of a run, in order."""
    return to.operators.rounds(run, after, limit)


def one_round(to: Coordinator, operator: Operator, *, run: RunId, round: RoundNumber) -> RoundView:
    """One round: its end with the reason, its funnel, its checkpoint."""
    return to.operators.round(run, round)


def checkpoints(
    to: Coordinator, operator: Operator, *, run: RunId, after: AfterVersion = -1, limit: Limit = 1000
) -> list[CheckpointView]:
    """The run's line of checkpoints in order of version, each with its parent."""
    return to.operators.checkpoints(run, after, limit)


def metrics(
    to: Coordinator, operator: Operator, *, run: RunId, after: AfterVersion = -1, limit: Limit = 1000
) -> list[MetricView]:
    """The metrics of a run in order of version: per checkpoint, source and name, with the number of examples behind
    each. Those of one version are not divided, so there may be some more than the limit."""
    return to.operators.metrics(run, after, limit)


def report_metrics(to: Coordinator, operator: Operator, message: MetricReport, *, run: RunId) -> list[MetricView]:
    """An evaluator's scores for one checkpoint. A second report of the same source replaces the first."""
    return to.operators.report_metrics(run, message)


_operator = partial(Entry, permission=Permission.OPERATOR, group="runs")
_viewer = partial(Entry, permission=Permission.VIEWER, group="runs")
_owner = partial(Entry, permission=Permission.OWNER, group="runs")

PUT_CHECKPOINT = Entry(
    "PUT",
    Route.CHECKPOINT,
    Body(checkpoint_limit, put),
    "Upload a checkpoint",
    permission=Permission.OPERATOR,
    scoped=True,
    audited=Audited("checkpoint.put"),
    group="checkpoints",
    created=True,
)
"""It belongs to no run until one is created from it."""
CREATE = _operator(
    "POST",
    Route.RUNS,
    Direct(create),
    "Create a run",
    scoped=True,
    audited=Audited("run.create", asks=("init", "origin"), makes=("run",)),
    created=True,
    location=Route.RUN,
)
RUNS = _viewer("GET", Route.RUNS, Direct(runs), "List runs", scoped=True)
RUN = _viewer("GET", Route.RUN, Direct(show), "Show a run")
ROUNDS = _viewer("GET", Route.ROUNDS, Direct(rounds), "List a run's rounds")
ROUND = _viewer("GET", Route.ROUND, Direct(one_round), "Show a round")
CHECKPOINTS = _viewer("GET", Route.RUN_CHECKPOINTS, Direct(checkpoints), "List a run's checkpoints")
METRICS = _viewer("GET", Route.METRICS, Direct(metrics), "Read a run's metrics")
REPORT_METRICS = _operator(
    "POST",
    Route.METRICS,
    Direct(report_metrics),
    "Report metrics",
    audited=Audited("metrics.report", asks=("version", "source")),
)
RENAME = _operator("PUT", Route.RENAME, Direct(rename), "Rename a run", audited=Audited("run.rename", asks=("name",)))
ADVANCE = _owner(
    "POST", Route.ADVANCE, Direct(advance), "Advance an exhausted run", audited=Audited("run.advance", asks=("by",))
)
UNBAR = _owner(
    "POST",
    Route.UNBAR,
    Direct(unbar),
    "Let a barred device take part again",
    audited=Audited("device.unbar", asks=("by",)),
)
SIGN = _owner(
    "POST",
    Route.SIGN_RUN,
    Direct(sign),
    "Give the signature under a run's newest model",
    audited=Audited("run.sign", asks=("version",)),
)
ACT = _operator("POST", Route.RUN_ACTION, Direct(act), "Pause, resume or stop a run", audited=Audited("run.{action}"))
ENTRIES = (
    PUT_CHECKPOINT, CREATE, RUNS, RUN, ROUNDS, ROUND, CHECKPOINTS, METRICS, REPORT_METRICS, RENAME,
    ADVANCE, UNBAR, SIGN, ACT,
)  # fmt: skip
"""The order matters: the template of ``ACT`` also matches the routes of ``ADVANCE`` and ``SIGN``."""
