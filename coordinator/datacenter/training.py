"""Trains one learner by synchronous SGD in one group of processes, from a checkpoint to a checkpoint.

Its only files are the saved steps. With a group of one it is the plain trainer of a single device.

All ranks check everything together before training; an error is raised on one rank, and RankFailed on the others. The
order of the data and the random numbers of layers are functions of (seed, step), so a training that continues from a
saved step ends with the same result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import torch
from torch import nn

from client_sdk.chance import derive_seed
from client_sdk.data import training_part
from client_sdk.imports import uncollected
from client_sdk.isolation import seed_generators, seeded
from client_sdk.learning import state
from client_sdk.learning.compression import Bits, Compressor, Halves, PowerSGD, TopK
from client_sdk.learning.data import TensorExamples, as_examples
from client_sdk.learning.errors import CheckpointMismatch, DataError, Diverged, LearnerFailed
from client_sdk.learning.evaluation import explained
from client_sdk.learning.group import Group, GroupLost, RankFailed, RanksDiffer, Unreached
from client_sdk.learning.hogwild import Hogwild, move_rows
from client_sdk.learning.learner import Learner, floating_of, freeze
from client_sdk.learning.local_sgd import dense_gradient
from client_sdk.learning.local_steps import LocalSteps
from client_sdk.learning.parameter_servers import Served
from client_sdk.learning.sharding import FullShards, GradientShards, OptimizerShards
from client_sdk.learning.sync_sgd import GlobalGradient, for_group
from client_sdk.tensors import Manifest, Tensors, digest, to_bytes
from coordinator.datacenter.optimizers import make_optimizer, set_learning_rate
from coordinator.datacenter.progress import Meter, OnMessage
from coordinator.datacenter.recipe import Recipe

if TYPE_CHECKING:
    from coordinator.datacenter.checkpoints import Checkpoints


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a training did, from its first step in this process."""

    steps: int
    """Steps of the model in all."""
    began: int
    """The step from which it continued: 0, or a saved step."""
    loss: float
    """Mean over the last step's global batch; NaN where no step remained."""
    examples_seen: int
    seconds: float
    cpu_s: float
    """Of this rank's process, in ``seconds``."""
    samples_per_s: float
    gradient_bytes: int
    """What this rank has handed to the exchange of gradients."""
    saved_bytes: int
    """What the forward pass of the first step (with accumulation, of its first part) stored for the backward pass, on
    this rank."""
    peak_bytes: int | None
    """The most memory that tensors had on this rank's GPU; None on a CPU."""
    staleness: tuple[int, ...]
    """Of parameter servers, on rank 0: how many gradients were 0, 1, 2 ... steps of the model old when they moved it.
    Empty elsewhere."""
    world: int
    device: str

    def as_json(self) -> dict[str, Any]:
        return {key: None if value != value else value for key, value in asdict(self).items()}


class GlobalOrder:
    """The examples of each step's global batch: for every epoch a permutation drawn from (seed, epoch)."""

    def __init__(self, examples: int, batch: int, seed: int) -> None:
        self._examples, self._batch, self._seed = examples, batch, seed
        self._per_epoch = -(-examples // batch)
        self._drawn: tuple[int, torch.Tensor] = (-1, torch.empty(0))

    def at(self, step: int) -> torch.Tensor:
        """The indices of the batch of ``step`` (from 0), int64 [batch]; the last of an epoch has the
        remaining examples."""
        epoch, place = divmod(step, self._per_epoch)
        if self._drawn[0] != epoch:
            generator = torch.Generator().manual_seed(derive_seed("global order", self._seed, epoch, ""))
            self._drawn = (epoch, torch.randperm(self._examples, generator=generator))
        return self._drawn[1][place * self._batch : (place + 1) * self._batch]

    @property
    def smallest(self) -> int:
        """Examples of the smallest batch."""
        return self._examples % self._batch or self._batch


def train(
    learner: Learner,
    model: Tensors,
    data: Any,
    recipe: Recipe,
    *,
    group: Group | None = None,
    name: str = "",
    checkpoints: Path | None = None,
    checkpoint_every: int = 100,
    resume: bool = False,
    on_message: OnMessage | None = None,
) -> tuple[Tensors, Report]:
    """Train ``model`` with the learner's loss on ``data`` by ``recipe``; the trained model, on every rank.

    All ranks of ``group`` (None: this process alone) call it with the same arguments and all of the data. ``name`` is
    the learner's, stored with the saved steps. ``checkpoints``: a folder that all ranks see, in which every
    ``checkpoint_every``-th step and the last are saved; with ``resume`` training continues from the newest complete
    one. ``on_message`` receives the progress, on rank 0.

    Raises the errors of ``client_sdk.learning.errors`` and ``.group``, each on one rank, RankFailed on the others.
    """
    ranks = group or Group()
    report: OnMessage = on_message if on_message is not None and ranks.rank == 0 else _ignore
    if ranks.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(ranks.device)
    with seeded(recipe.seed, 0, ""):
        job = _prepared(learner, model, data, recipe, ranks)
        saved, step, due = None, 0, False
        if checkpoints is not None:
            with uncollected():
                from coordinator.datacenter.checkpoints import Checkpoints  # a second of imports

            saved = Checkpoints(checkpoints, ranks, _about(name, model, len(job.examples), recipe))
            saved.apart = job.gradient.own_state and not ranks.alone
            found = saved.open(resume)
            if found is not None:
                _check_ahead(found, recipe, checkpoints, ranks)
                job.restore(saved, found, report)
                step = found
        gradient = job.gradient
        gradient.move = partial(job.move, recipe, Group() if gradient.by_itself else ranks)
        report({"event": "started", "world": ranks.world, "device": str(ranks.device), "parameters": job.parameters,
               "examples": len(job.examples), "steps": recipe.steps, "step": step})  # fmt: skip
        began, started, spent, seen, loss = step, time.monotonic(), time.process_time(), 0, math.nan
        meter = Meter(report)
        try:
            gradient.begin(step)
            while step < recipe.steps:
                seed_generators(recipe.seed, step, f"rank {gradient.place}")
                at, before = step, seen
                total, weight, examples, step = gradient.step(job.examples, job.order.at(at), at, recipe.steps)
                loss = total / weight if weight else 0.0
                seen += examples
                for reason in gradient.news():
                    report({"event": "worker_lost", "reason": reason})
                fields = {"step": step, "steps": recipe.steps, "loss": loss,
                          "learning_rate": recipe.learning_rate_at(at)}  # fmt: skip
                meter.step(fields, seen - before, gradient.communication_s)
                due = due or step // checkpoint_every > at // checkpoint_every or step == recipe.steps
                if saved is not None and due and gradient.together:
                    gradient.settle()
                    job.save(saved, step)
                    due = False
                    report({"event": "saved", "step": step})
        finally:
            gradient.close()
        seconds, spent = time.monotonic() - started, time.process_time() - spent
        trained = job.result(ranks)
    return trained, Report(
        steps=step,
        began=began,
        loss=loss,
        examples_seen=seen,
        seconds=seconds,
        cpu_s=spent,
        samples_per_s=seen / seconds if seen else 0.0,
        gradient_bytes=gradient.sent,
        saved_bytes=gradient.saved_bytes,
        peak_bytes=torch.cuda.max_memory_allocated(ranks.device) if ranks.device.type == "cuda" else None,
        staleness=gradient.staleness,
        world=ranks.world,
        device=str(ranks.device),
    )


@dataclass(eq=False, kw_only=True)
class _Job:
    """A module in training, with its optimizer and scaler."""

    module: nn.Module
    gradient: GlobalGradient
    examples: TensorExamples
    order: GlobalOrder
    optimizer: torch.optim.Optimizer | None
    """None: this rank moves nothing."""
    scaler: torch.amp.GradScaler | None
    parameters: int
    """Numbers that are trained."""
    left_out: Tensors
    """The floating-point tensors that the recipe does not choose: they stay as they are, also those that a forward
    pass moves, such as BatchNorm's statistics."""

    def restore(self, saved: Checkpoints, step: int, report: OnMessage) -> None:
        scaler = saved.load(step, self.module, self.optimizer)
        if self.scaler is not None and scaler is not None:
            self.scaler.load_state_dict(scaler)
        kept, world = saved.kept(step)
        self.gradient.restored(kept)
        if self.gradient.compressor is not None and world != self.gradient.compressor.group.world:
            here = self.gradient.compressor.group.world
            reason = f"What {world} processes had not sent yet is shared out over {here}."
            report({"event": "shared_out", "reason": reason})

    def save(self, saved: Checkpoints, step: int) -> None:
        saved.save(
            step, self.module, self.optimizer, self.scaler_state(), self.gradient.kept, shared=self.gradient.shared
        )

    def move(self, recipe: Recipe, group: Group, step: int, part: float) -> None:
        """Clip and step, at this part of the learning rate. Ranks that move the same hold the same gradients, so all
        results agree. A parameter that the loss did not reach has a gradient of zero, and so an optimizer state like
        the others. Sparse gradients are made dense for a recipe's optimizer; a learner's own may need them."""
        if self.optimizer is None:
            return
        set_learning_rate(self.optimizer, recipe.learning_rate_at(step) * part)
        for weight in self.gradient.owned:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            elif recipe.optimizer != "learner" and self.gradient.keeps_rows and weight.grad.is_sparse:
                move_rows(weight, recipe.learning_rate_at(step) * part)
            elif recipe.optimizer != "learner":
                dense_gradient(weight)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if recipe.max_grad_norm is not None and not self._overflowed():
            try:
                self.gradient.clip(recipe.max_grad_norm, step + 1)
            except Diverged as error:
                group.agree(error if group.rank == 0 else None)
        try:
            with explained(f"at step {step + 1}, where its optimizer moves the weights"):
                if self.scaler is None:
                    self.optimizer.step()
                else:
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
        except LearnerFailed as error:
            group.agree(error)

    def scaler_state(self) -> dict[str, Any] | None:
        return None if self.scaler is None else self.scaler.state_dict()

    def result(self, group: Group) -> Tensors:
        """The trained model, whole on every rank. Diverged, on one rank, where a trained number is not finite."""
        tensors = {
            name: (self.gradient.whole(name, one), isinstance(one, nn.Parameter) and one.requires_grad)
            for name, one in state.named_tensors(self.module).items()
        }
        bad = next((name for name, (value, own) in tensors.items() if own and not value.isfinite().all()), None)
        found = Diverged(f"After training {bad} holds numbers that are not finite: try a smaller learning rate.")
        group.agree(found if bad is not None and group.rank == 0 else None)
        return {name: state.host(name, value).copy() for name, (value, _) in tensors.items()} | self.left_out

    def _overflowed(self) -> bool:
        """Whether scaled gradients overflowed float16: then the scaler skips the step and lowers its scale."""
        return self.scaler is not None and any(
            p.grad is not None and not p.grad.isfinite().all() for p in self.gradient.params
        )


def _prepared(learner: Learner, model: Tensors, data: Any, recipe: Recipe, group: Group) -> _Job:
    """Check, on every rank, everything that can be wrong before training; one rank raises the error."""
    error: Exception | None = None
    count = 0
    try:
        if not isinstance(learner, Learner):
            raise LearnerFailed(f"A {type(learner).__name__} cannot be trained here: only a torch Learner can.")
        examples = as_examples(training_part(data), "training data")
        count = len(examples)
        _check_fit(recipe, count, group)
        scaler = torch.amp.GradScaler("cuda") if recipe.precision == "float16" else None
        module = learner.load(model)
        sent = state.sent_names(Manifest.of(model), recipe.averaged or learner.averaged, learner.averaged)
        params = freeze(state.named_tensors(module), sent)
        counted = sum(weight.numel() for weight in params)
        order = GlobalOrder(count, recipe.batch_size, recipe.seed)
        pieces = recipe.accumulate if recipe.mesh is None else max(2, recipe.accumulate)
        if group.alone or (recipe.mesh is None and recipe.shard in ("none", "optimizer")):
            module.to(group.device)  # else what divides it moves it part by part: the whole need not fit
        module = for_group(module, group, accumulate=pieces, smallest=order.smallest)
    except Exception as found:  # noqa: BLE001  (after any error the other ranks must not wait for this one)
        error = found
    group.agree(error)
    group.same_data(count)
    try:
        gradient = _strategy(recipe, group, learner, examples)(
            module,
            params,
            learner.loss,
            group,
            floating=floating_of(module),
            accumulate=recipe.accumulate,
            precision=recipe.precision,
            scaler=scaler,
            bucket_mb=recipe.bucket_mb,
            unreached=Unreached.ZERO if recipe.unused_parameters else Unreached.REFUSED,
            blocks=learner.blocks,
            recompute=recipe.recompute,
            compressor=None if group.alone else compressor_of(recipe, group),
        )
        with uncollected():  # torch imports its compiler for the first optimizer of a process
            optimizer = make_optimizer(recipe, learner, gradient.owned) if gradient.owned else None
    except (RankFailed, RanksDiffer, GroupLost):
        raise
    except Exception as found:  # noqa: BLE001
        error = found
    group.agree(error)
    return _Job(
        module=module,
        gradient=gradient,
        examples=examples,
        order=order,
        optimizer=optimizer,
        scaler=scaler,
        parameters=counted,
        left_out={name: model[name] for name in state.sent_names(Manifest.of(model), ("*",), ("*",)) - sent},
    )


def compressor_of(recipe: Recipe, group: Group) -> Compressor | None:
    match recipe.compress:
        case "none":
            return None
        case "fp16" | "bf16":
            return Halves(group, torch.float16 if recipe.compress == "fp16" else torch.bfloat16)
        case "powersgd":
            return PowerSGD(group, recipe.compress_rank, recipe.seed)
        case "topk":
            return TopK(group, recipe.compress_density, recipe.momentum if recipe.optimizer == "sgd" else 0.0)
        case "1bit" | "2bit":
            return Bits(group, int(recipe.compress[0]))
        case _:
            assert_never(recipe.compress)


def _strategy(
    recipe: Recipe, group: Group, learner: Learner, examples: TensorExamples
) -> Callable[..., GlobalGradient]:
    if recipe.hogwild:
        every_row = recipe.optimizer in ("lars", "lamb") or bool(recipe.momentum or recipe.weight_decay)
        return partial(Hogwild, moves_all=recipe.optimizer != "learner" and every_row)
    if group.alone:
        return GlobalGradient
    if recipe.server is not None:
        return partial(Served, server=recipe.server, rate=recipe.learning_rate_at)
    if recipe.mesh is not None:
        from client_sdk.learning.mesh import MeshGradient  # half a second of imports

        return partial(
            MeshGradient,
            mesh=recipe.mesh,
            shard=recipe.shard,
            schedule=recipe.schedule,
            tensor=learner.tensor,
            examples=examples,
            batch_size=recipe.batch_size,
        )
    if not recipe.sync_every:
        return _STRATEGIES[recipe.shard]
    return partial(
        LocalSteps,
        every=recipe.sync_every,
        outer_learning_rate=recipe.outer_learning_rate,
        outer_momentum=recipe.outer_momentum,
        within=recipe.sync_within,
    )


_STRATEGIES: dict[str, type[GlobalGradient]] = {
    "none": GlobalGradient,
    "optimizer": OptimizerShards,
    "gradients": GradientShards,
    "full": FullShards,
}


def _check_fit(recipe: Recipe, examples: int, group: Group) -> None:
    if recipe.batch_size > examples:
        raise DataError(f"A batch of {recipe.batch_size} does not fit: the training data has {examples} examples.")
    mesh = recipe.mesh
    if mesh is not None and mesh.size != group.world:
        raise LearnerFailed(f"The mesh has {mesh.size} places ({mesh.text}), and there are {group.world} processes.")
    if mesh is None and recipe.batch_size < group.world:
        raise DataError(
            f"A batch of {recipe.batch_size} cannot be split over {group.world} processes: "
            f"take at most {recipe.batch_size}, or a larger batch."
        )
    if recipe.precision == "float16" and group.device.type != "cuda":
        raise LearnerFailed("float16 needs a GPU: on a CPU take bfloat16 or float32.")


def _check_ahead(found: int, recipe: Recipe, folder: Path, group: Group) -> None:
    """CheckpointMismatch, on rank 0, where the saved steps exceed the steps of this training."""
    if found > recipe.steps:
        text = f"{folder} holds a training that has reached step {found}, and the recipe has {recipe.steps}."
        group.agree(CheckpointMismatch(text) if group.rank == 0 else None)


def _about(name: str, model: Tensors, examples: int, recipe: Recipe) -> dict[str, Any]:
    kinds = [[key, f"{spec.dtype} {list(spec.shape)}"] for key, spec in Manifest.of(model).items()]
    return {
        "learner": name,
        "model": kinds,
        "first": digest(to_bytes(model)),
        "examples": examples,
        "recipe": recipe.model_dump(mode="json"),
    }


def _ignore(message: dict[str, Any]) -> None:
    return None
