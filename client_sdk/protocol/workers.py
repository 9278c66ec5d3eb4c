"""The messages of datacenter rounds: between a worker, an operator and the coordinator. Routes: ``names.Route``.

The requests of a worker, each signed by its certified key, with one datacenter round::

    POST /v1/workers                                    WorkerRegistration -> WorkerRegistered  with each certificate
    POST /v1/leases                                     WorkerPoll  -> Lease | Wait    held open until there is a round
    GET  /v1/checkpoints/{digest}                                   -> safetensors     the checkpoint to train
    POST /v1/runs/{run}/rounds/{round}/lease            Heartbeat   -> LeaseRenewed    the worker is at step 40
    PUT  /v1/runs/{run}/rounds/{round}/attempts/{attempt}/result    -> ResultReceipt   safetensors: the next checkpoint
    POST /v1/runs/{run}/rounds/{round}/lease/end        LeaseEnd    -> Noted           another worker may take it
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from client_sdk.protocol.devices import CertificateHex, CheckpointRef, Task
from client_sdk.protocol.names import Digest, Finite, LearnerName, Message, MetricName, RunId, WorkerId
from client_sdk.protocol.wire import AS_NAMED

RESULT_HEADER = "Quorate-Result"
"""The header of a worker's result with the ResultReport as JSON. The body is a checkpoint and nothing else."""

DataName = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63}:)?[a-z0-9][a-z0-9._-]{0,63}(@[A-Za-z0-9.+!-]{1,64})?$",
        description="a data set, by the name it has in the datacenter, or as package:name@version",
    ),
]


Shard = Literal["none", "optimizer", "gradients", "full"]
Compress = Literal["none", "fp16", "bf16", "powersgd", "topk", "1bit", "2bit"]


def require_strategy(shard: Shard, compress: Compress, precision: str, sync_every: int, sync_within: int = 1) -> None:
    """ValueError for what does not go together."""
    if sync_within > 1 and not sync_every:
        raise ValueError(f"sync_within = {sync_within} is part of sync_every: name the steps between two averages")
    if sync_every and (shard, compress) != ("none", "none"):
        raise ValueError("with sync_every each process has a model of its own: it goes with no shard and no compress")
    if compress != "none" and shard in ("gradients", "full"):
        raise ValueError(f"compress = '{compress}' does not go with shard = '{shard}': take one of them")
    if precision == "float16" and ((compress, shard) != ("none", "none") or sync_every):
        raise ValueError(
            "float16 scales losses by a whole gradient: with shard, compress or sync_every take bfloat16 or float32"
        )


Schedule = Literal["gpipe", "1f1b", "interleaved", "zb", "dualpipev"]


class Mesh(BaseModel):
    """The processes of a datacenter's training as a mesh: what each of its axes divides. As many processes as the
    product of all. They are numbered tensor first, then data, replicas and pipeline."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: int = Field(default=1, ge=1, le=65_536, exclude_if=lambda size: size == 1)
    """Batches, and with ``shard`` what that divides."""
    replicas: int = Field(default=1, ge=1, le=65_536, exclude_if=lambda size: size == 1)
    """Batches, with all that ``shard`` divides over *data* held once in each replica (HSDP): parameters are gathered
    among the processes of one replica, gradients are averaged over all."""
    tensor: int = Field(default=1, ge=1, le=65_536, exclude_if=lambda size: size == 1)
    """Layers, as the learner's ``tensor`` says (Shoeybi et al. 2019, arXiv:1909.08053)."""
    pipeline: int = Field(default=1, ge=1, le=65_536, exclude_if=lambda size: size == 1)
    """The model from its input to its output, between two of the learner's ``blocks``. Each micro-batch passes all
    stages (Huang et al. 2018, arXiv:1811.06965)."""

    @property
    def size(self) -> int:
        """Processes."""
        return self.parts * self.tensor * self.pipeline

    @property
    def parts(self) -> int:
        """Into how many parts a batch is divided."""
        return self.data * self.replicas

    @property
    def text(self) -> str:
        """As the option ``--mesh`` has it."""
        return ",".join(f"{axis}={size}" for axis, size in self if size > 1)


def require_mesh(
    mesh: Mesh,
    schedule: Schedule,
    accumulate: int,
    shard: Shard,
    compress: Compress,
    precision: str,
    sync_every: int,
) -> None:
    """ValueError for what does not go together."""
    if sync_every or compress != "none" or shard == "optimizer" or precision == "float16":
        raise ValueError(
            "mesh goes with no sync_every, no compress, no float16, and with shard = 'none', 'gradients' or 'full'"
        )
    if mesh.pipeline > 1 and shard != "none" and schedule in ("zb", "dualpipev"):
        raise ValueError(
            f"schedule = '{schedule}' divides backward passes, and shard = '{shard}' needs them whole: "
            "take 'interleaved'"
        )
    fewest = {"1f1b": mesh.pipeline, "dualpipev": 2 * mesh.pipeline}.get(schedule, 1)
    if mesh.pipeline > 1 and accumulate < fewest:
        raise ValueError(
            f"schedule = '{schedule}' over pipeline = {mesh.pipeline} needs at least {fewest} micro-batches, and "
            f"accumulate is {accumulate}"
        )
    rounds = max(1, accumulate // mesh.pipeline)
    if mesh.pipeline > 1 and schedule == "interleaved" and accumulate % rounds:
        raise ValueError(
            f"schedule = 'interleaved' needs micro-batches in equal rounds: accumulate = {accumulate} is no multiple "
            f"of pipeline = {mesh.pipeline}"
        )


class Server(BaseModel):
    """Parameter servers of a datacenter's training: the first ``count`` processes hold the parameters too, each some of
    them, and all processes send them gradients."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(default=1, ge=1, le=1024)
    """Servers."""
    staleness: int = Field(default=0, ge=0, le=1_000_000, exclude_if=lambda steps: not steps)
    """Most steps that a process, or a group, may be ahead of the slowest: each gradient moves the weights when it comes
    (Downpour: Dean et al. 2012; Ho et al. 2013). 0: synchronous, as one process."""
    backup: int = Field(default=0, ge=0, le=65_535, exclude_if=lambda spare: not spare)
    """How many gradients of a synchronous step are not waited for (Chen et al. 2016, arXiv:1604.00981)."""
    groups: int = Field(default=0, ge=0, le=65_536, exclude_if=lambda groups: not groups)
    """Of ``staleness``: into how many groups the processes are divided, in the order of their numbers. A group is
    synchronous inside. 0: each process is one."""
    sparse: Literal["sync", "async"] = Field(default="sync", exclude_if=lambda kind: kind == "sync")
    """*async*: rows of embeddings with sparse gradients move when they come, by plain SGD, and they alone cross the
    link; the rest is synchronous."""

    @model_validator(mode="after")
    def _fits(self) -> Server:
        if self.staleness and (self.backup or self.sparse != "sync"):
            raise ValueError("server.backup and server.sparse are for synchronous servers: leave out server.staleness")
        if self.backup and self.sparse != "sync":
            raise ValueError("server.backup discards gradients, and rows are moved before: leave out server.sparse")
        if self.groups > 1 and not self.staleness:
            raise ValueError("server.groups are asynchronous: say how many steps one may be ahead, in server.staleness")
        return self

    @property
    def exact(self) -> bool:
        """Whether the result is that of one process."""
        return not self.staleness and not self.backup and self.sparse == "sync"

    @property
    def spares(self) -> bool:
        """Whether the others go on where a process dies that is no server."""
        return bool(self.staleness or self.backup)

    def groups_of(self, processes: int) -> int:
        """How many groups so many processes are."""
        return (self.groups or processes) if self.staleness else 1


def require_apart(
    server: Server | None,
    hogwild: bool,
    shard: Shard,
    compress: Compress,
    precision: str,
    sync_every: int,
    mesh: Mesh | None,
) -> None:
    """ValueError for what does not go with processes that are not in step."""
    name = "server" if server is not None else "hogwild"
    if server is not None and hogwild:
        raise ValueError("server and hogwild are two ways to train without waiting: take one of them")
    others = (shard, compress) != ("none", "none") or sync_every or precision == "float16" or mesh is not None
    if (server is not None or hogwild) and others:
        raise ValueError(f"{name} goes with no shard, no compress, no sync_every, no mesh and no float16")


class DatacenterTask(BaseModel):
    """The worker's part of the plan: synchronous SGD over all ranks, on data in the datacenter.

    Learner, seed and ``max_grad_norm`` are those of the Task, which is sent with it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: DataName
    """Name of the data to train on: public or proxy data that workers have under this name, or an installed data set as
    ``package:name@version``, which only workers with that version take. Data of devices is never sent here."""
    steps: int = Field(default=100, ge=1, le=100_000_000)
    """Optimizer steps of a round, the data cycled as often as needed."""
    batch_size: int = Field(default=256, ge=1, le=100_000_000)
    """Examples in an optimizer step, over all ranks and micro-batches."""
    accumulate: int = Field(default=1, ge=1, le=65_536)
    """Micro-batches whose gradients are added up for one step."""
    nproc: int = Field(default=1, ge=1, le=65_536)
    """World size: processes that train together. A worker with fewer processes is not eligible."""
    learning_rate: float = Field(default=0.1, gt=0, le=1000, allow_inf_nan=False)
    """Step size after warm-up; with ``linear_scaling`` that of a batch of 256."""
    linear_scaling: bool = False
    """Linear rule (Goyal et al. 2017, arXiv:1706.02677): the step size is learning_rate * batch_size / 256."""
    optimizer: Literal["sgd", "lars", "lamb"] = "sgd"
    """*sgd*: with momentum. *lars*: You et al. 2017, arXiv:1708.03888. *lamb*: You et al. 2020, arXiv:1904.00962; both
    for large batches."""
    momentum: float = Field(default=0.9, ge=0, lt=1, allow_inf_nan=False)
    """Momentum; for LAMB the first moment's decay."""
    weight_decay: float = Field(default=0.0, ge=0, le=10, allow_inf_nan=False)
    """L2 penalty; for LAMB inside the trust ratio."""
    trust_coefficient: float = Field(default=0.001, gt=0, le=1000, allow_inf_nan=False)
    """Of LARS: the step of a layer, as a fraction of its norm."""
    warmup_steps: int = Field(default=0, ge=0, le=100_000_000)
    """Steps over which the step size grows linearly to its maximum (Goyal et al. 2017, arXiv:1706.02677): from
    ``learning_rate`` with ``linear_scaling``, else from 0."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up the step size stays constant, or falls to 0 at the round's last step, linearly or along half a
    cosine wave."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the forward and backward passes. *float32*: the model's own number type, which parameters and their updates
    have in any case."""
    shard: Shard = Field(default="none", exclude_if=lambda kind: kind == "none")
    """What is divided over the processes, so that one need not hold it all (ZeRO: Rajbhandari et al. 2020,
    arXiv:1910.02054). *optimizer*: the optimizer's state. *gradients*: and the gradients. *full*: and the parameters,
    which are gathered block by block, where the learner names its ``blocks``. The result is that of *none*, up to
    rounding."""
    recompute: bool = Field(default=False, exclude_if=lambda yes: not yes)
    """Whether the learner's ``blocks`` store their inputs alone and are computed again in the backward pass, for less
    memory and a third more computation (Chen et al. 2016, arXiv:1604.06174)."""
    compress: Compress = Field(default="none", exclude_if=lambda kind: kind == "none")
    """How gradients are made smaller for slow links; what a step leaves out is added to the next. *fp16*, *bf16*: 16
    bits a value. *powersgd*: two thin matrices (Vogels et al. 2019, arXiv:1905.13727). *topk*: the largest of what has
    piled up (Lin et al. 2018, arXiv:1712.01887). *1bit*, *2bit*: signs, and whether they are large."""
    compress_rank: int = Field(default=4, ge=1, le=1024, exclude_if=lambda rank: rank == 4)
    """Of powersgd: columns of the thin matrices."""
    compress_density: float = Field(default=0.01, gt=0, le=1, exclude_if=lambda part: part == 0.01)
    """Of topk: the part of the values that a process sends in a step."""
    sync_every: int = Field(default=0, ge=0, le=1_000_000, exclude_if=lambda steps: not steps)
    """Steps that each process takes by itself before the processes average their models, weighted by examples (Stich
    2019, arXiv:1805.09767). 0: gradients are averaged at every step."""
    outer_learning_rate: float = Field(
        default=1.0, gt=0, le=1000, allow_inf_nan=False, exclude_if=lambda rate: rate == 1.0
    )
    """Of ``sync_every``: the step size from one mean to the next. 1 is averaging, 0.7 that of DiLoCo (Douillard et al.
    2023, arXiv:2311.08105)."""
    outer_momentum: float = Field(default=0.0, ge=0, lt=1, allow_inf_nan=False, exclude_if=lambda part: not part)
    """Of ``sync_every``: Nesterov's momentum of those steps. 0.9 is DiLoCo's."""
    sync_within: int = Field(default=1, ge=1, le=65_536, exclude_if=lambda count: count == 1)
    """Of ``sync_every``: neighbouring processes that average their gradients at every step, such as those of a machine,
    between which links are fast (Lin et al. 2020, arXiv:1808.07217). 1: each process trains by itself."""
    mesh: Mesh | None = Field(default=None, exclude_if=lambda mesh: mesh is None)
    """The processes as a mesh, for models of which one process cannot hold a layer, or not all layers: ``nproc`` is the
    product of its axes. None: they divide batches."""
    schedule: Schedule = Field(default="1f1b", exclude_if=lambda kind: kind == "1f1b")
    """Of ``mesh.pipeline``: the order in which a stage works on its ``accumulate`` micro-batches. *gpipe*: all forward,
    then all backward (Huang et al. 2018, arXiv:1811.06965). *1f1b*: in turns, so that it holds few (Narayanan et al.
    2019, SOSP). *interleaved*: with two stages a process (Narayanan et al. 2021, arXiv:2104.04473). *zb*: and with
    gradients of weights where it would wait (Qi et al. 2024, arXiv:2401.10241). *dualpipev*: and from both ends
    (DeepSeek-AI 2024, arXiv:2412.19437)."""
    server: Server | None = Field(default=None, exclude_if=lambda server: server is None)
    """Parameter servers in place of an exchange among all processes, also with processes that do not wait for each
    other: ``{count = 1, staleness = 4}``. None: there are none."""
    hogwild: bool = Field(default=False, exclude_if=lambda yes: not yes)
    """Whether all processes, on the CPUs of one machine, move the same weights in shared memory, without locks (Niu et
    al. 2011, arXiv:1106.5730)."""

    @model_validator(mode="after")
    def _fits(self) -> DatacenterTask:
        parts = self.mesh.parts if self.mesh else self.nproc
        smallest = parts * self.accumulate
        if self.batch_size < smallest:
            what = "data times replicas of the mesh" if self.mesh else "nproc"
            raise ValueError(
                f"batch_size ({self.batch_size}) is below {what} times accumulate ({smallest}): "
                "some rank would have no example in a micro-batch"
            )
        if self.mesh is not None:
            if self.mesh.size != self.nproc:
                raise ValueError(f"the mesh has {self.mesh.size} places ({self.mesh.text}), and nproc is {self.nproc}")
            kinds = (self.shard, self.compress, self.precision, self.sync_every)
            require_mesh(self.mesh, self.schedule, self.accumulate, *kinds)
        require_strategy(self.shard, self.compress, self.precision, self.sync_every, self.sync_within)
        if self.nproc % self.sync_within:
            raise ValueError(f"sync_within ({self.sync_within}) does not divide nproc ({self.nproc})")
        require_apart(self.server, self.hogwild, self.shard, self.compress, self.precision, self.sync_every, self.mesh)
        if self.server is not None and max(self.server.count, self.server.backup + 1, self.server.groups) > self.nproc:
            raise ValueError(
                f"server asks for more servers, backup processes or groups than nproc ({self.nproc}) allows"
            )
        if self.warmup_steps > self.steps:
            raise ValueError(
                f"warmup_steps ({self.warmup_steps}) is above steps ({self.steps}): "
                "the rate would never reach learning_rate"
            )
        return self


STRATEGIES = ("precision", "shard", "recompute", "compress", "sync_every", "mesh", "server", "hogwild")
"""The fields of DatacenterTask that not every worker can do."""


def strategies_of(task: DatacenterTask) -> tuple[str, ...]:
    """What a worker must be able to do for the task beside plain training: ``recompute``, ``shard=full``."""
    chosen = ((name, getattr(task, name)) for name in STRATEGIES)
    fields = DatacenterTask.model_fields
    return tuple(_strategy(name, value) for name, value in chosen if value != fields[name].default)


def all_strategies() -> tuple[str, ...]:
    """All that a task may ask for, as ``strategies_of`` has them."""
    found = {
        _strategy(name, value)
        for name in STRATEGIES
        for value in get_args(DatacenterTask.model_fields[name].annotation) or (None,)
        if value != DatacenterTask.model_fields[name].default
    }
    return tuple(sorted(found))


def _strategy(name: str, value: object) -> str:
    return f"{name}={value}" if isinstance(value, str) else name


class WorkerPoll(Message):
    """Asks for a datacenter round. Held open until there is one or ``hold_s`` has passed."""

    instance: str = Field(min_length=1, max_length=64)
    """Drawn when the worker's process starts. Another poll of the same instance returns its live lease again, so an
    answer may be lost."""
    installation: str = Field(default="", max_length=64)
    """Drawn once and stored beside what the worker saves. Another instance of the same worker and installation is the
    worker after a restart, and gets a new grant at once. With another installation, or none, it waits until the lease
    has ended, like other workers."""
    learners: dict[LearnerName, str] = Field(default_factory=dict, max_length=256)
    """Installed learners: ``package:name`` -> version."""
    data: tuple[DataName, ...] = Field(default=(), max_length=256)
    """Names of the data sets that this worker has."""
    nproc: int = Field(default=1, ge=1, le=65_536)
    """Largest number of processes that it can start for one training."""
    strategies: tuple[Annotated[str, Field(max_length=64)], ...] = Field(default=(), max_length=256)
    """What it can do beside plain training, such as ``recompute`` and ``shard=full``: fields of DatacenterTask, and
    their values where these are words."""
    memory_bytes: int | None = Field(default=None, ge=1, le=2**53)
    """Memory of one process: of its GPU, or its part of the machine's. None: not said."""
    hold_s: float = Field(default=25.0, ge=0, le=300, allow_inf_nan=False)
    """Longest wait for the answer, seconds. 0: answer at once."""


class Lease(Message):
    """One datacenter round, granted to one worker as long as its heartbeats arrive."""

    kind: Literal["lease"] = "lease"
    run: RunId
    round: int = Field(ge=1)
    attempt: int = Field(ge=1)
    """Counts the grants of this round."""
    fence: int = Field(ge=1)
    """Counts the grants of this run, those to the same worker included. Every message of the worker about the round
    carries it, and messages with an older fence are refused."""
    worker: WorkerId
    checkpoint: CheckpointRef
    """The checkpoint from which training starts."""
    plan_digest: Digest
    task: Annotated[Task, AS_NAMED]
    """The plan's task: learner and seed."""
    datacenter: Annotated[DatacenterTask, AS_NAMED]
    lease_s: float
    """Seconds without a heartbeat after which the lease ends."""
    heartbeat_s: float
    """Seconds between heartbeats."""
    within_s: float
    """Seconds from now within which the result must arrive."""
    max_result_bytes: int = Field(ge=0)
    """The longest body that is accepted for the result."""


class Heartbeat(Message):
    """Reports progress and extends the lease by ``lease_s``, counted from now."""

    attempt: int = Field(ge=1)
    fence: int = Field(ge=1)
    step: int = Field(default=0, ge=0, le=2**53)
    """Optimizer steps done in this round, including saved steps of earlier attempts."""
    metrics: dict[MetricName, Finite] = Field(default_factory=dict, max_length=16)
    """Metrics of the training so far: ``loss``, ``samples_per_s``, ``communication_share``, ``restarts``."""


class LeaseRenewed(Message):
    """Acknowledges a Heartbeat."""

    ends_in_s: float
    """Seconds until the lease ends if no other heartbeat arrives."""


class LeaseEnd(Message):
    """The worker returns the lease without a result."""

    attempt: int = Field(ge=1)
    fence: int = Field(ge=1)
    failed: bool
    """False: another worker, or this one later, may take the round. True: training failed; the round is abandoned."""
    reason: str = Field(max_length=500)
    """One plain sentence. Shown to the operator."""


class ResultReport(Message):
    """Describes a result's tensors, in ``RESULT_HEADER``."""

    fence: int = Field(ge=1)
    parent: Literal[""] | Digest = ""
    """SHA-256 of the checkpoint that training started from, of the bytes as they were read. Another one than the
    lease's is refused; the run's log keeps it. Empty: not said, and `quorate verify` names the round."""
    steps: int = Field(ge=0, le=2**53)
    """Optimizer steps of the result."""
    examples: int = Field(ge=0, le=2**53)
    """Examples in all those steps, repetitions included."""
    metrics: dict[MetricName, Finite] = Field(default_factory=dict, max_length=16)
    """Training metrics of the whole round: ``loss``, ``samples_per_s``."""


class ResultReceipt(Message):
    """The result is durable and committed. The same digest again gets an equal answer."""

    run: RunId
    round: int
    attempt: int
    worker: WorkerId
    digest: Digest
    version: int
    """The version of the checkpoint that it became."""


class WorkerRegistration(Message):
    """Makes a worker known to a coordinator by its certificate, in a request that the certified key signs. It is sent
    again with each new certificate; the same one again gets the same answer."""

    certificate: CertificateHex
    """The bytes of ``credentials.certificate``, of the class *worker*. The id in it is the worker's id."""
    label: str = Field(default="", max_length=64)
    """A name for display, such as a cluster or a machine."""


class WorkerRegistered(Message):
    """The answer to WorkerRegistration."""

    worker: WorkerId
    """The id in the certificate."""


# ---------------------------------------------------------------- operators


class WorkerView(Message):
    """A worker as operators see it."""

    worker: WorkerId
    label: str
    created_at: float
    last_seen_at: float | None
    """Time of its last poll."""
    revoked_at: float | None = None
    """Time when an operator of this coordinator revoked it."""
    state: Literal["idle", "leased", "revoked"]
    run: str | None = None
    round: int | None = None


# ------------------------------------------------------------ lease history
# The messages of a datacenter round's history: who had its lease, how each lease ended, how fast it trained.


LeaseBegin = Literal["first", "restarted", "again", "taken-over"]
"""How a lease came: the round's *first*; the same worker *restarted* while it had the lease, which it got anew;
*again*, the same worker after its lease had ended; *taken-over* by another worker."""
LeaseOutcome = Literal["held", "delivered", "replaced", "silent", "returned", "failed", "over"]
"""How a lease ended: it is *held*; its result was *delivered*; *replaced* by the next one of the same worker; the
worker was *silent* for the plan's ``lease_s``; it *returned* the round; it reported that training *failed*; or the
round was *over* first."""
POINTS_SHOWN = 240
"""Heartbeats of a round that are told: of more, some at even distances and the last."""
LEASES_SHOWN = 100
"""Leases of a round that are told: of more, the last."""


class TrainingPoint(Message):
    """A heartbeat that was stored: at most one in a quarter of the plan's ``lease_s``."""

    at: float
    attempt: int
    step: int
    metrics: dict[str, float] = Field(default_factory=dict)
    """``loss``, ``samples_per_s``, ``communication_share`` (of one process there is none), and ``restarts``: how often
    the group of processes was started again under this lease."""


class LeaseRecord(Message):
    """One lease of a datacenter round."""

    worker: WorkerId
    label: str = ""
    attempt: int
    """Counts the leases of the round."""
    fence: int
    """Counts the leases of the run."""
    began: LeaseBegin
    granted_at: float
    ended_at: float | None = None
    """None: it is held."""
    outcome: LeaseOutcome = "held"
    reason: str = ""
    """Why it ended so, in a sentence. Part of it may be text of the worker."""
    step: int = 0
    """Optimizer steps done when it was last heard, including saved steps of earlier leases."""


class LeasesView(Message):
    """The leases of one round, in order, and what its workers reported while they trained."""

    count: int
    """All leases of the round."""
    restarts: int
    """How many of them were of the same worker after a restart (*restarted*)."""
    leases: list[LeaseRecord] = Field(default_factory=list)
    points: list[TrainingPoint] = Field(default_factory=list)
    """In order of time. Of a delivered round the last one is its result, with the metrics of the whole round."""
