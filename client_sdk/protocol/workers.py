"""The messages of datacenter rounds: between a worker, an operator and the coordinator. Routes: ``protocol.Route``.

This file knows words, as ``protocol`` does. One datacenter round to a worker, which an operator registered::

    POST /v1/leases                                     WorkerPoll  -> Lease | Wait    held open until a round wants it
    GET  /v1/checkpoints/{digest}                                   -> safetensors     where training starts
    POST /v1/runs/{run}/rounds/{round}/lease            Heartbeat   -> LeaseKept       "I am at step 40"
    PUT  /v1/runs/{run}/rounds/{round}/attempts/{attempt}/result    -> ResultReceipt   safetensors: the next checkpoint
    POST /v1/runs/{run}/rounds/{round}/lease/end        LeaseEnd    -> Noted           "another may take it"
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from client_sdk.protocol.devices import CheckpointRef, Task
from client_sdk.protocol.names import Digest, Finite, LearnerName, Message, MetricName, RunId, WorkerId

RESULT_HEADER = "Quorate-Result"
"""Goes with a worker's result: the ResultReport, JSON. The body is a checkpoint, whose bytes hold nothing else."""

DataName = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63}:)?[a-z0-9][a-z0-9._-]{0,63}(@[A-Za-z0-9.+!-]{1,64})?$",
        description="a data set, by the name it has in the datacenter, or as package:name@version",
    ),
]


class DatacenterTask(BaseModel):
    """The worker's part of the plan: synchronous SGD over all ranks, on data that lies in the datacenter.

    Learner, seed and ``max_grad_norm`` are the Task's, which goes with it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: DataName
    """The data to train on: public or proxy data that workers hold under this name, or an installed data set as
    ``package:name@version``, which only workers with that version take. Data of devices never comes here."""
    steps: int = Field(default=100, ge=1, le=100_000_000)
    """Optimizer steps of a round, the data cycled as often as needed."""
    batch_size: int = Field(default=256, ge=1, le=100_000_000)
    """Examples in an optimizer step, over all ranks and micro-batches."""
    accumulate: int = Field(default=1, ge=1, le=65_536)
    """Micro-batches whose gradients make one step."""
    nproc: int = Field(default=1, ge=1, le=65_536)
    """World size: processes that train together. A worker with fewer is not eligible."""
    learning_rate: float = Field(default=0.1, gt=0, le=1000, allow_inf_nan=False)
    """Step size after warm-up."""
    optimizer: Literal["sgd", "lars", "lamb"] = "sgd"
    """*sgd*: with momentum. *lars*: You et al. 2017, arXiv:1708.03888. *lamb*: You et al. 2020, arXiv:1904.00962; both
    for large batches."""
    momentum: float = Field(default=0.9, ge=0, lt=1, allow_inf_nan=False)
    """Momentum; for LAMB the first moment's decay."""
    weight_decay: float = Field(default=0.0, ge=0, le=10, allow_inf_nan=False)
    """L2 penalty; for LAMB inside the trust ratio."""
    warmup_steps: int = Field(default=0, ge=0, le=100_000_000)
    """Steps over which the rate grows linearly to ``learning_rate`` (Goyal et al. 2017, arXiv:1706.02677)."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the forward and backward passes; parameters and their updates stay float32."""

    @model_validator(mode="after")
    def _fits(self) -> DatacenterTask:
        smallest = self.nproc * self.accumulate
        if self.batch_size < smallest:
            raise ValueError(
                f"batch_size ({self.batch_size}) is below nproc times accumulate ({smallest}): "
                "some rank would have no example in a micro-batch"
            )
        if self.warmup_steps > self.steps:
            raise ValueError(
                f"warmup_steps ({self.warmup_steps}) is above steps ({self.steps}): "
                "the rate would never reach learning_rate"
            )
        return self


class WorkerPoll(Message):
    """ "I could take a datacenter round." Held open until there is one or ``hold_s`` has passed."""

    instance: str = Field(min_length=1, max_length=64)
    """Drawn when the worker's process starts. The same instance asking again gets its live lease again, so a lost
    answer costs nothing."""
    installation: str = Field(default="", max_length=64)
    """Drawn once, and kept beside what the worker saves. Another instance of the same worker and installation is that
    worker started again, and gets a new grant at once; of another installation, or of none, it waits until the lease
    has ended, as other workers do."""
    learners: dict[LearnerName, str] = Field(default_factory=dict, max_length=256)
    """Installed learners: ``package:name`` -> version."""
    data: tuple[DataName, ...] = Field(default=(), max_length=256)
    """Data that this worker holds."""
    nproc: int = Field(default=1, ge=1, le=65_536)
    """The most processes that it can train with together."""
    hold_s: float = Field(default=25.0, ge=0, le=300, allow_inf_nan=False)
    """How long the worker is willing to wait for the answer. 0: answer at once."""


class Lease(Message):
    """One datacenter round, given to one worker for as long as it is heard of."""

    kind: Literal["lease"] = "lease"
    run: RunId
    round: int = Field(ge=1)
    attempt: int = Field(ge=1)
    """Counts the grants of this round."""
    fence: int = Field(ge=1)
    """Counts the grants of this run: raised at every grant, also to the same worker. Whatever the worker sends about
    the round carries it; what comes under an older one is refused."""
    worker: WorkerId
    checkpoint: CheckpointRef
    """Where training starts."""
    plan_digest: Digest
    task: Task
    """The plan's task: learner and seed."""
    datacenter: DatacenterTask
    lease_s: float
    """Seconds without a heartbeat after which the lease ends."""
    heartbeat_s: float
    """How often a heartbeat should be sent."""
    within_s: float
    """Seconds from now in which the result must be there."""
    max_result_bytes: int = Field(ge=0)
    """The longest body that is taken for the result."""


class Heartbeat(Message):
    """ "I am at it." Keeps the lease for another ``lease_s``."""

    attempt: int = Field(ge=1)
    fence: int = Field(ge=1)
    step: int = Field(default=0, ge=0, le=2**53)
    """Optimizer steps done in this round, those of earlier attempts that were saved included."""
    metrics: dict[MetricName, Finite] = Field(default_factory=dict, max_length=16)
    """How it goes: ``loss``, ``samples_per_s``, ``communication_share``."""


class LeaseKept(Message):
    """Acknowledges a Heartbeat."""

    ends_in_s: float
    """Seconds until the lease ends, unless another heartbeat comes."""


class LeaseEnd(Message):
    """The worker gives the lease up before it has a result."""

    attempt: int = Field(ge=1)
    fence: int = Field(ge=1)
    failed: bool
    """False: another worker, or this one later, may take the round. True: it cannot be done, the round is abandoned."""
    reason: str = Field(max_length=500)
    """One plain sentence. Shown to the operator."""


class ResultReport(Message):
    """What goes with a result's tensors, in ``RESULT_HEADER``."""

    fence: int = Field(ge=1)
    steps: int = Field(ge=0, le=2**53)
    """Optimizer steps behind the result."""
    examples: int = Field(ge=0, le=2**53)
    """Examples in all those steps, repeats counted."""
    metrics: dict[MetricName, Finite] = Field(default_factory=dict, max_length=16)
    """Training metrics of the whole round: ``loss``, ``samples_per_s``."""


class ResultReceipt(Message):
    """The result is durable and committed. The same digest again gets the same words."""

    run: RunId
    round: int
    attempt: int
    worker: WorkerId
    digest: Digest
    version: int
    """The version that it is now."""


# ---------------------------------------------------------------- operators


class CreateWorker(Message):
    """Registers a worker. Its token is in the answer, and nowhere else."""

    label: str = Field(default="", max_length=64)
    """A name for people: a cluster, a machine."""


class WorkerCreated(Message):
    """The coordinator's answer to CreateWorker. The token is told this once; only its hash is kept."""

    worker: WorkerId
    token: str


class WorkerView(Message):
    """A worker as operators see it."""

    worker: WorkerId
    label: str
    created_at: float
    last_seen_at: float | None
    """When it last asked for a round."""
    revoked_at: float | None = None
    """When its token ceased to be good."""
    state: Literal["idle", "leased", "revoked"]
    run: str | None = None
    round: int | None = None
