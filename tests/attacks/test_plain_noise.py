"""The attacks on sums, against the noise of private rounds: what the models of a simulated run show to whoever sees
them, with no rule of devices in the way. Without noise they show single images, and whose update one of two sums lacks;
with it no more than guesses find."""

from __future__ import annotations

from typing import Any

import numpy as np

from client_sdk.tensors import Tensors
from simulation import simulate
from simulation.learners import mnist_mlp
from tests.attacks.imprint import HIDDEN, crafted, data_of, read_out
from tests.attacks.test_near_models import DEVICES, data, flat, learner
from tests.rotating import on_day

NOISE, HARDLY = 2.0, 1e-6
"""Noise multipliers: epsilon 2.42 a round at delta 1e-6, and as good as none."""


def plan(name: str, devices: int, clip: float, noise: float, **task: Any) -> dict[str, Any]:
    return {
        "name": name,
        "task": {"learner": "tests:net", "seed": 5, **task},
        "cohort": {"select": devices, "goal": devices, "quorum": 1.0, "collect_s": 600, "most_rounds": 1},
        "aggregation": {"weighting": "equal"},
        "privacy": {"clip": clip, "noise": noise, "delta": 1e-6},
        "finish": {"rounds": 1},
    }


def images_read(noise: float) -> tuple[int, int]:
    """How many images are read out of a round from a model that imprints them: of the devices' own, and of others' of
    the same kind."""
    private, others = data_of(0, 64, 1), data_of(1, 64, 1)
    first = crafted(mnist_mlp().initial(0), 64)
    clients: dict[str, Any] = {f"c{number:02}": one for number, one in enumerate(private)}
    made = plan("imprint", 64, 1.0, noise, steps=1, batch_size=1, learning_rate=1.0)
    with simulate(made, mnist_mlp(), clients, init=first, progress=False) as history:
        after: Tensors = history.checkpoint(1)
    return read_out(first, after, private, HIDDEN), read_out(first, after, others, HIDDEN)


@on_day(0, of=2)
def test_a_crafted_model_prints_no_image_into_a_sum_with_noise() -> None:
    own, others = images_read(HARDLY)
    assert (own >= 10, others) == (True, 0)
    assert images_read(NOISE) == (0, 0)


def told_apart(noise: float, victims: list[str]) -> list[int]:
    """For each of these devices, which place its update has among all devices', by how like it is to the difference of
    a sum of all and a sum of all others: 0 is the first. The second one begins at a model that is nearly the same."""
    net, clients = learner(), data()
    first = net.initial(1)
    near = {name: array.copy() for name, array in first.items()}
    near["0.weight"].flat[0] = np.nextafter(near["0.weight"].flat[0], np.float32(9))
    work: dict[str, Any] = {"epochs": 2, "batch_size": 8, "learning_rate": 0.3}

    def summed(name: str, start: Tensors, names: list[str]) -> Any:
        asked = {one: clients[one] for one in names}
        made = plan(name, len(names), 0.5, noise, **work)
        with simulate(made, net, asked, init=start, progress=False) as history:
            return flat(history.checkpoint(1), start) * len(names)

    def update(name: str) -> Any:
        made = plan("alone", DEVICES, 0.5, noise, **work)
        delta = simulate(made, net, clients, only=name, round=1, init=first).delta
        found = flat({key: first[key] + delta[key] for key in first}, first)
        return found / np.linalg.norm(found)

    updates, every = {name: update(name) for name in clients}, summed("all", first, list(clients))
    places = []
    for victim in victims:
        missed = every - summed(f"without-{victim}", near, [name for name in clients if name != victim])
        likeness = {name: float(missed @ one) for name, one in updates.items()}
        places.append(sorted(likeness, key=lambda name: -likeness[name]).index(victim))
    return places


@on_day(1, of=2)
def test_two_sums_that_differ_by_one_device_do_not_tell_which_with_noise() -> None:
    victims = [f"c{number:02}" for number in range(0, DEVICES, 8)]
    assert told_apart(HARDLY, victims) == [0] * len(victims)
    places = told_apart(NOISE, victims)
    assert places.count(0) <= 1
    assert np.mean(places) > DEVICES / 4, "by guesses it is half of them"
