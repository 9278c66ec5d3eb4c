"""A mixture of experts: each rank has some of the experts, and every token goes to the ranks of those that it chose.

A gate, which all ranks have, gives each token the ``k`` experts of the largest weights. One all-to-all brings tokens
to their experts' ranks, a second brings the results back, and a token's result is their weighted sum (Shazeer et al.
2017, arXiv:1701.06538; Lepikhin et al. 2020, arXiv:2006.16668). Experts take all tokens that come. No token is dropped
beyond a capacity, so the rows are those of one process.
"""

from __future__ import annotations

from copy import deepcopy

import torch
import torch.distributed as dist
from torch import Tensor, nn

from examples.parallel.exchange import all_to_all, apart, divided, held, owner, sum_gradients, to_receive


class Mixture(nn.Module):
    """All experts, in one process: each computes every token, and the gate's weight is zero where it was not chosen."""

    def __init__(self, experts: int, width: int, k: int) -> None:
        super().__init__()
        self.k, self.gate = k, nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )

    def choose(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and the numbers of each token's experts."""
        return self.gate(x_TD).softmax(1).topk(self.k)

    def forward(self, x_TD: Tensor) -> Tensor:
        weights_TK, chosen_TK = self.choose(x_TD)
        weights_TE = weights_TK.new_zeros(len(x_TD), len(self.experts)).scatter(1, chosen_TK, weights_TK)
        return sum(weights_TE[:, [e]] * expert(x_TD) for e, expert in enumerate(self.experts))


class SplitMixture(nn.Module):
    """This rank's experts, and all tokens that chose them."""

    def __init__(self, whole: Mixture) -> None:
        super().__init__()
        self.k, self.gate, self.count = whole.k, deepcopy(whole.gate), len(whole.experts)
        self.mine = divided(self.count, "experts")
        self.experts = nn.ModuleList(deepcopy(expert) for expert in whole.experts[self.mine])

    choose = Mixture.choose

    def forward(self, x_TD: Tensor) -> Tensor:
        weights_TK, chosen_TK = self.choose(x_TD)
        order = chosen_TK.flatten().argsort(stable=True)  # by expert, and so by rank
        chosen = chosen_TK.flatten()[order]
        sent = owner(chosen, self.count).bincount(minlength=dist.get_world_size()).tolist()
        received = to_receive(sent)
        tokens, which = all_to_all(x_TD[order // self.k], sent, received), all_to_all(chosen, sent, received)
        done = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts, self.mine.start):
            here = (which == number).nonzero().flatten()
            done = done.index_copy(0, here, expert(tokens[here]))
        weighted = weights_TK.flatten()[order, None] * all_to_all(done, received, sent)
        return torch.zeros_like(x_TD).index_add(0, order // self.k, weighted)


def difference(experts: int = 5, tokens: int = 23, k: int = 2, steps: int = 3) -> float:
    """The largest difference, of a token's row and of a weight after training, from one process with all experts."""
    torch.manual_seed(0)
    whole = Mixture(experts, 6, k).double()
    split = SplitMixture(whole)
    x, y = torch.randn(tokens, 6).double(), torch.randn(tokens, 6).double()
    mine, worst = held(tokens), 0.0
    for _ in range(steps):
        whole.zero_grad()
        rows = whole(x)
        (rows - y).square().mean().backward()
        split.zero_grad()
        found = split(x[mine])
        ((found - y[mine]).square().sum() / y.numel()).backward()
        sum_gradients(split.gate.parameters())
        worst = max(worst, apart([found], [rows[mine]]) if len(found) else 0.0)
        for network in (whole, split):
            torch.optim.SGD(network.parameters(), lr=0.1).step()
    theirs = [*whole.gate.parameters(), *whole.experts[split.mine].parameters()]
    return max(worst, apart(theirs, [*split.gate.parameters(), *split.experts.parameters()]))
