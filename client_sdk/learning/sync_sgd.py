"""Synchronous SGD: the gradient of the mean loss over a global batch, computed by all ranks of a group together.

Each rank differentiates its own weighted loss (``rank_loss``), and DistributedDataParallel takes the mean of the ranks'
gradients. A rank without an example takes one of the batch at weight zero, so that every rank joins every all-reduce.
With accumulation the same weights apply to each micro-batch, and only the last is reduced.

``GlobalGradient`` has a whole model on every rank. What divides it over the ranks is a class of its own with the same
methods (``sharding``): trainers know no other difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from client_sdk.learning import state
from client_sdk.learning.compression import Compressor, hook_of
from client_sdk.learning.data import TensorExamples, cast
from client_sdk.learning.errors import Diverged, LearnerFailed, LearningError
from client_sdk.learning.evaluation import explained
from client_sdk.learning.group import Group, RankFailed, Unreached, reach_all, with_sparse_gradients
from client_sdk.learning.local_sgd import clip
from client_sdk.learning.measures import Measurement, detached, pair_of

# ------------------------------------------------------------ rank loss
# What one rank of a group differentiates at a step: the loss of its share, weighted so that the ranks' mean is that
# of the whole batch.
#
# With B the examples of the global batch, n_r those of rank r of p, and l_r the mean loss over them, every rank
# differentiates (n_r p / B) l_r, and the ranks' gradients are averaged::
#
#     (1/p) sum_r (n_r p / B) grad l_r  =  (1/B) sum_r n_r grad l_r  =  grad of the mean over the whole batch
#
# which holds for uneven shares too. Of a loss that gives pairs (s_r, w_r), every rank differentiates (p / B) s_r, and
# the sum W of the weights is known when the gradients are: these are then scaled by B / W (``sync_sgd``).
#
# The values that ranks exchange at each step (the sums of losses and weights, whether a loss is not finite, whether a
# rank failed) are *part of* that average: they are the gradient of a few extra parameters that no optimizer moves. So
# they need no extra message, and all ranks get them at the same step, before any optimizer moves.


class RankLoss(nn.Module):
    """The module with its loss, as one module whose output is the scalar to differentiate, plus the values that the
    ranks exchange."""

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Any, Any], Any],
        measures: Measurement | None,
        group: Group,
        autocast: torch.dtype | None = None,
        scaler: torch.amp.GradScaler | None = None,
        marked: bool = False,
        stays: bool = True,
    ) -> None:
        """``measures`` gets this rank's examples. ``marked``: whether every parameter is marked as reached at every
        step. ``stays``: whether a rank whose learner failed still takes part in the step."""
        super().__init__()
        self.module = module
        trained = [weight for weight in module.parameters() if weight.requires_grad]
        wide = trained[0].dtype if trained[0].dtype in (torch.float32, torch.float64) else torch.float32
        self.reported = nn.Parameter(torch.zeros(4, dtype=wide, device=group.device))
        self.error: LearningError | None = None
        self.paired = False
        """Whether the loss gives pairs."""
        self._trained, self._loss, self._measures, self._marked = trained, loss, measures, marked
        self._stays = stays
        self._sparse = with_sparse_gradients(module)
        self._group, self._autocast, self._scaler = group, autocast, scaler

    def forward(self, fetch: Callable[[], tuple[Any, Any]], size: int, total: int, where: str) -> torch.Tensor:
        """The weighted loss of ``size`` of ``total`` examples. An error of the learner's code is stored in
        ``error`` and sent to all ranks; the rank then still takes part in the step, with gradients of zero."""
        marked = self._marked
        try:
            with explained(where) as here:
                found, weight = self._measured(here, *fetch(), size)
            scale = 1 if self.paired else size
            share = found.to(self.reported) * (scale * self._group.world / total if size else 0.0)
            loss = found.detach().reshape(()).to(self.reported)
            entries = [
                loss * (scale if size else 0),
                self.reported.new_tensor(weight if size else 0.0),
                (~loss.isfinite()).to(self.reported),
                self.reported.new_zeros(()),
            ]
        except LearningError as error:
            if not self._stays:
                raise
            self.error, marked = self.error or error, True
            share = self.reported.new_zeros(())
            entries = [self.reported.new_zeros(()) for _ in range(len(self.reported) - 1)] + [
                self.reported.new_ones(())
            ]
        if self._scaler is not None:
            share = self._scaler.scale(share)
        whole = self.with_told(share, torch.stack(entries))
        return reach_all(whole, self._trained, self._sparse) if marked else whole

    def with_told(self, share: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        """What is differentiated, with what the ranks exchange."""
        return share + (self.reported * entries).sum()

    def outputs_of(self, inputs: Any) -> Any:
        return self.module(inputs)

    def _measured(self, here: explained, inputs: Any, targets: Any, size: int) -> tuple[torch.Tensor, float]:
        """The loss that is differentiated, of a pair its sum, and the weight. Metrics get the outputs."""
        context: AbstractContextManager[Any] = nullcontext()
        if self._autocast is not None:
            context = torch.autocast(self._group.device.type, self._autocast)
        with context:
            outputs = self.outputs_of(inputs)
            here.outputs, here.targets = outputs, targets
            found, weight = self._loss(outputs, targets), float(size)
            self.paired = isinstance(found, tuple)
            if self.paired:
                found, weight = pair_of("loss", found)
            if not isinstance(found, torch.Tensor) or found.numel() != 1:
                kind = (
                    f"tensor of shape {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
                )
                raise LearnerFailed(f"loss gave a {kind}: it must give one number, the batch's mean, or (sum, weight).")
            if not found.requires_grad:
                raise LearnerFailed("The loss does not depend on any trained tensor: nothing can be learned.")
            if self._measures is not None and size:
                with torch.no_grad():
                    self._measures.update(detached(outputs), targets, size)
        return found, weight


# ------------------------------------------------------------ sync sgd


PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Name -> number type of autocast; float32: none, the model's own number type."""


class Taken(NamedTuple):
    """One step of the model, as ``GlobalGradient.step`` has taken it."""

    total: float
    weight: float
    """Of the loss: (sum, weight)."""
    examples: int
    """Examples whose gradients moved the model since the step before."""
    next: int
    """The step that comes now."""


class GlobalGradient:
    """Computes gradients of ``module``'s mean loss over global batches, one call a step.

    ``module`` lies on the group's device. ``measures`` gets this rank's examples. ``accumulate``: micro-batches that a
    rank's share is cut into. ``precision`` as in PRECISIONS; ``scaler`` scales losses for float16, and the caller
    unscales before its step. ``bucket_mb``: size of the all-reduces, which overlap with the rest of backward.
    ``unreached``: what becomes of a parameter that the loss of a step reaches on no rank. ``blocks``:
    ``Learner.blocks``; ``recompute``: whether they are computed again in backward. ``compressor`` exchanges gradients
    in fewer bytes. All ranks make one together;
    the model's digests are compared first (RanksDiffer), and its buffers after the first step: a custom layer may
    compute statistics of its batch.

    ``params``: the trained parameters, as the module has them from then on. ``owned``: those that this rank's optimizer
    moves, after which all ranks call ``moved``.
    """

    _loss_of: type[RankLoss] = RankLoss
    _stays = True
    """Whether a rank whose learner failed can take part in the rest of the step."""
    by_itself = False
    """Whether an error of this rank's optimizer is not one of all ranks, at the same time."""
    own_state = False
    """Whether each rank has an optimizer for all parameters, with a state of its own."""
    keeps_rows = False
    """Whether sparse gradients stay sparse, for any optimizer."""
    staleness: tuple[int, ...] = ()
    """How many gradients were so many steps of the model old when they moved it."""
    move: Callable[[int, float], None]
    """Has this rank's optimizer move what it owns, with this part of the learning rate of a step; set by who trains."""

    def __init__(
        self,
        module: nn.Module,
        params: list[nn.Parameter],
        loss: Callable[[Any, Any], Any],
        group: Group,
        *,
        floating: torch.dtype,
        measures: Measurement | None = None,
        accumulate: int = 1,
        precision: str = "float32",
        scaler: torch.amp.GradScaler | None = None,
        bucket_mb: float = 25.0,
        unreached: Unreached = Unreached.REFUSED,
        blocks: Sequence[str] = (),
        recompute: bool = False,
        compressor: Compressor | None = None,
    ) -> None:
        group.same_everywhere(state.named_tensors(module))
        self._group, self._floating = group, floating
        self._share = group
        """The ranks with which this one divides batches."""
        self._accumulate, self._unreached, self._blocks = accumulate, unreached, blocks
        self.compressor = compressor
        if compressor is not None and with_sparse_gradients(module):
            raise LearnerFailed("An embedding with sparse gradients cannot be compressed: take compress = 'none'.")
        if recompute:
            recompute_blocks(module, blocks)
        self.params = self._prepared(module, params)
        searched = unreached is Unreached.ABSENT
        marked = unreached is Unreached.ZERO and not group.alone and self._stays
        self._losses = self._loss_of(
            module, loss, measures, self._share, PRECISIONS[precision], scaler, marked, self._stays
        )
        if searched and not group.alone:  # DDP warns on the terminal where it finds no unused parameters
            self._losses.register_parameter("idle", nn.Parameter(self._losses.reported.new_zeros(1)))
        self._losses.train()
        self._ddp: DistributedDataParallel | None = None
        self._waited = (0, 0.0)
        self._steps = 0
        self.saved_bytes = 0
        """What the forward pass of the first step stored for the backward pass on this rank, parameters aside; of
        micro-batches, of the first."""
        self._kept: dict[str, torch.Tensor] = {}
        self._buffers = own_buffers(module)
        if not group.alone and self._stays:
            with group.unbroken():
                self._ddp = DistributedDataParallel(
                    self._losses,
                    process_group=group.only,
                    device_ids=[group.device] if group.device.type == "cuda" else None,
                    bucket_cap_mb=bucket_mb,
                    gradient_as_bucket_view=True,
                    find_unused_parameters=searched,
                )
            self._ddp._set_ddp_runtime_logging_sample_rate(1)
            if compressor is not None:
                names = {id(weight): name for name, weight in module.named_parameters()}
                self._ddp.register_comm_hook(None, hook_of(compressor, names))

    def _prepared(self, module: nn.Module, params: list[nn.Parameter]) -> list[nn.Parameter]:
        """The trained parameters, after the module was divided over the ranks."""
        return params

    @property
    def place(self) -> int:
        """Which random numbers the layers of this rank draw: others than ranks of another place."""
        return self._group.rank

    def whole(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """One of the module's tensors, on the CPU, whole on every rank. All ranks call it, for each in the same
        order."""
        return tensor.detach().cpu()

    @property
    def owned(self) -> list[nn.Parameter]:
        return self.params

    @property
    def sent(self) -> int:
        """Bytes that this rank has handed to the exchange of gradients."""
        if self.compressor is not None:
            return self.compressor.sent
        return 0 if self._group.alone else self._steps * sum(w.numel() * w.element_size() for w in self.params)

    @property
    def together(self) -> bool:
        """Whether all ranks have the same model, so that a step can be saved."""
        return True

    @property
    def kept(self) -> dict[str, torch.Tensor]:
        """What the next step needs beside the model and the optimizer, on this rank."""
        return self._kept if self.compressor is None else self.compressor.kept

    @property
    def shared(self) -> frozenset[str]:
        """Names in ``kept`` that are the same on all ranks."""
        return frozenset() if self.compressor is None else self.compressor.shared()

    def restored(self, kept: dict[str, torch.Tensor]) -> None:
        """Go on with what was kept, and with the model as it is now."""
        self.kept.clear()
        self.kept.update(kept)

    def begin(self, step: int) -> None:
        """Before the first call of ``step``, with the model as it is then. All ranks call it."""

    def step(self, examples: TensorExamples, batch: torch.Tensor, step: int, steps: int) -> Taken:
        """Take ``step`` of so many, over the global ``batch``. Raises as ``compute`` and ``move``."""
        found = self.compute(examples, batch, step)
        self.move(step, 1.0)
        found = self.moved(step + 1 == steps) or found
        return Taken(*found, len(batch), step + 1)

    def settle(self) -> None:
        """Wait until the whole model is on every rank, and nothing moves it: it can be saved. All ranks call it."""

    def close(self) -> None:
        """After the last step, or an error."""

    def news(self) -> list[str]:
        """What has happened since the last call that an operator should know, as sentences; on rank 0."""
        return []

    def moved(self, last: bool) -> tuple[float, float] | None:
        """Give all ranks what each rank's optimizer has moved. ``last``: whether no step follows. Where ranks tell each
        other their losses only now, (sum, weight) of these; else None."""
        return None

    def clip(self, max_norm: float, step: int) -> None:
        """As ``local_sgd.clip``: by the norm of the whole gradient, on every rank alike."""
        clip(self.params, max_norm, step)

    def compute(self, examples: TensorExamples, batch: torch.Tensor, step: int) -> tuple[float, float]:
        """Put the gradient over the global batch into the parameters, on every rank. Returns (sum, weight) of the loss,
        whose quotient is its mean.

        ``batch`` [B]: the indices of the whole batch, the same on every rank. ``step``, from 0, is for errors only.
        Raises, on all ranks at the same step: the error of the lowest rank that failed (RankFailed on the others),
        Diverged (on rank 0) where any loss is not finite; GroupLost where the group broke.
        """
        for trained in self.params:
            trained.grad = None
        self._losses.reported.grad = None
        self._differentiate(examples, batch, batch.tensor_split(self._share.world)[self._share.rank], step)
        self._steps += 1
        total, weight = self._reported(len(batch), step)
        if self._losses.paired and weight:
            for trained in self.params:
                if trained.grad is not None:
                    trained.grad.mul_(len(batch) / weight)
        self._compare_buffers()
        return total, weight

    def _differentiate(self, examples: TensorExamples, batch: torch.Tensor, own: torch.Tensor, step: int) -> None:
        """Add up the gradients of the rank's ``own`` part of the batch, in micro-batches; all ranks have as many."""
        parts = own.tensor_split(min(self._accumulate, -(-len(batch) // self._share.world)))
        for place, part in enumerate(parts):
            size, some = len(part), part if len(part) else batch[:1]
            where = f"at step {step + 1}, on a batch of {len(some)}"

            def fetch(some: torch.Tensor = some) -> tuple[Any, Any]:
                return self._taken(examples, some)

            with self._explained(where), self._alone_unless(place == len(parts) - 1):
                with saved_bytes(self._losses) if self._steps == place == 0 else nullcontext() as saved:
                    objective = (self._ddp or self._losses)(fetch, size, len(batch), where)
                self.saved_bytes = saved.bytes if saved is not None else self.saved_bytes
                objective.backward()

    def _taken(self, examples: TensorExamples, indices: torch.Tensor) -> tuple[Any, Any]:
        return cast(_moved(examples.take(indices), self._group.device), self._floating)

    def communication_s(self) -> float | None:
        """Mean seconds of a step, since the last call, in which the rank waited for all-reduces (and so for the slowest
        rank) after its own gradients were done. None for a group of one, or where no step was measured."""
        if self._ddp is None:
            return None
        measured: Mapping[str, Any] = self._ddp._get_ddp_logging_data()
        steps = int(measured.get("iteration", 0))
        mean = measured.get("avg_backward_comm_time", 0) - measured.get("avg_backward_compute_comm_overlap_time", 0)
        before, total = self._waited
        if steps <= before:
            return None
        self._waited = (steps, steps * mean / 1e9)
        return max(0.0, self._waited[1] - total) / (steps - before)

    def _reported(self, size: int, step: int) -> tuple[float, float]:
        error, self._losses.error = self._losses.error, None
        if error is None and (found := self._unused(step)):
            # DDP has then not reduced everything: the exchanged values are invalid, and the group is unusable.
            raise LearnerFailed(found) if self._group.first_to("unused") else RankFailed(found)
        reported = self._losses.reported.grad
        if reported is None:
            raise LearnerFailed(f"The loss at step {step + 1} gave no gradient.")
        total, weight, infinite, failed = self._of_all(reported).tolist()
        if failed:
            self._group.agree(error)
        if infinite:
            found = f"The loss at step {step + 1} is not finite: try a smaller learning rate, a warm-up, or clipping."
            self._group.agree(Diverged(found) if self._group.rank == 0 else None)
        return total, weight if self._losses.paired else float(size)

    def _unused(self, step: int) -> str:
        """Which parameters the loss did not reach, where that is refused, as a sentence; empty otherwise."""
        if self._unreached is not Unreached.REFUSED or all(weight.grad is not None for weight in self.params):
            return ""
        mine = {id(weight) for weight in self.params}
        names = [n for n, t in self._losses.module.named_parameters() if id(t) in mine and t.grad is None]
        return (
            f"The loss at step {step + 1} does not depend on {', '.join(names[:3])}: leave out of the learner's "
            "'averaged' what is never used, or allow it with --unused-parameters."
        )

    def _of_all(self, reported: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, of which DDP has taken the mean."""
        return reported * self._group.world if self._ddp is not None else reported

    def _compare_buffers(self) -> None:
        """Once, after the first batch: LearnerFailed, on rank 0, where the ranks' buffers differ. Afterwards DDP would
        silently broadcast those of rank 0."""
        buffers, self._buffers = self._buffers, {}
        require_no_statistics(buffers, self._group)

    def _explained(self, where: str) -> AbstractContextManager[Any]:
        return explained(where) if self._group.alone else self._group.unbroken()

    def _alone_unless(self, last: bool) -> AbstractContextManager[Any]:
        """Whether gradients are exchanged after this micro-batch."""
        return nullcontext() if self._ddp is None or last else self._ddp.no_sync()


class saved_bytes:  # noqa: N801  (used as a context manager)
    """Counts the bytes of tensors that a forward pass stores for the backward pass, but those of the module's
    parameters."""

    def __init__(self, module: nn.Module) -> None:
        self.bytes = 0
        self._module = module
        self._stored: dict[int, torch.UntypedStorage] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._store, lambda tensor: tensor)

    def __enter__(self) -> saved_bytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)
        own = {storage.data_ptr() for tensor in self._module.parameters() if (storage := _storage(tensor)) is not None}
        self.bytes = sum(storage.nbytes() for place, storage in self._stored.items() if place not in own)
        self._stored.clear()

    def _store(self, tensor: torch.Tensor) -> torch.Tensor:
        if (storage := _storage(tensor)) is not None:
            self._stored[storage.data_ptr()] = storage
        return tensor


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The memory of a tensor, of a divided one that of this rank's part; None for sparse tensors, and for those that
    stand for a result that is still on its way."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    plain = type(part) in (torch.Tensor, nn.Parameter) and part.layout is torch.strided
    return part.untyped_storage() if plain else None


def blocks_of(module: nn.Module, patterns: Iterable[str]) -> list[nn.Module]:
    """The modules whose names match one of the shell patterns, but those inside another one; LearnerFailed where none
    matches a pattern."""
    found: dict[str, nn.Module] = {}
    for pattern in patterns:
        matching = {name: part for name, part in module.named_modules() if name and fnmatchcase(name, pattern)}
        if not matching:
            raise LearnerFailed(f"The learner's blocks name {pattern!r}, and no part of the model has such a name.")
        found |= matching
    return [part for name, part in found.items() if not any(name.startswith(f"{outer}.") for outer in found)]


def recompute_blocks(module: nn.Module, patterns: Iterable[str]) -> None:
    """Have each block store its inputs alone, and compute the rest again in backward (Chen et al. 2016,
    arXiv:1604.06174), with the same random numbers: the gradients have the same bits."""
    blocks = blocks_of(module, patterns)
    if not blocks:
        raise LearnerFailed("recompute needs the learner's blocks, which are computed again one by one: name them.")
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def for_group(module: nn.Module, group: Group, *, accumulate: int = 1, smallest: int | None = None) -> nn.Module:
    """The module with normalization layers that see the whole batch, over all ranks.

    Layers that compute statistics of the batch would see one rank's part, or one micro-batch's. On GPUs they become
    SyncBatchNorm, for which every rank needs an example of every batch (``smallest``: the smallest batch there will
    be). Raises LearnerFailed where the statistics would differ from those of one process.
    """
    module.train()
    if group.alone and accumulate == 1:
        return module
    for name, layer in module.named_modules():
        if not isinstance(layer, _NormBase) or not (isinstance(layer, _BatchNorm) or layer.track_running_stats):
            continue
        kind = type(layer).__name__
        found = f"The model's layer {name or kind} is a {kind}, which takes statistics of its batch"
        if accumulate > 1 or not isinstance(layer, _BatchNorm):
            raise LearnerFailed(f"{found}, and each part of a batch has others: use GroupNorm or LayerNorm.")
        if group.device.type != "cuda":
            raise LearnerFailed(
                f"{found}, and each of the {group.world} ranks has others: "
                "use GroupNorm or LayerNorm, or GPUs (SyncBatchNorm), or one process."
            )
        if smallest is not None and smallest < group.world:
            raise LearnerFailed(
                f"{found}: each of the {group.world} ranks needs an example of every batch; "
                f"the smallest has {smallest}."
            )
    return nn.SyncBatchNorm.convert_sync_batchnorm(module) if group.device.type == "cuda" else module


def own_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers by name, except those of SyncBatchNorm, which sees the whole batch."""
    return {
        f"{place}.{name}" if place else name: buffer
        for place, layer in module.named_modules()
        if not isinstance(layer, nn.SyncBatchNorm)
        for name, buffer in layer.named_buffers(recurse=False)
    }


def require_no_statistics(buffers: Mapping[str, torch.Tensor], group: Group) -> None:
    """LearnerFailed, on rank 0, where the ranks' buffers differ after a batch."""
    if (name := group.first_unequal(buffers)) is not None:
        found = (
            f"The model's buffer {name} takes statistics of its batch, and each of the {group.world} ranks has others: "
            "take a model that does not, or one process."
        )
        group.agree(LearnerFailed(found) if group.rank == 0 else None)


def _moved(batch: tuple[Any, Any], device: torch.device) -> tuple[Any, Any]:
    if device.type == "cpu":
        return batch
    inputs, targets = (part.to(device, non_blocking=True) if hasattr(part, "to") else part for part in batch)
    return inputs, targets
