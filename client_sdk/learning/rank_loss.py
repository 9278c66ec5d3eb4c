"""What one rank of a group differentiates at a step: the loss of its share, weighted so that the ranks' mean is that
of the whole batch.

With B the examples of the global batch, n_r those of rank r of p, and l_r the mean loss over them, every rank
differentiates (n_r p / B) l_r, and the ranks' gradients are averaged::

    (1/p) sum_r (n_r p / B) grad l_r  =  (1/B) sum_r n_r grad l_r  =  grad of the mean over the whole batch

which holds for uneven shares too.

The values that ranks exchange at each step (the sum of losses and metrics, whether a loss is not finite, whether a rank
failed) are *part of* that average: they are the gradient of a few extra parameters that no optimizer moves. So they
need no extra message, and all ranks get them at the same step, before any optimizer moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from client_sdk.learning.errors import LearnerFailed, LearningError
from client_sdk.learning.evaluation import Measure, explained
from client_sdk.learning.group import Group
from client_sdk.learning.unreached import reach_all, with_sparse_gradients


class RankLoss(nn.Module):
    """The module with its loss, as one module whose output is the scalar to differentiate, plus the values that the
    ranks exchange."""

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Any, Any], torch.Tensor],
        metrics: Mapping[str, Measure],
        group: Group,
        autocast: torch.dtype | None = None,
        scaler: torch.amp.GradScaler | None = None,
        marked: bool = False,
    ) -> None:
        """``marked``: whether every parameter is marked as reached at every step."""
        super().__init__()
        self.module = module
        trained = [weight for weight in module.parameters() if weight.requires_grad]
        wide = trained[0].dtype if trained[0].dtype in (torch.float32, torch.float64) else torch.float32
        self.reported = nn.Parameter(torch.zeros(3 + len(metrics), dtype=wide, device=group.device))
        self.error: LearningError | None = None
        self._trained, self._loss, self._metrics, self._marked = trained, loss, metrics, marked
        self._sparse = with_sparse_gradients(module)
        self._group, self._autocast, self._scaler = group, autocast, scaler

    def forward(self, fetch: Callable[[], tuple[Any, Any]], size: int, total: int, where: str) -> torch.Tensor:
        """The weighted loss of ``size`` of ``total`` examples. An error of the learner's code is stored in
        ``error`` and sent to all ranks; the rank then still takes part in the step, with gradients of zero."""
        marked = self._marked
        try:
            with explained(where):
                objective, values = self._measured(*fetch())
            share = objective.to(self.reported) * (size * self._group.world / total)
            entries = [
                *(value * size for value in values),
                (~values[0].isfinite()).to(self.reported),
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

    def _measured(self, inputs: Any, targets: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The loss, and the values of loss and metrics without gradients."""
        context: AbstractContextManager[Any] = nullcontext()
        if self._autocast is not None:
            context = torch.autocast(self._group.device.type, self._autocast)
        with context:
            outputs = self.module(inputs)
            objective = self._loss(outputs, targets)
            values = [self._number("loss", objective)]
            if not objective.requires_grad:
                raise LearnerFailed("The loss does not depend on any trained tensor: nothing can be learned.")
            with torch.no_grad():
                values += [
                    self._number(name, metric(outputs.detach(), targets)) for name, metric in self._metrics.items()
                ]
        return objective, values

    def _number(self, name: str, value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            return value.detach().reshape(()).to(self.reported)
        if name != "loss" and isinstance(value, int | float):
            return self.reported.new_tensor(float(value))
        kind = f"tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise LearnerFailed(f"{name} gave a {kind}: it must give one number, the batch's mean.")
