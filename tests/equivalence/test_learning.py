"""A federated round through Learner, Update and `+` equals FedAvg written out by hand.

McMahan et al. 2017 (arXiv:1602.05629), Algorithm 1: w_{t+1} = sum_k (n_k / n) w_{t+1}^k over the round's devices. The
loop by hand knows torch and numpy only, trains with torch.optim.SGD and averages whole models in float64; Quorate
averages float32 differences. They may differ by rounding: at most 1e-7 of the largest weight per round, about one
unit in the last place of a float32.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.learning import Learner, batch_order
from client_sdk.protocol.devices import Task

TOLERANCE = 1e-7
ROUNDS = 3
SIZES = {"d1": 5, "d2": 40, "d3": 17, "d4": 64, "d5": 1}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))


def fleet() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(7)
    data = {}
    for device, size in SIZES.items():
        y = rng.integers(0, 4, size)
        data[device] = (rng.normal(size=(size, 3, 4)).astype(np.float32) + y[:, None, None].astype(np.float32), y)
    return data


def by_hand(weights: dict[str, np.ndarray], data: dict, task: Task, number: int) -> dict[str, np.ndarray]:
    total = sum(len(y) for _, y in data.values())
    mean = {name: np.zeros(array.shape, np.float64) for name, array in weights.items()}
    for device, (x, y) in data.items():
        module = model()
        module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})
        start = [p.detach().clone() for p in module.parameters()]
        optimizer = torch.optim.SGD(module.parameters(), lr=task.learning_rate)
        order = batch_order(len(y), task.batch_size, seed=task.seed, round=number, device=device)
        for _ in range(task.epochs * -(-len(y) // task.batch_size)):
            rows = next(order)
            optimizer.zero_grad()
            objective = nn.functional.cross_entropy(module(torch.from_numpy(x)[rows]), torch.from_numpy(y)[rows])
            if task.mu:
                objective = objective + task.mu / 2 * sum(
                    ((p - s) ** 2).sum() for p, s in zip(module.parameters(), start, strict=True)
                )
            objective.backward()
            optimizer.step()
        for name, tensor in module.state_dict().items():
            mean[name] += len(y) / total * tensor.numpy().astype(np.float64)
    return {name: array.astype(np.float32) for name, array in mean.items()}


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_federated_rounds_equal_fedavg_and_fedprox_written_by_hand(mu: float) -> None:
    learner = Learner(model=model, loss=nn.functional.cross_entropy)
    task = Task(learner="tests:tanh", epochs=2, batch_size=8, learning_rate=0.2, mu=mu, seed=11)
    data, start = fleet(), learner.initial(0)
    ours = theirs = start
    for number in range(1, ROUNDS + 1):
        updates = [learner.train(ours, data[device], task, device=device, round=number) for device in data]
        total = updates[0]
        for update in updates[1:]:
            total = total + update
        mean = total.mean()
        ours = {name: ours[name] + mean[name] for name in ours}
        theirs = by_hand(theirs, data, task, number)
        largest = max(float(np.abs(array).max()) for array in theirs.values())
        for name in ours:
            assert ours[name].dtype == np.float32
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=TOLERANCE * largest * number)
    moved = max(float(np.abs(ours[name] - start[name]).max()) for name in ours)
    assert moved > 0.05
