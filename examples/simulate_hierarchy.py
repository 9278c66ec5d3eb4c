"""A hierarchy: devices report to edges, such as the servers of hospitals, and edges report to the coordinator.

An edge is a device of the coordinator whose training is a federated round, or several, of the devices behind it
(HierFAVG: Liu et al. 2020, arXiv:1905.06641, algorithm 1). Sums of updates are exact, so partial sums are too.

python examples/simulate_hierarchy.py               half a minute of one core
ROUNDS=2 python examples/simulate_hierarchy.py      a quick look
"""

import os

import numpy as np
from torch import nn

from client_sdk.data import Examples
from client_sdk.learning import accuracy
from client_sdk.protocol.devices import Task
from quorate import Learner, Update, simulate
from simulation.datasets import load

one = Learner(
    model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)),
    loss=nn.functional.cross_entropy,
    metrics={"accuracy": accuracy},
)


class Edge:
    """A learner whose examples are devices, each with examples of its own, in ``passes`` rounds at the edge."""

    def __init__(self, passes: int) -> None:
        self.passes = passes

    initial, evaluate = staticmethod(one.initial), staticmethod(one.evaluate)

    def partial_sum(self, model: dict, data: Examples, task: Task, device: str, round: int) -> Update:
        """The sum of the updates of this edge's devices: as large as one update, and exact."""
        behind = enumerate(zip(data.x, data.y, strict=True))
        return sum(one.train(model, held, task, device=f"{device}-{number}", round=round) for number, held in behind)

    def train(self, model: dict, data: Examples, task: Task, *, device: str, round: int, **_: object) -> Update:
        now = model
        for turn in range(self.passes):
            total = self.partial_sum(now, data, task, device, (round - 1) * self.passes + turn + 1)
            now = {name: now[name] + change for name, change in total.mean().items()}
        return Update({name: now[name] - model[name] for name in model}, total.examples, metrics=total.metrics)


# Five edges have eight devices each, and a device has 100 images.
data = load("mnist")
images, labels = data.train.x[:4000].reshape(5, 8, 100, 28, 28), data.train.y[:4000].reshape(5, 8, 100)
edges = {f"edge-{number}": Examples(images[number], labels[number]) for number in range(5)}
devices = {f"{edge}-{number}": (held.x[number], held.y[number]) for edge, held in edges.items() for number in range(8)}
settings = {"epochs": 1, "batch_size": 10, "learning_rate": 0.05}

# The sums of the edges, added, have the bits of the sum of all devices, in whatever way the devices are divided.
task, model = Task(learner="example:one", **settings), one.initial(0)
flat = sum(one.train(model, held, task, device=name, round=1) for name, held in devices.items())
partial = [Edge(1).partial_sum(model, held, task, name, 1) for name, held in edges.items()]
print("the sum of five partial sums has the bits of the sum of forty updates:", sum(partial) == flat)


def run(learner: object, clients: dict) -> object:
    plan = {
        "name": "hierarchy",
        "task": settings,
        "cohort": {"select": len(clients), "goal": len(clients)},
        "finish": {"rounds": int(os.environ.get("ROUNDS", "6"))},
    }
    history = simulate(plan, learner, clients, test=data.test, score_every=10, seed=0)
    print(f"{len(clients)} updates a round: {history.final('accuracy'):.1%} of the test images are right")
    return history.checkpoint()


# On the way to the coordinator an edge's mean is rounded to float32, which is all that a hierarchy changes here.
found, same = run(one, devices), run(Edge(1), edges)
print(f"the two models differ by {max(float(np.abs(found[name] - same[name]).max()) for name in found):.0e} at most")
print("and with five rounds at the edge for each one at the coordinator")
run(Edge(5), edges)
