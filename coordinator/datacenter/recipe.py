"""How a model is trained on a datacenter's machines: the numbers, their ranges, the learning rate of every step.

A recipe and a seed determine what is computed; the number of processes that share the work changes only rounding. Its
fields have the names of a plan's section ``[datacenter]`` and of the options of ``quorate datacenter train``. Needs no
torch.
"""

from __future__ import annotations

import math
from typing import Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field, model_validator

from client_sdk.protocol.workers import (
    Compress,
    Lease,
    Mesh,
    Schedule,
    Server,
    Shard,
    require_apart,
    require_mesh,
    require_strategy,
)

BASE_BATCH = 256
"""The batch size to which the learning rate of the linear rule refers (Goyal et al. 2017, arXiv:1706.02677)."""


class Recipe(BaseModel):
    """Everything that determines the numbers of a training job, besides learner, data and first weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(ge=1, le=100_000_000)
    """Optimizer steps; the data is repeated as often as needed."""
    batch_size: int = Field(default=256, ge=1, le=100_000_000)
    """Examples of a step, over all processes. The last batch of an epoch holds the remaining examples."""
    learning_rate: float = Field(default=0.1, gt=0, le=1000, allow_inf_nan=False)
    """Step size; with ``linear_scaling`` that of a batch of 256."""
    linear_scaling: bool = False
    """Linear rule (Goyal et al. 2017, section 2.1): the step size is learning_rate * batch / 256."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which the step size rises linearly to its maximum (Goyal et al. 2017, section 2.2): from
    learning_rate with ``linear_scaling``, else from 0."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up the step size stays constant, or falls to 0 at the last step, linearly or along half a cosine
    wave."""
    optimizer: Literal["learner", "sgd", "lars", "lamb"] = "learner"
    """The learner's own; SGD with momentum; or LARS (You et al. 2017, arXiv:1708.03888) or LAMB (You et al. 2020,
    arXiv:1904.00962), which scale each layer's step to the norm of its weights, for large batches."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Of sgd and lars; of lamb the decay of the first moment, beta1."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Of sgd, lars and lamb."""
    trust_coefficient: float = Field(default=0.001, gt=0, allow_inf_nan=False)
    """Of lars: the step of a layer, as a fraction of its norm."""
    max_grad_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Gradients are scaled down to this L2 norm. None: not clipped."""
    accumulate: int = Field(default=1, ge=1, le=100_000)
    """Micro-batches into which a process splits its share of a batch, to save memory. Gradients are still exchanged
    once a step."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """float32: the model's own number type. bfloat16: autocast to it. float16: autocast to it with scaled losses, on
    GPUs only."""
    bucket_mb: float = Field(default=25.0, gt=0, le=10_000)
    """Gradients are exchanged in buckets of this size while the rest is still computed."""
    shard: Shard = "none"
    """What is divided over the processes, so that one need not hold it all (ZeRO: Rajbhandari et al. 2020,
    arXiv:1910.02054): the optimizer's state; and the gradients; and, *full*, the parameters, which are gathered block
    by block (the learner's ``blocks``)."""
    recompute: bool = False
    """Whether the learner's ``blocks`` store their inputs alone and are computed again in backward, for less memory and
    a third more computation (Chen et al. 2016, arXiv:1604.06174). The result has the same bits."""
    compress: Compress = "none"
    """How gradients are made smaller for slow links; what a step leaves out is added to the next. *fp16*, *bf16*: 16
    bits a value. *powersgd*: two thin matrices (Vogels et al. 2019, arXiv:1905.13727). *topk*: the largest of what has
    piled up (Lin et al. 2018, arXiv:1712.01887), with the momentum of sgd. *1bit*, *2bit*: signs, and whether they are
    large. See ``client_sdk.learning.compression``."""
    compress_rank: int = Field(default=4, ge=1, le=1024)
    """Of powersgd: columns of the thin matrices."""
    compress_density: float = Field(default=0.01, gt=0, le=1)
    """Of topk: the part of the values that a process sends in a step."""
    sync_every: int = Field(default=0, ge=0, le=1_000_000)
    """Steps that each process takes by itself before the processes average their models. 0: their gradients are
    averaged at every step. See ``client_sdk.learning.local_steps``."""
    outer_learning_rate: float = Field(default=1.0, gt=0, le=1000, allow_inf_nan=False)
    """Of ``sync_every``: the step size from one mean to the next; 1 is averaging, 0.7 DiLoCo's."""
    outer_momentum: float = Field(default=0.0, ge=0, lt=1)
    """Of ``sync_every``: Nesterov's momentum of those steps; 0.9 is DiLoCo's."""
    sync_within: int = Field(default=1, ge=1, le=65_536)
    """Of ``sync_every``: neighbouring processes that average their gradients at every step, such as those of a
    machine."""
    mesh: Mesh | None = None
    """The processes as a mesh. None: they divide batches. See ``client_sdk.learning.mesh``."""
    schedule: Schedule = "1f1b"
    """Of ``mesh.pipeline``: the order in which a stage works on its micro-batches, which are ``accumulate``."""
    server: Server | None = None
    """Parameter servers in place of an exchange among all processes. See ``client_sdk.learning.parameter_servers``."""
    hogwild: bool = False
    """Whether all processes move the same weights in shared memory. See ``client_sdk.learning.hogwild``."""
    averaged: tuple[str, ...] | None = None
    """The tensors that are trained, as a plan's task names them (``Task.averaged``). None: those that the learner
    trains."""
    unused_parameters: bool = False
    """Whether a loss may not depend on some parameters; their gradient is zero. Costs a graph traversal at every
    step."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seeds the order of the data and the random numbers of layers: each step's are a function of (seed, step)."""

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        if self.warmup_steps > self.steps:
            raise ValueError(f"the warm-up has {self.warmup_steps} steps, and the whole training {self.steps}")
        require_strategy(self.shard, self.compress, self.precision, self.sync_every, self.sync_within)
        if self.mesh is not None:
            kinds = (self.shard, self.compress, self.precision, self.sync_every)
            require_mesh(self.mesh, self.schedule, self.accumulate, *kinds)
        require_apart(self.server, self.hogwild, self.shard, self.compress, self.precision, self.sync_every, self.mesh)
        if self.max_grad_norm is not None and (self.hogwild or (self.server is not None and self.server.staleness)):
            raise ValueError("max_grad_norm is of a whole batch's gradient, and processes that do not wait have none")
        parts = self.mesh.parts if self.mesh else 1
        if self.accumulate * parts > self.batch_size:
            each = f" for each of {parts} parts of it" if parts > 1 else ""
            raise ValueError(f"a batch of {self.batch_size} cannot be cut into {self.accumulate} micro-batches{each}")
        return self

    def learning_rate_at(self, step: int) -> float:
        """The step size of ``step`` (from 0).

        With W warm-up steps, maximum h and start s, in the warm-up: s + (h - s) (step + 1) / W; it is h at step W - 1.
        """
        height = self.learning_rate * (self.batch_size / BASE_BATCH if self.linear_scaling else 1.0)
        start = self.learning_rate if self.linear_scaling else 0.0
        if step < self.warmup_steps:
            return start + (height - start) * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        match self.decay:
            case "linear":
                return height * (1 - done)
            case "cosine":
                return height * (1 + math.cos(math.pi * done)) / 2
            case "constant":
                return height
            case _:
                assert_never(self.decay)

    def difference_from(self, other: Recipe) -> str | None:
        """The first field by which ``other`` would compute other numbers, as ``batch is 64 there and 32 here``; None
        where one training may continue the other."""
        how = {
            "accumulate",
            "bucket_mb",
            "unused_parameters",
            "shard",
            "recompute",
            "mesh",
            "schedule",
            *(("steps",) if self.decay == "constant" else ()),
        }
        for name, mine in self:
            theirs = getattr(other, name)
            if name == "server":  # exact ones give the numbers of none
                mine, theirs = (None if one is None or one.exact else one for one in (mine, theirs))
            if name not in how and theirs != mine:
                return f"{name} is {theirs} there and {mine} here"
        return None


MOST_BETWEEN_SAVES = 100
"""Most steps between two saved ones, where no number is given."""


def recipe_of(lease: Lease) -> Recipe:
    """The recipe of the round's plan.

    The order of the data is drawn by the task's seed plus the version that training starts from: each round of a run
    sees the data in another order, and a round that is started again in the same one. Parameters may be left unused, as
    devices may leave them. ValueError where the plan cannot be trained.
    """
    task = lease.task
    return Recipe.model_validate(
        {
            **lease.datacenter.model_dump(exclude={"data", "nproc"}),
            "max_grad_norm": task.max_grad_norm,
            "unused_parameters": True,
            "averaged": None if task.averaged == ("*",) else task.averaged,
            "seed": (task.seed + lease.checkpoint.version) % 2**63,
        }
    )


def steps_between_saves(steps: int, wanted: int | None) -> int:
    """Steps between two saves in a round of ``steps``: ``wanted``, else a tenth of the round, MOST_BETWEEN_SAVES at
    most."""
    return wanted or max(1, min(MOST_BETWEEN_SAVES, steps // 10))


def examples_in(steps: int, batch: int, examples: int) -> int:
    """How many examples ``steps`` batches hold, repeats counted: an epoch's last batch holds the remaining ones."""
    epochs, rest = divmod(steps, -(-examples // batch))
    return epochs * examples + rest * batch
