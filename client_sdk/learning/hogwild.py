"""Hogwild: the processes of one machine move the same weights, in shared memory, without locks (Niu et al. 2011,
arXiv:1106.5730).

Each process takes its share of each batch, at its own pace, and moves the weights by its gradient, with an optimizer of
its own, at n/B of the learning rate for n of the batch's B examples. Two that write at once may each lose a part of the
other's step; where gradients are sparse they seldom meet. A sparse gradient touches its own rows and no other: with an
optimizer that moves all rows at every step (momentum, decay, LARS, LAMB) it is refused.

Beside the weights the processes share a table of numbers, by which each sees how far the others are, and whether one
has failed. They wait for each other before a save and at the end. One process alone is the plain loop, to the bit.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from client_sdk.learning import state
from client_sdk.learning.data import TensorExamples
from client_sdk.learning.errors import LearnerFailed, LearningError
from client_sdk.learning.group import Group, GroupLost, with_sparse_gradients
from client_sdk.learning.sync_sgd import GlobalGradient, Taken, own_buffers, require_no_statistics

STEP, TOTAL, WEIGHT, EXAMPLES, FAILED = range(5)
"""What a rank tells the others: steps done, sum and weight of its last loss, examples in all, whether it has failed."""
_LOOK_S = 0.001
MEMORY = Path("/dev/shm")  # noqa: S108  (files that are memory, on Linux; each has a name that was drawn)


class Hogwild(GlobalGradient):
    """``moves_all``: whether the optimizer moves rows without a gradient."""

    by_itself, own_state, keeps_rows = True, True, True

    def __init__(
        self,
        module: nn.Module,
        params: list[nn.Parameter],
        loss: Any,
        group: Group,
        *,
        moves_all: bool,
        **options: Any,
    ) -> None:
        group.same_everywhere(state.named_tensors(module))
        self._ranks, self._module, self._compared, self._seen = group, module, False, 0
        super().__init__(module, params, loss, Group(device=group.device), **options)
        found = ""
        if group.device.type != "cpu":
            found = "hogwild shares the memory of CPUs: take --device cpu."
        elif moves_all and with_sparse_gradients(module):
            found = (
                "hogwild moves no row of an embedding with sparse gradients that a batch has not used, and this "
                "optimizer moves all: take sgd without momentum and weight_decay, or the learner's own."
            )
        if found:
            raise LearnerFailed(found)
        self._map_memory()

    @property
    def place(self) -> int:
        return self._ranks.rank

    @property
    def sent(self) -> int:
        return 0

    def begin(self, step: int) -> None:
        self._told[self._ranks.rank] = 0.0
        self._told[self._ranks.rank, STEP] = step
        self._ranks.agree(None)

    def step(self, examples: TensorExamples, batch: torch.Tensor, step: int, steps: int) -> Taken:
        own = batch.tensor_split(self._ranks.world)[self._ranks.rank]
        mine = self._told[self._ranks.rank]
        error: LearningError | None = None
        try:
            if len(own):
                mine[TOTAL], mine[WEIGHT] = self.compute(examples, own, step)
        except LearningError as found:
            error = found
        if not self._compared:
            self._compared = True
            require_no_statistics(own_buffers(self._module), self._ranks)
        try:
            if len(own) and error is None:
                self.move(step, len(own) / len(batch))
        except LearningError as found:
            error = found
        mine[EXAMPLES] += len(own)
        mine[FAILED] = float(error is not None)
        mine[STEP] = step + 1
        if self._told[:, FAILED].any():
            self._ranks.agree(error)
        if step + 1 == steps:
            self.settle()
        total, weight, seen = self._told[:, [TOTAL, WEIGHT, EXAMPLES]].sum(0).tolist()
        moved, self._seen = int(seen) - self._seen, int(seen)
        return Taken(total, weight, moved, step + 1)

    def settle(self) -> None:
        """A rank that makes no step for as long as one may hang is not waited for."""
        here, last, since = self._told[self._ranks.rank, STEP], self._told.sum(), time.monotonic()
        while bool((self._told[:, STEP] < here).any()) and not self._told[:, FAILED].any():
            time.sleep(_LOOK_S)
            if (now := self._told.sum()) != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > self._ranks.hang_s:
                raise GroupLost(f"A rank made no step for {self._ranks.hang_s:g} s.")
        self._ranks.agree(None)

    @torch.no_grad()
    def _map_memory(self) -> None:
        """Give the trained parameters memory that all ranks have: a file of the machine, removed at once."""
        kinds = {one.dtype: 0 for one in self.params}
        world, bytes_ = self._ranks.world, 5 * 8 * self._ranks.world
        for kind in kinds:
            kinds[kind], size = bytes_, sum(one.numel() for one in self.params if one.dtype is kind)
            bytes_ += -(-size * kind.itemsize // 8) * 8
        handle, path, found = -1, "", ""
        if self._ranks.rank == 0:
            try:
                handle, path = tempfile.mkstemp(prefix="quorate-", dir=MEMORY if MEMORY.is_dir() else None)
                os.posix_fallocate(handle, 0, bytes_)  # or a page that is not there would end the process later
            except OSError as error:
                found = f"hogwild needs {bytes_:,} bytes of shared memory: {error.strerror}."
        place = Path(self._ranks.hand_out(path.encode() or None).decode())
        try:
            memory = None
            try:
                with place.open("r+b") as file:
                    memory = mmap.mmap(file.fileno(), bytes_)
            except (OSError, ValueError):
                found = found or (
                    f"hogwild shares the memory of one machine, and rank {self._ranks.rank} is on another than rank 0."
                )
            if found := next(filter(None, self._ranks.gather(found)), ""):
                raise LearnerFailed(found)
            self._told = torch.frombuffer(memory, dtype=torch.float64, count=5 * world).view(world, 5)
            for kind, start in kinds.items():
                own = [one for one in self.params if one.dtype is kind]
                flat = torch.frombuffer(memory, dtype=kind, count=sum(one.numel() for one in own), offset=start)
                for weight, part in zip(own, flat.split([one.numel() for one in own]), strict=True):
                    if self._ranks.rank == 0:
                        part.copy_(weight.reshape(-1))
                    weight.data = part.view(weight.shape)
            self._ranks.agree(None)
        finally:
            if handle >= 0:
                os.close(handle)
                place.unlink(missing_ok=True)


@torch.no_grad()
def move_rows(table: nn.Parameter, learning_rate: float) -> None:
    """w <- w - lr g, of the rows of a sparse gradient alone, with the bits of a dense step."""
    if table.grad is not None:
        places, values = table.grad._indices()[0], table.grad._values()
        rows, which = torch.unique(places, return_inverse=True)
        sums = torch.zeros(len(rows), table.shape[1], dtype=table.dtype).index_add_(0, which, values)
        table[rows] = table[rows].add_(sums, alpha=-learning_rate)
        table.grad = None
