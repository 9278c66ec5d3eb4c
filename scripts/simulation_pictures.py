"""Draws the picture of docs/simulation.md: a run on two classes of devices, one of them slow and unreliable.

``python -m scripts.simulation_pictures`` writes docs/images/simulation-history.svg; MNIST is fetched where it is not
cached. Equal data and seeds give equal curves.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context

from simulation import Behaviour, History, partition, simulate
from simulation.datasets import load
from simulation.learners import mnist_mlp

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def run() -> History:
    """The run that the guide shows; a minute of one core."""
    data = load("mnist")
    clients = partition(data, 100, by="dirichlet", alpha=0.3, seed=0, held_out=0.2)
    plan = {
        "name": "mnist",
        "task": {"epochs": 2, "batch_size": 20, "learning_rate": 0.1},
        "cohort": {"select": 20, "goal": 15, "quorum": 0.6, "collect_s": 12},
        "finish": {"rounds": 40},
    }
    fleet = {
        "phone": Behaviour(dropout=0.2, stragglers=0.3, step_s=0.15, speed_sigma=0.7),
        "clinic": Behaviour(step_s=0.05),
    }
    return simulate(
        plan,
        mnist_mlp(),
        clients,
        test=data.test,
        score_clients="all",
        score_every=2,
        behaviour=fleet,
        classes=lambda client: "clinic" if client < "client-040" else "phone",
        seed=0,
    )


if __name__ == "__main__":
    with rc_context({"svg.hashsalt": "quorate"}):  # equal curves give equal files
        run().plot().savefig(IMAGES / "simulation-history.svg", metadata={"Date": None})
