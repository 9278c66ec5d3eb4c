"""What one rank of a group differentiates at a step: the loss of its share, weighted so that the ranks' mean is that
of the whole batch.

With B the examples of the global batch, n_r those of rank r of p, and l_r the mean loss over them, every rank
differentiates (n_r p / B) l_r, and the ranks' gradients are averaged::

    (1/p) sum_r (n_r p / B) grad l_r  =  (1/B) sum_r n_r grad l_r  =  grad of the mean over the whole batch

which holds for uneven shares too. Of a loss that gives pairs (s_r, w_r), every rank differentiates (p / B) s_r, and the
sum W of the weights is known when the gradients are: these are then scaled by B / W (``sync_sgd``).

The values that ranks exchange at each step (the sums of losses and weights, whether a loss is not finite, whether a
rank failed) are *part of* that average: they are the gradient of a few extra parameters that no optimizer moves. So
they need no extra message, and all ranks get them at the same step, before any optimizer moves.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from client_sdk.learning.errors import LearnerFailed, LearningError
from client_sdk.learning.evaluation import explained
from client_sdk.learning.group import Group
from client_sdk.learning.measures import Measurement, detached, pair_of
from client_sdk.learning.unreached import reach_all, with_sparse_gradients


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
    ) -> None:
        """``measures`` gets this rank's examples. ``marked``: whether every parameter is marked as reached at every
        step."""
        super().__init__()
        self.module = module
        trained = [weight for weight in module.parameters() if weight.requires_grad]
        wide = trained[0].dtype if trained[0].dtype in (torch.float32, torch.float64) else torch.float32
        self.reported = nn.Parameter(torch.zeros(4, dtype=wide, device=group.device))
        self.error: LearningError | None = None
        self.paired = False
        """Whether the loss gives pairs."""
        self._trained, self._loss, self._measures, self._marked = trained, loss, measures, marked
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
            self.error, marked = self.error or error, True
            share = self.reported.new_zeros(())
            entries = [self.reported.new_zeros(()) for _ in range(len(self.reported) - 1)] + [
                self.reported.new_ones(())
            ]
        if self._scaler is not None:
            share = self._scaler.scale(share)
        whole = share + (self.reported * torch.stack(entries)).sum()
        return reach_all(whole, self._trained, self._sparse) if marked else whole

    def _measured(self, here: explained, inputs: Any, targets: Any, size: int) -> tuple[torch.Tensor, float]:
        """The loss that is differentiated, of a pair its sum, and the weight. Metrics get the outputs."""
        context: AbstractContextManager[Any] = nullcontext()
        if self._autocast is not None:
            context = torch.autocast(self._group.device.type, self._autocast)
        with context:
            outputs = self.module(inputs)
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
