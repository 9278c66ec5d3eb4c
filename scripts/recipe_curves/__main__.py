"""Measures the curves of docs/recipes.md with the recipes, and keeps them in docs/recipes.json.

``python -m scripts.recipe_curves`` measures what is not in the file yet, draws the pictures and writes the page;
``--again NAME...`` measures these curves anew, ``--page`` only draws and writes. All of it takes about a quarter of
an hour of one core. This file knows settings; the page's words are in ``page``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from simulation import partition, recipes
from simulation.clients import Clients
from simulation.commands.data import some_of
from simulation.datasets import load
from simulation.history import History
from simulation.learners import mnist_mlp_200, shakespeare_lstm_unrolled

from .algorithms import SCENES, logistic, measured, mnist
from .page import ALGORITHMS, RESULTS, write

Run = History | recipes.Baseline
SEED = 0
SOURCES = ("evaluator", "evaluator.p10", "clients", "clients.p10")


@dataclass(frozen=True)
class Curve:
    """One line of a picture: how it is measured."""

    group: str
    label: str
    setting: dict[str, Any]
    """Arguments of the recipe that are numbers and names; stored beside the result."""
    run: Callable[[dict[str, Any]], Run]


@cache
def split(by: str) -> Clients:
    """The paper's two partitions of MNIST among 100 clients; a tenth of each client's examples is held out."""
    return partition(mnist(), 100, by="iid" if by == "iid" else "shards", seed=SEED, held_out=0.1)


@cache
def prox_clients() -> Clients:
    """1,000 clients of two digits each."""
    return partition(mnist(), 1000, by="labels", labels_per_client=2, seed=SEED)


@cache
def roles() -> tuple[Clients, Any]:
    """Shakespeare's roles with at least two windows of 80 characters, and 200 windows of what they hold out."""
    data = load("shakespeare-unrolled")
    return Clients.of(data.clients()), some_of(data.test, 200, SEED)


def on_mnist(by: str, recipe: Callable[..., Run]) -> Callable[[dict[str, Any]], Run]:
    return lambda setting: recipe(mnist_mlp_200(), split(by), test=mnist().test, seed=SEED, **setting)


def on_prox(setting: dict[str, Any]) -> Run:
    return recipes.fedprox_with_stragglers(logistic(), prox_clients(), test=mnist().test, seed=SEED, **setting)


def on_roles(recipe: Callable[..., Run]) -> Callable[[dict[str, Any]], Run]:
    def run(setting: dict[str, Any]) -> Run:
        clients, test = roles()
        return recipe(shakespeare_lstm_unrolled(), clients, test=test, seed=SEED, **setting)

    return run


def _mnist(by: str, rounds: int) -> dict[str, Curve]:
    fed = {"rounds": rounds, "per_round": 10, "epochs": 1, "batch_size": 10, "learning_rate": 0.1, "target": 0.97}
    sgd = {"rounds": 150, "per_round": 10, "learning_rate": 0.5}
    alone = {"rounds": 10, "epochs": 1, "batch_size": 10, "learning_rate": 0.1, "train_clients": 20, "score_every": 5}
    group = f"mnist-{by}"
    return {
        f"{group}-fedavg": Curve(group, "FedAvg", fed, on_mnist(by, recipes.fedavg)),
        f"{group}-fedsgd": Curve(group, "FedSGD", sgd, on_mnist(by, recipes.fedsgd)),
        f"{group}-alone": Curve(group, "each client alone", alone, on_mnist(by, recipes.local_only)),
    }


def _stragglers(share: float) -> dict[str, Curve]:
    whole = {"rounds": 60, "per_round": 10, "epochs": 20, "batch_size": 10, "learning_rate": 0.03, "stragglers": share}
    percent = round(100 * share)
    methods = {
        "refuse": ("FedAvg, stragglers dropped", {"mu": 0.0, "partial": "refuse"}),
        "partial": ("FedProx, mu 0", {"mu": 0.0, "partial": "full"}),
        "prox": ("FedProx, mu 1", {"mu": 1.0, "partial": "full"}),
    }
    if not share:
        methods = {"refuse": ("FedAvg", methods["refuse"][1]), "prox": methods["prox"]}
    group = f"stragglers-{percent}"
    return {f"{group}-{key}": Curve(group, label, whole | more, on_prox) for key, (label, more) in methods.items()}


def _fraction(clients: int, rounds: int) -> Curve:
    """FedAvg with so many clients in a round, labels alike."""
    setting = _mnist("iid", rounds)["mnist-iid-fedavg"].setting | {"per_round": clients}
    label = f"FedAvg, {clients} client{'s' * (clients > 1)} a round"
    return Curve("mnist-fraction", label, setting, on_mnist("iid", recipes.fedavg))


CURVES: dict[str, Curve] = {
    **_mnist("iid", 120),
    "mnist-iid-fedavg-1": _fraction(1, 700),
    "mnist-iid-fedavg-20": _fraction(20, 150),
    "mnist-iid-central": Curve(
        "mnist-iid",
        "all data in one place",
        {"rounds": 60, "per_round": 10, "epochs": 1, "batch_size": 10, "learning_rate": 0.1},
        on_mnist("iid", recipes.centralized),
    ),
    **_mnist("shards", 200),
    **_stragglers(0.0),
    **_stragglers(0.5),
    **_stragglers(0.9),
    "shakespeare-fedavg": Curve(
        "shakespeare",
        "FedAvg, E 5",
        {"rounds": 25, "per_round": 4, "epochs": 5, "batch_size": 10, "learning_rate": 1.0},
        on_roles(recipes.fedavg),
    ),
    "shakespeare-fedsgd": Curve(
        "shakespeare",
        "FedSGD",
        {"rounds": 25, "per_round": 4, "learning_rate": 1.0},
        on_roles(recipes.fedsgd),
    ),
    "shakespeare-central": Curve(
        "shakespeare",
        "all data in one place",
        {"rounds": 10, "per_round": 4, "epochs": 5, "batch_size": 10, "learning_rate": 1.0},
        on_roles(recipes.centralized),
    ),
    "shakespeare-alone": Curve(
        "shakespeare",
        "each client alone",
        {"rounds": 3, "epochs": 5, "batch_size": 10, "learning_rate": 1.0, "train_clients": 8},
        on_roles(recipes.local_only),
    ),
}


def measure(name: str) -> dict[str, Any]:
    """The curve with its setting, as it is stored."""
    curve = CURVES[name]
    wall, cpu = time.monotonic(), time.process_time()
    made = curve.run(curve.setting)
    found: dict[str, Any] = {"group": curve.group, "label": curve.label, "seed": SEED, "setting": curve.setting}
    for (source, metric), line in made.curves.items():
        if metric == "accuracy" and source in SOURCES:
            values = [round(float(value), 5) for value in line.values]
            found[source] = {"versions": line.versions.tolist(), "values": values}
    if isinstance(made, History):
        found["abandoned"] = sum(row.status == "abandoned" for row in made.rounds)
    cpu_s = time.process_time() - cpu
    return found | {"cpu_s": round(cpu_s, 1), "wall_s": round(time.monotonic() - wall, 1), **_versions()}


def _versions() -> dict[str, str]:
    return {"torch": str(torch.__version__), "numpy": str(np.__version__)}


def main(arguments: list[str]) -> None:
    """See the head of this file."""
    torch.set_num_threads(1)
    stored: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    again = set(arguments[1:]) if arguments[:1] == ["--again"] else set()
    for name in CURVES if arguments[:1] != ["--page"] else ():
        if name in stored and name not in again:
            continue
        stored[name] = measure(name)
        sys.stderr.write(f"{name}: {stored[name]['cpu_s']} s of CPU\n")
        ordered = {known: stored[known] for known in CURVES if known in stored}
        RESULTS.write_text(
            json.dumps(ordered, indent=None, separators=(",", ":")).replace('},"', '},\n"') + "\n", "utf-8"
        )
    compared: dict[str, Any] = json.loads(ALGORITHMS.read_text("utf-8")) if ALGORITHMS.is_file() else {}
    for name in SCENES if arguments[:1] != ["--page"] else ():
        if name not in compared or name in again:
            compared[name] = measured(name)
            ALGORITHMS.write_text(
                json.dumps({key: compared[key] for key in SCENES if key in compared}, indent=1) + "\n"
            )
    write()


if __name__ == "__main__":
    main(sys.argv[1:])
