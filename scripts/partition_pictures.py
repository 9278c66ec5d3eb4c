"""Draws the pictures of docs/partitioning.md: each way to partition MNIST, and the roles of Shakespeare's plays.

``python -m scripts.partition_pictures`` writes docs/images/partition-*.svg; both data sets are fetched where they are
not cached. Equal data and seeds give equal pictures.
"""

from __future__ import annotations

from pathlib import Path

from simulation.datasets import load
from simulation.partitioning import partition

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def draw(folder: Path = IMAGES) -> list[Path]:
    """Writes every picture into ``folder``; returns their paths."""
    mnist = load("mnist")
    made = {
        "iid": partition(mnist, 100, "iid", held_out=0.2),
        "dirichlet": partition(mnist, 100, "dirichlet", alpha=0.3, size_sigma=0.5),
        "shards": partition(mnist, 100, "shards"),
        "labels": partition(mnist, 100, "labels", labels_per_client=3),
        "quantity": partition(mnist, 100, "quantity", alpha=0.5),
        "noise": partition(mnist, 10, "noise", noise_sigma=0.5),
        "natural": partition(load("shakespeare"), by="natural"),
        "niid-labels": partition(mnist, 100, "niid-labels", labels_per_client=3),
        "niid-dirichlet": partition(mnist, 100, "niid-dirichlet", alpha=0.5),
        "niid-quantity": partition(mnist, 10, "niid-quantity", alpha=0.5),
    }
    paths = []
    for way, clients in made.items():
        path = folder / f"partition-{way}.svg"
        clients.draw(path)
        paths.append(path)
    return paths


if __name__ == "__main__":
    for written in draw():
        print(written.name)
