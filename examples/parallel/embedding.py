"""An embedding table too large for one device: its rows are divided over the ranks, and only used rows move.

Each rank asks the owners of the rows that its batch names, once for each row. The gradients of those rows go back the
same way, and the owner updates them alone, by a sparse optimizer: what is sent and computed grows with the batch, not
with the table. The rest of the model is on all ranks, as in data parallelism. Recommenders are trained in this way.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from examples.parallel.exchange import all_to_all, apart, divided, held, owner, sum_gradients, to_receive


class Table(nn.Module):
    """This rank's rows of a table, which finds those of all ranks."""

    def __init__(self, whole: Tensor) -> None:
        super().__init__()
        self.rows, self.mine = len(whole), divided(len(whole), "rows")
        self.local = nn.Embedding.from_pretrained(whole[self.mine].clone(), freeze=False, sparse=True)
        self.asked = torch.empty(0, dtype=torch.int64)
        """The rows that the last batch of all ranks wanted of this one."""

    def forward(self, ids: Tensor) -> Tensor:
        wanted, place = ids.unique(return_inverse=True)  # sorted, so those of an owner stand together
        sent = owner(wanted, self.rows).bincount(minlength=dist.get_world_size()).tolist()
        received = to_receive(sent)
        self.asked = all_to_all(wanted, sent, received)
        found = self.local(self.asked - self.mine.start)
        return all_to_all(found, received, sent)[place]


class Found(NamedTuple):
    difference: float
    """The largest difference of a weight after training, from one process that has the whole table."""
    touched: int
    """How many of this rank's rows a batch has used."""
    moved: bool
    """Whether a row has changed that no batch has used."""


def compare(rows: int = 50, batch: int = 9, steps: int = 5) -> Found:
    """Train a table and a linear layer. Each rank has its part of a batch, whose examples are three rows each."""
    torch.manual_seed(0)
    start, head = torch.randn(rows, 4).double(), nn.Linear(4, 3).double()
    whole, whole_head = nn.Embedding.from_pretrained(start.clone(), freeze=False, sparse=True), nn.Linear(4, 3).double()
    whole_head.load_state_dict(head.state_dict())
    table = Table(start)
    optimizers = [torch.optim.SparseAdam(part.parameters(), lr=0.1) for part in (whole, table)]
    optimizers += [torch.optim.SGD(part.parameters(), lr=0.1) for part in (whole_head, head)]
    used = set()
    for _ in range(steps):
        ids, labels = torch.randint(rows, (batch, 3)), torch.randint(3, (batch,))
        for optimizer in optimizers:
            optimizer.zero_grad()
        cross_entropy(whole_head(whole(ids).mean(1)), labels).backward()
        mine = held(batch)
        loss = cross_entropy(head(table(ids[mine]).mean(1)), labels[mine], reduction="sum") / batch
        loss.backward()
        sum_gradients(head.parameters())
        for optimizer in optimizers:
            optimizer.step()
        used |= set(table.asked.tolist())
    difference = apart([whole.weight[table.mine], *whole_head.parameters()], [*table.parameters(), *head.parameters()])
    changed = (table.local.weight != start[table.mine]).any(1).nonzero().flatten() + table.mine.start
    return Found(difference, len(used), not set(changed.tolist()) <= used)
