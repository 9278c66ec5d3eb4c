"""Text: which character comes next? Each client is a role in one of Shakespeare's plays, and speaks as it does.

python examples/simulate_text.py               two minutes of one core
ROUNDS=1 python examples/simulate_text.py      a quick look
"""

import os

import torch
from torch import nn

from client_sdk.data import Examples
from client_sdk.learning import Learner, accuracy
from quorate import simulate
from simulation.datasets import load


class NextCharacter(nn.Module):
    """80 characters in, and for each of them, what may follow: [n, 80] -> [n, vocabulary, 80]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.memory = nn.GRU(8, 128, batch_first=True)
        self.output = nn.Linear(128, 80)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        states, _ = self.memory(self.embedding(characters.long()))
        return self.output(states).transpose(1, 2)


learner = Learner(model=NextCharacter, loss=nn.functional.cross_entropy, metrics={"accuracy": accuracy})

# Natural clients: nothing is split by chance. Each role with 20 windows of text or more is one, and its last fifth of
# speeches is held out.
data = load("shakespeare-unrolled")
clients = data.clients(min_examples=20)
print(f"{len(clients)} roles, from {min(clients.sizes)} to {max(clients.sizes)} windows of 80 characters")

plan = {
    "name": "shakespeare",
    "task": {"epochs": 2, "batch_size": 5, "learning_rate": 1.0, "max_grad_norm": 5.0},
    "cohort": {"select": 8, "goal": 8},
    "finish": {"rounds": int(os.environ.get("ROUNDS", "25"))},
}
test = Examples(data.test.x[:300], data.test.y[:300])  # of 10,820 windows, to save time
history = simulate(plan, learner, clients, test=test, score_clients=20, score_every=5, seed=0)

print(history.summary())
print(f"{history.final('accuracy'):.1%} of the next characters are right; the most frequent one, a blank,", end=" ")
print(f"would give {(test.y == data.classes.index(' ')).mean():.1%}")
history.plot("shakespeare.png")
