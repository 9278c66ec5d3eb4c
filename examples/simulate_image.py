"""Images: an ordinary PyTorch model learns Fashion-MNIST on 200 clients, none of which shows its images to anybody.

python examples/simulate_image.py               half a minute of one core
ROUNDS=2 python examples/simulate_image.py      a quick look
"""

import os

from torch import nn

from client_sdk.learning import Learner, accuracy
from quorate import partition, simulate
from simulation import Behaviour
from simulation.datasets import load


# The model and its loss, as for any training. Learner adds how it is scored.
def model() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


learner = Learner(model=model, loss=nn.functional.cross_entropy, metrics={"accuracy": accuracy})

# The data: (x, y), any object with .x and .y, or a torch Dataset. Each client gets its own mixture of the ten labels,
# and keeps a fifth of its images to score the model on.
data = load("fashion-mnist")
clients = partition(data, 200, by="dirichlet", alpha=0.3, seed=0, held_out=0.2)
print(clients.summary())
clients.draw("who-holds-what.svg")

# What is asked of them: 20 of the 200 in each round, and a round counts when 16 have reported.
plan = {
    "name": "fashion",
    "task": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "cohort": {"select": 20, "goal": 16},
    "finish": {"rounds": int(os.environ.get("ROUNDS", "30"))},
}

# The federated run. Some devices vanish, and some are slow.
fleet = Behaviour(dropout=0.05, speed_sigma=0.5)
history = simulate(plan, learner, clients, test=data.test, score_clients=50, score_every=5, behaviour=fleet, seed=0)

# What became of it.
print(history.summary())
print(f"on the test set: {history.final('accuracy'):.1%} are right")
print(f"on clients' own images: {history.final('accuracy', 'clients'):.1%} in the mean,", end=" ")
print(f"and a tenth of the clients are below {history.final('accuracy', 'clients.p10'):.1%}")
history.plot("fashion.png")
history.save_checkpoint("fashion.safetensors")
