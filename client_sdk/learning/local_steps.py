"""Ranks that train by themselves for several steps, and then average their models: one model crosses the link in so
many steps, where ``GlobalGradient`` sends a gradient in each.

Every rank moves its own weights by its own share of each batch. With ``within`` = k, each k neighbours do so together,
by their mean gradient: ranks of one machine at every step, machines after several (hierarchical averaging: Lin et al.
2020, arXiv:1808.07217, section 5). After ``every`` steps, and after the last, the mean of
the ranks' models, weighted by the examples they had since the mean before, is one step of an *outer* optimizer from
that mean: w <- w - lr (g + momentum v), v <- momentum v + g, with g the difference of the mean before and the mean now.

- lr 1 without momentum is parameter averaging (Stich 2019, arXiv:1805.09767), as federated averaging is. With one step
  in between and SGD inside, it is synchronous SGD.
- lr 0.7 and momentum 0.9, with AdamW inside, is DiLoCo (Douillard et al. 2023, arXiv:2311.08105).

The inner optimizer's state is each rank's own. Norms are clipped by each rank, or by neighbours together. What goes
wrong on a rank is known to the others when they average.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from client_sdk.learning import state
from client_sdk.learning.data import TensorExamples
from client_sdk.learning.errors import Diverged, LearnerFailed, LearningError
from client_sdk.learning.group import Group, GroupLost, RankFailed
from client_sdk.learning.sync_sgd import GlobalGradient, own_buffers, require_no_statistics


class LocalSteps(GlobalGradient):
    """Each ``within`` ranks by themselves, as a group, but for ``moved``."""

    own_state = True

    def __init__(
        self,
        module: nn.Module,
        params: list[nn.Parameter],
        loss: Any,
        group: Group,
        *,
        every: int,
        outer_learning_rate: float,
        outer_momentum: float,
        within: int = 1,
        **options: Any,
    ) -> None:
        group.same_everywhere(state.named_tensors(module))
        if group.world % within:
            raise LearnerFailed(f"sync_within = {within} does not divide the {group.world} processes.")
        super().__init__(module, params, loss, group.neighbours(within), **options)
        self._within = within
        self._ranks, self._every, self._rate, self._momentum = group, every, outer_learning_rate, outer_momentum
        self._module, self._compared = module, False
        self._before = [weight.detach().clone() for weight in self.params]
        self._names = [name for name, tensor in module.named_parameters() if any(tensor is one for one in self.params)]
        self._since = 0
        self._error: LearningError | None = None
        self._heard = torch.zeros(4, dtype=torch.float64)
        """Since the models were averaged: sum and weight of the loss, examples, whether this rank failed."""
        self._bytes = 0

    @property
    def place(self) -> int:
        return self._ranks.rank

    @property
    def together(self) -> bool:
        return self._since == 0

    @property
    def sent(self) -> int:
        return self._bytes + super().sent

    def compute(self, examples: TensorExamples, batch: torch.Tensor, step: int) -> tuple[float, float]:
        """The gradient of this rank and its neighbours, of the mean over their share; (sum, weight) of its loss."""
        own = batch.tensor_split(self._ranks.world // self._within)[self._ranks.rank // self._within]
        if len(own) and self._error is None:
            try:
                total, weight = super().compute(examples, own, step)
                self._heard += torch.tensor([total, weight, len(own), 0.0], dtype=torch.float64) / self._within
                return total, weight
            except GroupLost:
                raise
            except LearningError as error:
                self._error = error
        for trained in self.params:
            trained.grad = None
        return 0.0, 0.0

    def clip(self, max_norm: float, step: int) -> None:
        try:
            super().clip(max_norm, step)
        except Diverged as error:
            self._error = self._error or error

    @torch.no_grad()
    def moved(self, last: bool) -> tuple[float, float] | None:
        """Average the models where it is time. Raises, on all ranks, what went wrong on one since the last time."""
        self._since += 1
        if self._since < self._every and not last:
            return None
        self._heard[3] = float(self._error is not None)
        own = float(self._heard[2])
        with self._ranks.unbroken():
            dist.all_reduce(self._heard)
        total, weight, examples, failed = self._heard.tolist()
        if failed:
            self._ranks.agree(None if isinstance(self._error, RankFailed) else self._error)
        self._compare_own_buffers()
        for kind in dict.fromkeys(one.dtype for one in self.params):
            self._average([n for n, one in enumerate(self.params) if one.dtype is kind], own / examples)
        self._since = 0
        self._heard.zero_()
        return total, weight

    def _average(self, places: list[int], part: float) -> None:
        flat = torch.cat([self.params[n].reshape(-1) for n in places]).mul_(part)
        self._bytes += flat.numel() * flat.element_size()
        with self._ranks.unbroken():
            dist.all_reduce(flat)
        start = 0
        for n in places:
            weight, before = self.params[n], self._before[n]
            mean = flat[start : start + weight.numel()].reshape(weight.shape)
            start += weight.numel()
            if (self._rate, self._momentum) != (1.0, 0.0):
                mean = before - self._rate * self._outward(self._names[n], before - mean)
            weight.copy_(mean)
            before.copy_(mean)

    def _outward(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """The outer gradient with Nesterov's momentum."""
        if not self._momentum:
            return gradient
        fast = self.kept.get(name)
        fast = self.kept[name] = gradient.clone() if fast is None else fast.mul_(self._momentum).add_(gradient)
        return gradient + self._momentum * fast

    @property
    def shared(self) -> frozenset[str]:
        return frozenset(self.kept)

    def restored(self, kept: dict[str, torch.Tensor]) -> None:
        super().restored(kept)
        for before, weight in zip(self._before, self.params, strict=True):
            before.copy_(weight.detach())

    def _compare_own_buffers(self) -> None:
        if self._compared:
            return
        self._compared = True
        require_no_statistics(own_buffers(self._module), self._ranks)
