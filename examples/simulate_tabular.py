"""Tables: does a person earn more than 50,000 a year? Each client holds the census records of one occupation.

python examples/simulate_tabular.py               ten seconds
ROUNDS=2 python examples/simulate_tabular.py      a quick look
"""

import os

from torch import nn

from client_sdk.learning import Learner, accuracy
from quorate import simulate
from simulation.datasets import load

# 108 numbers of a person in, two classes out. Logistic regression needs no more.
learner = Learner(
    model=lambda: nn.Linear(108, 2), loss=nn.functional.cross_entropy, metrics={"accuracy": accuracy}, version="1"
)

# 15 natural clients, from 9 records to more than 4,000; what the census bureau holds out is theirs too.
data = load("adult")
clients = data.clients()
for name in clients:
    share = clients[name].train.y.mean()
    print(f"{name:20} {clients.examples(name):6} people, {share:4.0%} earn more than 50,000")

# All of them in each round. Equal weights: an occupation counts once, however many have it.
plan = {
    "name": "income",
    "task": {"epochs": 1, "batch_size": 32, "learning_rate": 0.05},
    "cohort": {"select": len(clients), "goal": len(clients)},
    "aggregation": {"weighting": "equal"},
    "finish": {"rounds": int(os.environ.get("ROUNDS", "15"))},
}
history = simulate(plan, learner, clients, test=data.test, score_clients="all", classes=lambda name: name, seed=0)

# Who is served well, and who is not: each client is a class of its own here.
print(history.summary())
for source, metric in history.curves:
    if source.startswith("class.") and metric == "accuracy":
        print(f"{source.removeprefix('class.'):20} {history.final('accuracy', source):.1%}")
history.to_pandas("metrics").to_csv("income.csv", index=False)
