"""Asynchronous pipelines: what old weights cost, and what keeping or predicting weights gives back. A study.

A model is cut into stages, each on a device of its own. A synchronous step waits until the one before has passed all
stages and come back. An asynchronous pipeline starts a batch whenever its first stage is free; each stage does a
forward and a backward in turn, and updates its weights after each backward. It never idles. But at stage s of S,
counted from 0, a batch meets weights on its way back that are S - 1 - s updates newer than on its way forward:

===========  ==========================================================================================================
synchronous  one batch at a time: the gradient of plain SGD
stale        backward with the newest weights, of activations that older ones made: the gradient of no function
stashing     backward with the weights of the batch's forward, kept for it (PipeDream: Narayanan et al. 2019,
             arXiv:1806.03377): the gradient of a function, at older weights. Costs S - s copies of a stage
momentum     forward with a guess of the weights that the backward will meet: those to which the velocity leads if no
             more gradients come (as DANA: Hakimi et al. 2019, arXiv:1907.11612). No copies are kept
linear       forward with a guess of them: each update until then is the last one again, the velocity times the lag
             (SpecTrain: Chen et al. 2018, arXiv:1809.02839; Kosson et al. 2021, arXiv:2003.11666)
===========  ==========================================================================================================

The stages are played in one process, in ticks: in each a stage does one forward or one backward. They do what devices
would, in the order in which they would.

python -m examples.parallel.pipeline                five seconds of one core
STEPS=50 python -m examples.parallel.pipeline       a quick look
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

WAYS = ("synchronous", "stale", "stashing", "momentum", "linear")


class Stage:
    """A part of the model on a device of its own, with its optimizer: SGD with momentum."""

    def __init__(self, module: nn.Module, ahead: int, way: str, rate: float, momentum: float) -> None:
        self.module, self.ahead, self.way, self.rate, self.momentum = module, ahead, way, rate, momentum
        self.velocity = [torch.zeros_like(weight) for weight in module.parameters()]
        self.updates = 0
        self.lags: list[int] = []
        """For each batch, how many updates there were between its forward and its backward."""
        self.flying: dict[int, tuple[Tensor, Tensor, list[Tensor], int]] = {}

    def weights(self) -> list[Tensor]:
        return [weight.detach().clone() for weight in self.module.parameters()]

    def use(self, weights: list[Tensor]) -> None:
        """Write weights in place, past autograd: what is on its way back will meet them, as it does on a device."""
        for weight, value in zip(self.module.parameters(), weights, strict=True):
            weight.data.copy_(value)

    def predicted(self) -> list[Tensor]:
        """The weights after ``ahead`` more updates, of which each is the last one again, or all are what the velocity
        does without new gradients."""
        decays = [self.momentum ** (k + 1) if self.way == "momentum" else 1 for k in range(self.ahead)]
        pairs = zip(self.weights(), self.velocity, strict=True)
        return [weight - self.rate * sum(decays) * velocity for weight, velocity in pairs]

    def forward(self, batch: int, x: Tensor) -> Tensor:
        newest = self.weights()
        if self.way in ("momentum", "linear"):
            self.use(self.predicted())
        x = x.detach().requires_grad_()
        y = self.module(x)
        self.flying[batch] = x, y, self.weights() if self.way == "stashing" else [], self.updates
        self.use(newest)
        return y.detach()

    def backward(self, batch: int, gradient: Tensor) -> Tensor:
        x, y, stashed, updates = self.flying.pop(batch)
        self.lags.append(self.updates - updates)
        newest = self.weights()
        if self.way == "stashing":
            self.use(stashed)
        self.module.zero_grad()
        y.backward(gradient)
        for weight, velocity in zip(self.module.parameters(), self.velocity, strict=True):
            velocity.mul_(self.momentum).add_(weight.grad)
        self.use([weight - self.rate * velocity for weight, velocity in zip(newest, self.velocity, strict=True)])
        self.updates += 1
        return x.grad


@dataclass
class Trained:
    stages: list[Stage]
    ticks: int = 0
    losses: list[float] = field(default_factory=list)
    """Of all examples, with the newest weights of all stages, after each ``every`` batches."""

    def loss(self, x: Tensor, y: Tensor) -> float:
        with torch.no_grad():
            for stage in self.stages:
                x = stage.module(x)
            return float(mse_loss(x, y))


class Block(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x).tanh()


def problem(stages: int, width: int = 16, examples: int = 512) -> tuple[list[nn.Module], Tensor, Tensor]:
    """The modules of the stages, and examples with the outputs of another model of the same form."""
    torch.manual_seed(0)

    def model() -> list[nn.Module]:
        return [Block(width, width).double() for _ in range(stages)]

    x, teacher, pupil = torch.randn(examples, width).double(), nn.Sequential(*model()), model()
    with torch.no_grad():
        return pupil, x, teacher(x)


def train(
    way: str, steps: int, stages: int = 8, rate: float = 0.3, momentum: float = 0.5, batch: int = 128, every: int = 50
) -> Trained:
    """Train for so many batches, the same ones for every way."""
    modules, x, y = problem(stages)
    ahead = range(stages - 1, -1, -1)
    done = Trained([Stage(module, left, way, rate, momentum) for module, left in zip(modules, ahead, strict=True)])
    most = [1 if way == "synchronous" else left + 1 for left in ahead]
    order = torch.randint(len(x), (steps, batch), generator=torch.Generator().manual_seed(1))
    to_do: list[deque] = [deque() for _ in range(stages)]
    to_undo: list[deque] = [deque() for _ in range(stages)]
    to_do[0].extend((number, x[rows]) for number, rows in enumerate(order))
    while done.stages[0].updates < steps:
        sent: list[tuple[deque, int, Tensor]] = []
        for s, stage in enumerate(done.stages):
            if to_undo[s]:
                number, gradient = to_undo[s].popleft()
                gradient = stage.backward(number, gradient)
                if s:
                    sent.append((to_undo[s - 1], number, gradient))
                elif (number + 1) % every == 0:
                    done.losses.append(done.loss(x, y))
            elif to_do[s] and len(stage.flying) < most[s]:
                number, value = to_do[s].popleft()
                value = stage.forward(number, value)
                if s < stages - 1:
                    sent.append((to_do[s + 1], number, value))
                else:
                    value.requires_grad_()
                    mse_loss(value, y[order[number]]).backward()
                    sent.append((to_undo[s], number, value.grad))
        for queue, number, value in sent:
            queue.append((number, value))
        done.ticks += 1
    return done


if __name__ == "__main__":
    steps = int(os.environ.get("STEPS", "300"))
    torch.set_num_threads(1)
    found = {way: train(way, steps) for way in WAYS}
    print(f"{'loss after':<12}" + "".join(f"{way:>13}" for way in WAYS))
    for row, losses in enumerate(zip(*(done.losses for done in found.values()), strict=True), 1):
        print(f"{50 * row:>4} batches" + "".join(f"{loss:>13.4f}" for loss in losses))
    print(f"{'ticks':<12}" + "".join(f"{done.ticks:>13}" for done in found.values()))
