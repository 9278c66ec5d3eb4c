"""Creates a run: checks the plan and the initial checkpoint, and chooses the run's id and its selection seed.

Who does not see everything begins from a checkpoint of a run outside only with ``init_proof``, a SHA-256 over a fixed
text and the file, which nobody computes from the digest. Refusing all such checkpoints would stop a second team that
takes the same learner and seed; storing who uploaded what needs a table and its retention. The refusal is that for a
checkpoint that was never uploaded.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Container
from functools import lru_cache
from typing import BinaryIO, cast

import numpy as np

from client_sdk import codecs
from client_sdk.protocol.insight import CheckPlan
from client_sdk.protocol.operators import CreateRun, possession
from client_sdk.protocol.problems import FieldProblem, ProblemError, problem
from client_sdk.tensors import (
    FLOATING,
    HEADER_LIMIT,
    REPORT_ROOM,
    Layout,
    Manifest,
    ManifestMismatch,
    Roles,
    TensorError,
    TensorHeader,
    header_bytes,
    numpy_dtype,
    read_header,
    shown,
    widen,
)
from client_sdk.tensors.manifest import StatisticRole, by_name, digest_of, stated, with_shared
from client_sdk.tensors.safetensors_file import header_of
from coordinator.blobs import Blobs, Gone
from coordinator.engine import events as ev
from coordinator.engine.plan import Plan, algorithm, require_bits, require_combinable
from coordinator.engine.plan_file import Mistake, PlanError
from coordinator.engine.secure.plan import cannot_learn
from coordinator.folding.named_tensors import state_header
from coordinator.runtime.core import Core
from coordinator.runtime.marks import tensors_of
from coordinator.runtime.privacy_ledgers import reason_against
from coordinator.runtime.run_log import RunLog
from coordinator.store.port import CheckpointRow, Conflict, RunRow

_MOST_OF_A_NAME = 10_000
Sees = Callable[[str], bool] | None
"""Of which runs a caller may have the checkpoints; None: of all."""
_CHUNK = 1 << 18


def check_checkpoint(file: BinaryIO, limit: int = HEADER_LIMIT) -> TensorHeader:
    """The header of a canonical checkpoint: safetensors, no metadata, no NaN or infinity. ProblemError for another
    file, or one whose header has more than ``limit`` bytes."""
    try:
        header = read_header(file, limit)
        if header.metadata:
            raise problem(
                "invalid-request",
                "a checkpoint is addressed by its bytes without __metadata__: remove it, "
                "as `quorate run create --init` does",
            )
        for name, spec in header.manifest.items():
            if spec.dtype not in FLOATING:
                continue
            file.seek(header.offsets[name][0])
            left = spec.nbytes
            while left:
                data = file.read(min(left, _CHUNK))
                left -= len(data)
                if not np.isfinite(widen(np.frombuffer(data, numpy_dtype(spec.dtype)))).all():
                    raise problem(
                        "invalid-request",
                        f"the checkpoint holds NaN or infinity in {name}; a buffer that holds them on purpose, as a "
                        "mask does, stays out of checkpoints by register_buffer(..., persistent=False)",
                    )
        return header
    except TensorError as error:
        raise problem("invalid-request", f"this is not a checkpoint: {error}") from None


def checked_plan(core: Core, body: dict[str, object], usual: float | None = None) -> Plan:
    """The plan of a run that shall begin. ``usual``: what its devices weigh on average, where that is known.
    ProblemError *invalid-plan*."""
    try:
        plan = Plan.parse(body)
        algorithm(plan, core.extensions(plan), plan.cohort.goal)
        require_bits(plan, usual)
    except PlanError as error:
        raise _refused(error) from None
    if against := reason_against(core.store, plan):
        raise _refused_field("privacy", "ledger", against)
    return plan


def _refused(error: PlanError) -> ProblemError:
    fields = [FieldProblem(field=tuple(map(str, one.where)), detail=one.what[:500]) for one in error.mistakes]
    return problem("invalid-plan", str(error), fields=fields)


def _refused_field(section: str, field: str, what: str) -> ProblemError:
    return _refused(PlanError(Mistake(what, (section, field))))


def checked_initial(core: Core, plan: Plan, request: CreateRun | CheckPlan, sees: Sees) -> tuple[TensorHeader, Roles]:
    """The header of the initial checkpoint of a run of this plan, with the shared tensors of its strategy, and the
    statistics that it averages. ProblemError
    where there is none, where the plan or the roles do not fit it, or where it is one of runs that the caller does not
    see, and no proof says that the caller has it: whoever starts a run from a checkpoint can download it."""
    init, proof = request.init or "", request.init_proof
    unknown = f"the initial checkpoint {init} has not been uploaded"
    if sees is not None:
        unknown += ", or runs outside of your scope have it: send its file, as 'quorate run create --init FILE' does"
    try:
        if sees is not None and not _is_theirs(core, init, proof, sees):
            raise problem("unknown-checkpoint", unknown)
        with core.blobs.open(init) as file:
            header = read_header(file)
    except Gone:
        raise problem("unknown-checkpoint", unknown) from None
    except TensorError as error:
        raise problem("invalid-request", f"the blob {init} is not a checkpoint: {error}") from None
    if header.metadata:  # a device's update: private, and a first checkpoint is served to every device
        raise problem("invalid-request", f"the blob {init} is not a checkpoint: it carries metadata")
    try:
        model = header.manifest
        roles = _unsaid(core, plan, init, model, sees) if request.roles is None else stated(model, request.roles)
    except ManifestMismatch as error:
        raise problem("invalid-request", f"roles: {error}") from None
    try:
        model, roles = with_shared(model, plan.task.averaged, roles, algorithm(plan, core.extensions(plan)).shared)
        header = header_of(model)
    except ManifestMismatch as error:
        raise _refused_field("task", "averaged", str(error)) from None
    except TensorError as error:
        raise problem("invalid-request", f"the model has too many tensors: in a checkpoint {error}") from None
    try:
        codec = codecs.beside(plan.task.codec, roles)
    except codecs.UnknownCodec as error:
        raise _refused_field("task", "codec", str(error)) from None
    try:
        layout = Layout.of(model, plan.task.averaged, roles)
    except ManifestMismatch as error:
        raise _refused_field("task", "averaged", str(error)) from None
    for pattern in plan.aggregation.unmatched_ranges(layout.statistics):
        raise _refused_field(
            "aggregation", "statistics_range", f"no statistic that is averaged matches {shown(pattern)}"
        )
    if plan.privacy is not None and layout.statistics:
        name = next(iter(layout.statistics))
        raise _refused_field(
            "task",
            "averaged",
            f"{shown(name)} is a statistic, which neither clip nor noise of [privacy] covers: leave it out of "
            "task.averaged, or use a model that keeps none, as with GroupNorm in place of BatchNorm",
        )
    if plan.privacy is not None and (large := plan.privacy.against_model(plan, layout.parameters.elements)):
        raise _refused_field("privacy", "mechanism", large)
    if plan.secure is not None and not layout.parameters.elements:
        raise _refused_field(
            "task", "averaged", "these tensors hold no values of parameters, and a secure round sums at least one"
        )
    if plan.secure is not None:
        values = codecs.linear(plan.task.codec).count(layout.parameters.elements)
        if reason := cannot_learn(plan.secure, plan.aggregation, values, plan.cohort.goal):
            raise _refused(PlanError(Mistake(reason, ("secure",))))
        if plan.privacy is not None and (reason := plan.privacy.against_size(plan, values)):
            raise _refused(PlanError(Mistake(reason, ("privacy",))))
    try:
        wire = codec.wire(layout.whole)
    except TensorError as error:
        raise _refused_field("task", "codec", str(error)) from None
    _require_room(core, plan, header, layout, wire)
    return header, layout.roles


def _unsaid(core: Core, plan: Plan, init: str, model: Manifest, sees: Sees) -> Roles:
    """The statistics of a checkpoint of which nobody says roles: those of the runs that have it and average the same
    tensors, where these agree; else those that their names tell."""
    logs = map(core.log, filter(sees, core.store.runs_with_checkpoint(init)))
    same = [log.row.roles for log in logs if log.state.plan.task.averaged == plan.task.averaged]
    return cast("Roles", same[0]) if same and same.count(same[0]) == len(same) else by_name(model)


def _require_room(core: Core, plan: Plan, header: TensorHeader, layout: Layout, wire: Manifest) -> None:
    """ProblemError where the rule would take too much memory for this model, or the header of an update, with its
    report, or of the server optimizer's state, could not be written."""
    rule = algorithm(plan, core.extensions(plan))
    try:
        require_combinable(plan, rule, layout.elements)
    except PlanError as error:
        raise _refused(error) from None
    sizes = [(name, spec.elements) for name, spec in layout.parameters.items()]
    try:
        kept = [len(state_header(sizes, len(first), "")) for first in rule.keeps.values()]
        longest = max(header.data_start, len(header_bytes(wire)), *kept)
    except TensorError as error:
        raise problem("invalid-request", f"the model has too many tensors: in a file of a run {error}") from None
    if longest > HEADER_LIMIT - REPORT_ROOM:
        raise problem(
            "invalid-request",
            f"the checkpoint's header has {longest} bytes: names and shapes of a model may take "
            f"{HEADER_LIMIT - REPORT_ROOM}, since an update's header of {HEADER_LIMIT} holds its report too",
        )


def _is_theirs(core: Core, init: str, proof: str | None, sees: Callable[[str], bool]) -> bool:
    runs = core.store.runs_with_checkpoint(init)
    if not runs or any(map(sees, runs)):
        return True
    return proof is not None and hmac.compare_digest(proof, _proof_of(core.blobs, init))


@lru_cache(maxsize=1024)
def _proof_of(blobs: Blobs, digest: str) -> str:
    """Wrong proofs, sent again and again, read the blob once."""
    with blobs.open(digest) as opened:
        return possession(iter(lambda: opened.read(_CHUNK), b""))


def free_id(
    core: Core, name: str, taken: Container[str], permitted: Callable[[str], bool], refused: Container[str] = ()
) -> str:
    """The id that a run of a plan of this name gets now. ``taken``: ids that are in use beside those of the store;
    ``refused``: those that the store has refused. ProblemError where the name or the id is not ``permitted``, or where
    there are too many."""
    if not permitted(name):  # whether it is taken or not
        raise problem("not-permitted", f"the run would be named {name}, which is outside of your scope")
    for number in range(1, _MOST_OF_A_NAME):
        run = name if number == 1 else f"{name}-{number}"
        if run in taken or run in refused or core.has_log(run) or core.store.run(run) is not None:
            continue
        if not permitted(run):
            raise problem("not-permitted", f"the run would be named {run}, which is outside of your scope")
        return run
    raise problem("conflict", f"there are {_MOST_OF_A_NAME} runs named {name} already: choose another name")


def create_run(
    request: CreateRun,
    core: Core,
    taken: Container[str],
    permitted: Callable[[str], bool],
    sees: Sees = None,
    usual: float | None = None,
) -> RunRow:
    """Writes the run and version 0 of its line in one transaction. ``taken``: ids that are in use beside those of the
    store. ``usual``: see ``checked_plan``. ProblemError where the plan or the checkpoint is refused, or the id is not
    ``permitted``."""
    plan = checked_plan(core, request.plan, usual)
    header, roles = checked_initial(core, plan, request, sees)
    init = _completed(core.blobs, request.init, header.manifest)
    size = core.blobs.size(init)
    now = core.clock.now()
    seed = int.from_bytes(core.entropy(8), "big") >> 1
    refused: set[str] = set()
    while True:
        run = free_id(core, plan.name, taken, permitted, refused)
        row = RunRow(
            run=run,
            name=plan.name,
            plan=plan.written_out,
            plan_digest=plan.digest,
            selection_seed=seed,
            init=init,
            origin=request.origin,
            created_at=now,
            roles=dict(roles),
        )
        try:
            with core.store.transaction() as tx:
                tx.insert_run(row)
                tx.insert_checkpoint(first_version(row, size))
        except Conflict:  # the name of a Flower run, or of a run that another replica has created just now
            refused.add(run)
            continue
        return row


def _completed(blobs: Blobs, init: str, wanted: Manifest) -> str:
    """The digest of the checkpoint with exactly the tensors of ``wanted``, which is written where ``init`` has others:
    shared tensors that it lacks are zeros, and those of another strategy are left out."""
    with blobs.open(init) as file:
        header = read_header(file)
        if header.manifest == wanted:
            return init
        with blobs.spool() as spool:
            spool.write(header_bytes(wanted))
            for name, spec in wanted.items():
                is_there = header.manifest.get(name) == spec
                file.seek(header.offsets[name][0] if is_there else 0)
                left = spec.nbytes
                while left:
                    data = file.read(min(left, _CHUNK)) if is_there else bytes(min(left, _CHUNK))
                    spool.write(data)
                    left -= len(data)
            return spool.commit()


def first_version(row: RunRow, size: int) -> CheckpointRow:
    """Version 0 of the line of this run. ``size``: bytes of its blob."""
    return CheckpointRow(
        run=row.run,
        version=0,
        digest=row.init,
        parent_version=None,
        round=None,
        origin=row.origin,
        bytes=size,
        created_at=row.created_at,
    )


def begin_run(core: Core, log: RunLog) -> None:
    """Logs the first event of a run whose rows are there; nothing where it has begun. Gone, where its first
    checkpoint is damaged or missing."""
    tensors = tensors_of(core.blobs, log.state.plan, log.row.init)
    roles = cast("dict[str, StatisticRole]", log.row.roles)
    with core.blobs.open(log.row.init) as file:
        agreed = digest_of(read_header(file).manifest, roles)
    log.submit(
        lambda tx, state, at: ev.Created(
            at=at, weight_unit=state.plan.weight_unit, tensors=tensors, roles=roles, roles_digest=agreed
        )
    )
