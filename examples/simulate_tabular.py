"""Tables: does a person earn more than 50,000 a year? Each client holds the census records of one occupation.

python examples/simulate_tabular.py               ten seconds
ROUNDS=2 python examples/simulate_tabular.py      a quick look
"""

import os

from torch import nn

from client_sdk.learning import accuracy
from quorate import Learner, simulate
from simulation.datasets import load

# The model maps 108 numbers of a person to two classes. This is logistic regression.
learner = Learner(
    model=lambda: nn.Linear(108, 2), loss=nn.functional.cross_entropy, metrics={"accuracy": accuracy}, version="1"
)

# There are 15 natural clients, with 9 to more than 4,000 records. They have their part of the bureau's test set too.
data = load("adult")
clients = data.clients()
for name in clients:
    share = clients[name].train.y.mean()
    print(f"{name:20} {clients.examples(name):6} people, {share:4.0%} earn more than 50,000")

# All clients take part in each round. Weights are equal: an occupation counts once, however many people have it.
plan = {
    "name": "income",
    "task": {"epochs": 1, "batch_size": 32, "learning_rate": 0.05},
    "cohort": {"select": len(clients), "goal": len(clients)},
    "aggregation": {"weighting": "equal"},
    "finish": {"rounds": int(os.environ.get("ROUNDS", "15"))},
}
history = simulate(plan, learner, clients, test=data.test, score_clients="all", classes=lambda name: name, seed=0)

# Each client is a class of its own here, so the scores show which clients the model serves well.
print(history.summary())
for source, metric in history.curves:
    if source.startswith("class.") and metric == "accuracy":
        print(f"{source.removeprefix('class.'):20} {history.final('accuracy', source):.1%}")
history.to_pandas("metrics").to_csv("income.csv", index=False)
