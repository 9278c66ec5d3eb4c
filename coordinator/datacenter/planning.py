"""Which way to train a model on so many devices: predicts the seconds of a step and the bytes of a device for every
way to divide the work, and says why a way cannot be taken.

Symbols, and the names here: Psi parameters, d ``data``, t ``tensor``, p ``pipeline``, m ``micro_batches`` of b
sequences, v stages of a pipeline's rank, s ``sequence``, h ``hidden``, a ``heads``, l ``layers``. Sizes are bytes,
durations seconds. One device holds Psi / (t p) parameters; devices are numbered tensor first, then data, then pipeline,
so that the ranks that exchange most are the nearest.

Nothing is measured here, and nothing needs torch. Beyond the models is what they leave out: kernels that small
micro-batches do not fill, and the memory of the outputs over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple, assert_never, get_args

from client_sdk.protocol.workers import Mesh, require_mesh, require_strategy
from coordinator.datacenter.all_reduce_costs import LINKS, Line, Link, cheapest, flat, hierarchical, leaders

Shard = Literal["none", "optimizer", "gradients", "full"]
Schedule = Literal["none", "gpipe", "1f1b", "interleaved", "zb", "dualpipev"]
STAGES_A_RANK = 2
"""Stages of a rank under the last three schedules."""


class Bytes(NamedTuple):
    """Bytes of one parameter, and of one value of an activation."""

    weight: int
    gradient: int
    master: int
    activation: int


PRECISIONS = {
    "bfloat16": Bytes(4, 4, 0, 2),
    "float16": Bytes(4, 4, 0, 2),
    "float32": Bytes(4, 4, 0, 4),
    "mixed": Bytes(2, 2, 4, 2),
}
"""*bfloat16* and *float16* are the trainer's: weights and gradients stay float32, and layers compute in 16 bits.
*mixed* has weights and gradients of 16 bits beside float32 weights (Rajbhandari et al. 2019, arXiv:1910.02054)."""
OPTIMIZERS = {"adam": 8, "lamb": 8, "momentum": 4, "lars": 4, "sgd": 0}
"""Bytes of a parameter's state in the optimizer."""
MOST_PARAMS = 1e15
BUCKET = 25e6
"""Bytes of the last bucket of gradients, which nothing can hide."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is trained. Without ``layers`` the shape is unknown: activations are not counted, and the model is not
    divided by tensors or stages."""

    params: float
    layers: int = 0
    hidden: int = 0
    heads: int = 0
    sequence: int = 1
    global_batch: int = 512
    precision: str = "bfloat16"
    optimizer: str = "adam"
    flash: bool = False
    """Whether attention keeps no scores for its backward pass."""

    def __post_init__(self) -> None:
        for name, most in (("params", MOST_PARAMS), ("sequence", 1e8), ("global_batch", 1e8)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name.replace('_', '-')} must be from 1 to {most:g}, not {getattr(self, name):g}.")
        for name, known in (("precision", PRECISIONS), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}, not {getattr(self, name)}.")
        if self.layers and (self.heads < 1 or self.hidden < 1 or self.hidden % self.heads):
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads}), both 1 or more.")

    @property
    def bytes(self) -> Bytes:
        return PRECISIONS[self.precision]

    def layer_bytes(self, sequences: float, tensor: int = 1) -> float:
        """What one layer keeps of a micro-batch for its backward pass.

        Korthikanti et al. 2022 (arXiv:2205.05198), equation 2, in 16 bits: s b h (10 + 24/t + 5 a s/(h t)). Masks of
        dropout have one byte in any precision: with values of c bytes it is 4c + 2, 12c/t, and (2c + 1) a s/(h t).
        """
        c = self.bytes.activation
        scores = 0 if self.flash else (2 * c + 1) * self.heads * self.sequence / self.hidden
        return self.sequence * sequences * self.hidden * (4 * c + 2 + (12 * c + scores) / tensor)

    def border_bytes(self, sequences: float) -> float:
        """The values between two layers, s b h: what recomputation keeps of a layer, and what stages pass on."""
        return self.bytes.activation * self.sequence * sequences * self.hidden

    @property
    def flops(self) -> float:
        """Of one step's forward and backward pass: 6 Psi a token, and 12 l h s for attention without causal saving
        (Narayanan et al. 2021, arXiv:2104.04473, appendix). Recomputation adds a third: a second forward pass."""
        return (6 * self.params + 12 * self.layers * self.hidden * self.sequence) * self.sequence * self.global_batch


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The devices, and what joins them."""

    devices: int = 8
    per_machine: int = 8
    memory: float = 80e9
    flops: float = 125e12
    """What one device reaches, not its peak: the default is 40 % of an A100's 312e12 in bfloat16."""
    link: Link = LINKS["nvlink"]
    between: Link = LINKS["ethernet25"]
    cards: int = 1
    """How many messages leave a machine at the full rate of ``between`` at once."""
    headroom: float = 0.1
    """The part of the memory that is left to buffers, gathered blocks and fragmentation."""
    overlap: float = 1.0
    """The part of the time that could hide an exchange of gradients and does."""

    def __post_init__(self) -> None:
        for name in ("devices", "per_machine", "cards"):
            if not 1 <= getattr(self, name) <= 1_000_000:
                raise ValueError(f"{name.replace('_', '-')} must be from 1 to 1000000, not {getattr(self, name)}.")
        if self.devices > self.per_machine and self.devices % self.per_machine:
            raise ValueError(f"{self.devices} devices do not fill machines of {self.per_machine}.")
        if not (self.memory > 0 and self.flops > 0):
            raise ValueError("memory and flops must be above 0.")
        if not (0 <= self.headroom < 1 and 0 <= self.overlap <= 1):
            raise ValueError("headroom is from 0 to below 1, and overlap from 0 to 1.")

    @property
    def local(self) -> int:
        """Devices of one machine."""
        return min(self.devices, self.per_machine)

    @property
    def usable(self) -> float:
        return self.memory * (1 - self.headroom)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to divide the work."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    shard: Shard = "none"
    recompute: bool = False
    micro_batches: int = 1
    schedule: Schedule = "none"
    sync_every: int = 1

    @property
    def stages(self) -> int:
        """Of one rank: v."""
        return STAGES_A_RANK if self.schedule in ("interleaved", "zb", "dualpipev") else 1

    def section(self, model: Model) -> list[str]:
        """The lines for a plan's section ``[datacenter]``."""
        parted = self.tensor * self.pipeline > 1
        lines = {
            f"nproc = {self.data * self.tensor * self.pipeline}": True,
            f"mesh = {{data = {self.data}, tensor = {self.tensor}, pipeline = {self.pipeline}}}": parted,
            f'schedule = "{self.schedule}"': self.pipeline > 1,
            f'shard = "{self.shard}"': self.shard != "none",
            "recompute = true": self.recompute,
            f"batch_size = {model.global_batch}": True,
            f"accumulate = {self.micro_batches}": self.micro_batches > 1,
            f"sync_every = {self.sync_every}": self.sync_every > 1,
            f'precision = "{model.precision}"': model.precision in ("bfloat16", "float16"),
            "# 16-bit weights beside float32 ones are not this trainer's": model.precision == "mixed",
        }
        return ["[datacenter]", *(line for line, wanted in lines.items() if wanted)]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a plan takes: bytes of the device that needs most, and the parts of a step's seconds."""

    plan: Plan
    state_bytes: float
    activation_bytes: float
    compute_s: float
    tensor_s: float
    """All-reduces within layers."""
    stages_s: float
    """Values passed between stages."""
    idle_s: float
    """A pipeline that fills and drains."""
    data_s: float
    """What the computation does not hide of the exchange of gradients."""
    data_bytes: float
    """What one device sends for that in a step, by an algorithm with the fewest bytes."""
    all_reduce: str
    """The cheapest algorithm for the gradients."""

    @property
    def bytes(self) -> float:
        return self.state_bytes + self.activation_bytes

    @property
    def step_s(self) -> float:
        return self.compute_s + self.tensor_s + self.stages_s + self.idle_s + self.data_s


class Refusal(NamedTuple):
    """Why no plan of a family can be taken: such as *tensor 16*, for whatever else it has."""

    family: str
    reason: str


def state_bytes(model: Model, plan: Plan) -> float:
    """Weights, gradients and optimizer of one device (ZeRO, arXiv:1910.02054, figure 1).

    With mixed precision and Adam a parameter takes 16 bytes; sharded over d: 4 + 12/d by its optimizer (stage 1), 2 +
    14/d by gradients too (stage 2), 16/d in full (stage 3, FSDP).
    """
    weight, gradient, master, _ = model.bytes
    state, zero = master + OPTIMIZERS[model.optimizer], get_args(Shard).index(plan.shard)
    parts = [size / (plan.data if zero >= stage else 1) for stage, size in ((3, weight), (2, gradient), (1, state))]
    return sum(parts) * model.params / (plan.tensor * plan.pipeline)


def held(plan: Plan, stage: int = 0) -> float:
    """Micro-batches whose activations the rank of ``stage`` holds at once, in units of all its layers.

    GPipe: m. 1F1B: p - stage, m at most (Narayanan et al. 2019, PipeDream). Interleaved: 2(p - stage - 1) + (v - 1)p +
    1 of the v m parts (Narayanan et al. 2021, arXiv:2104.04473, section 2.2). ZB-V: p, DualPipe-V half a one more, both
    the same on all ranks. Without a pipeline one.
    """
    p, m, v = plan.pipeline, plan.micro_batches, plan.stages
    match plan.schedule:
        case "none":
            return 1
        case "gpipe":
            return m
        case "1f1b":
            return min(m, p - stage)
        case "interleaved":
            return min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1) / v
        case "zb":
            return min(m, p)
        case "dualpipev":
            return min(m, p + 1 / 2)
        case _:
            assert_never(plan.schedule)


def bubble(plan: Plan) -> float:
    """The part of a step in which a rank waits while the pipeline fills and drains: (p - 1)/(v m + p - 1) for GPipe
    (Huang et al. 2018, arXiv:1811.06965), 1F1B and the interleaved schedule.

    The others divide the backward pass into gradients of inputs and of weights, and have the latter where they would
    wait. With F, B and W equally long, a sixth of a micro-batch's work in each of two stages, ZB-V (Qi et al. 2024,
    arXiv:2401.10241) waits for max(p - 1, 4p - 2 - 2m) of them, and DualPipe-V (DeepSeek-AI 2024, arXiv:2412.19437),
    with m >= 2p, for 2(p - 1), where what it has at the same time takes as long as one after the other.
    """
    p, m = plan.pipeline, plan.micro_batches
    match plan.schedule:
        case "zb":
            idle, busy = max(p - 1, 4 * p - 2 - 2 * m), 6 * m
        case "dualpipev":
            idle, busy = 2 * (p - 1), 6 * m
        case _:
            idle, busy = p - 1, plan.stages * m
    return idle / (busy + idle)


def activation_bytes(model: Model, plan: Plan) -> float:
    """Of the first stage, which holds most. Recomputation keeps the borders of layers, and one layer at work."""
    layers = model.layers / plan.pipeline
    if not layers:
        return 0.0
    b = model.global_batch / plan.data / plan.micro_batches
    whole = model.layer_bytes(b, plan.tensor)
    return held(plan) * layers * model.border_bytes(b) + whole if plan.recompute else held(plan) * layers * whole


@cache
def all_reduces(machines: Machines, data: int, tensor: int) -> Mapping[str, Line]:
    """The algorithms for gradients, between ``data`` ranks that are ``tensor`` devices apart.

    Who shares a machine's cards: a ring over all ranks leaves a machine once for each of the ``tensor`` neighbours, any
    other flat algorithm may leave it from every device, and so does each shard of the hierarchical one.
    """
    inside = min(data, max(1, machines.local // tensor))
    if machines.local % (tensor * inside) or data % inside:
        inside = 1  # the ranks do not fill machines
    if data == inside:
        return flat(data, machines.link)
    far, one = (machines.between.shared(flows / machines.cards) for flows in (machines.local, machines.local / inside))
    lines = flat(data, far) | {"ring": flat(data, one)["ring"]}
    if inside > 1:
        lines["hierarchical"] = hierarchical(inside, data // inside, machines.link, far)
        lines["leaders"] = leaders(inside, data // inside, machines.link, one)
    return lines


def predict(model: Model, machines: Machines, plan: Plan) -> Prediction:
    """What the plan takes.

    Within layers: 4 all-reduces of b s h values a layer and micro-batch, 6 with recomputation (Shoeybi et al. 2019,
    arXiv:1909.08053). Between stages b s h values a border, micro-batch and direction. Neither is hidden.

    Gradients: one all-reduce a step, which the last micro-batch's backward pass hides, but for the last bucket.
    Sharded gradients are reduced once a micro-batch and weights gathered once: (m + 1)/2 all-reduces. Sharded weights
    are gathered twice and gradients reduced once a micro-batch: 3m/2, behind all of the computation. With
    ``sync_every`` weights are averaged each so many steps instead, and nothing hides that, nor the all-reduce after a
    schedule that divides backward passes.
    """
    m, again = plan.micro_batches, plan.recompute
    b = model.global_batch / plan.data / m
    compute = model.flops * (4 / 3 if again else 1) / (machines.devices * machines.flops)
    layers, border = model.layers / plan.pipeline, model.border_bytes(b)

    inner = flat(plan.tensor, machines.link)
    tensor = m * (6 if again else 4) * layers * inner[cheapest(inner, border)].seconds(border)
    stages = 0.0
    if plan.pipeline > 1:
        near = plan.data * plan.tensor * plan.pipeline <= machines.local
        link = machines.link if near else machines.between.shared(machines.local / machines.cards)
        stages = 2 * m * plan.stages * (link.alpha_s + border * link.beta_s)
    waits = bubble(plan)
    idle = (compute + tensor + stages) * waits / (1 - waits)

    weight, gradient, *_ = model.bytes
    size = (weight if plan.sync_every > 1 else gradient) * model.params / (plan.tensor * plan.pipeline)
    lines = all_reduces(machines, plan.data, plan.tensor)
    algorithm = cheapest(lines, size)
    backward = (3 / 4 if again else 2 / 3) * compute
    if plan.shard == "full":
        times, hides = 1.5 * m, compute
    elif plan.shard == "gradients":
        times, hides = (m + 1) / 2, backward
    else:
        hidden = plan.sync_every == 1 and plan.schedule not in ("zb", "dualpipev")
        times, hides = 1 / plan.sync_every, backward / m if hidden else 0.0
    whole = times * lines[algorithm].seconds(size)
    rest = max(0.0, whole - machines.overlap * hides) + lines[algorithm].seconds(min(size, BUCKET))
    return Prediction(
        plan=plan,
        state_bytes=state_bytes(model, plan),
        activation_bytes=activation_bytes(model, plan),
        compute_s=compute,
        tensor_s=tensor,
        stages_s=stages,
        idle_s=idle,
        data_s=min(whole, rest),
        data_bytes=times * 2 * (plan.data - 1) / plan.data * size,
        all_reduce=algorithm,
    )


def divisors(n: int) -> list[int]:
    small = [k for k in range(1, int(n**0.5) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})


def meshes(model: Model, machines: Machines) -> Iterator[tuple[int, int, int] | Refusal]:
    """Every (data, tensor, pipeline) with as many ranks as devices, or the reason why there is none."""
    n = machines.devices
    for tensor in divisors(n):
        if reason := _tensor_refused(model, machines, tensor):
            yield Refusal(f"tensor {tensor}", reason)
            continue
        for pipeline in divisors(n // tensor):
            data = n // tensor // pipeline
            if pipeline > 1 and not model.layers:
                yield Refusal(f"pipeline {pipeline}", "the model's layers are not known")
            elif model.layers % pipeline:
                yield Refusal(f"pipeline {pipeline}", f"{model.layers} layers do not divide by {pipeline}")
            elif model.global_batch % data:
                yield Refusal(f"data {data}", f"a batch of {model.global_batch} does not divide by {data}")
            else:
                yield data, tensor, pipeline


def _tensor_refused(model: Model, machines: Machines, tensor: int) -> str | None:
    if tensor == 1:
        return None
    if not model.layers:
        return "the model's heads are not known"
    if model.heads % tensor:
        return f"{model.heads} heads do not divide by {tensor}"
    if machines.local % tensor:
        return f"its all-reduces within layers would cross machines of {machines.local}"
    return None


def family(model: Model, mesh: tuple[int, int, int], shard: Shard, local_steps: int) -> Iterator[Plan]:
    """All plans of a mesh and a shard. Schedules: 1F1B, which with fewer micro-batches than stages cannot run, GPipe
    there, and those of two stages a rank where layers and micro-batches allow it."""
    data, tensor, pipeline = mesh
    for m in divisors(model.global_batch // data):
        schedules: list[Schedule] = ["none"] if pipeline == 1 else ["1f1b"] if m >= pipeline else ["gpipe"]
        if pipeline > 1 and model.layers % (STAGES_A_RANK * pipeline) == 0:
            doubled: list[tuple[Schedule, bool]] = [
                ("interleaved", m % pipeline == 0), ("zb", True), ("dualpipev", m >= 2 * pipeline)
            ]  # fmt: skip
            schedules += [name for name, fits in doubled if fits]
        for schedule in schedules:
            for recompute in (False, True)[: 2 if model.layers else 1]:
                plan = Plan(
                    data=data,
                    tensor=tensor,
                    pipeline=pipeline,
                    shard=shard,
                    recompute=recompute,
                    micro_batches=m,
                    schedule=schedule,
                )
                yield plan
                if local_steps > 1 and shard == "none" and data > 1 and tensor * pipeline == 1:
                    yield replace(plan, sync_every=local_steps)


def not_trained(model: Model, plan: Plan) -> str | None:
    """Why the trainer refuses the plan, by the rules of a plan's section; None where it takes it. *mixed* has its
    exchanges and its autocast."""
    precision = "bfloat16" if model.precision == "mixed" else model.precision
    steps = plan.sync_every if plan.sync_every > 1 else 0
    try:
        require_strategy(plan.shard, "none", precision, steps)
        if plan.tensor * plan.pipeline > 1:
            mesh = Mesh(data=plan.data, tensor=plan.tensor, pipeline=plan.pipeline)
            schedule = "1f1b" if plan.schedule == "none" else plan.schedule
            require_mesh(mesh, schedule, plan.micro_batches, plan.shard, "none", precision, steps)
    except ValueError as error:
        return str(error)
    return None


def advise(model: Model, machines: Machines, local_steps: int = 1) -> tuple[list[Prediction], list[Refusal]]:
    """The plans that fit, the fastest first, and why each other family was refused.

    Plans with ``sync_every`` compute another result, and follow after all that equal one process.
    """
    fitting: list[Prediction] = []
    refused: dict[Refusal, None] = {}
    for mesh in meshes(model, machines):
        if isinstance(mesh, Refusal):
            refused[mesh] = None
            continue
        data, tensor, pipeline = mesh
        for shard in get_args(Shard)[: 4 if data > 1 else 1]:
            name = f"data {data}, tensor {tensor}, pipeline {pipeline}, shard {shard}"
            plans = {plan: not_trained(model, plan) for plan in family(model, mesh, shard, local_steps)}
            trained = [predict(model, machines, plan) for plan, reason in plans.items() if reason is None]
            fits = [found for found in trained if found.bytes <= machines.usable]
            fitting += fits
            if not trained:
                kind = f"shard {shard}{' with tensor or pipeline' if tensor * pipeline > 1 else ''}"
                refused[Refusal(kind, next(iter(plans.values())) or "")] = None
            elif not fits:
                least = min(found.bytes for found in trained)
                needs = f"needs {least / 1e9:.1f} GB at least, and {machines.usable / 1e9:.1f} may be used"
                refused[Refusal(name, needs)] = None
    fitting.sort(key=_order)
    return fitting, list(refused)


def _order(found: Prediction) -> tuple[float, ...]:
    """Of plans that are equally fast in three digits the simplest comes first, then the one with the least memory."""
    one = found.plan
    simple = (one.tensor * one.pipeline, get_args(Shard).index(one.shard), one.recompute)
    return (one.sync_every, float(f"{found.step_s:.3g}"), *simple, found.bytes)
