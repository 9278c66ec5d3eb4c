"""What noise leaves of two attacks on sums, with all other rules of devices off: nothing more than chance would."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.secagg.header import GraphRule, share_of
from client_sdk.secagg.noise import add_noise
from client_sdk.secagg.quantize import Quantizer
from client_sdk.tensors import Manifest, Tensors, flatten
from simulation.learners import mnist_mlp
from tests.attacks.imprint import crafted, data_of, read_out
from tests.attacks.test_imprint import DEVICES, ONE, first_model
from tests.rotating import on_day

RULE = GraphRule(profile="strict")


def sum_of(updates: list[NDArray[np.float32]], clip: float, noise: float, seed: int) -> NDArray[np.float64]:
    """The sum under masks that a coordinator opens."""
    loud: dict[str, Any] = {"noise": noise, "divisor": len(updates)} if noise else {}
    used = Quantizer(q=22, max_norm=clip, max_abs=clip, weight_cap=1, **loud)
    total = np.zeros(updates[0].size, np.int64)
    for place, one in enumerate(updates):
        lanes = used.lanes(one, 1, 40, bytes([seed, place] * 16))[: one.size].astype(np.int64)
        if noise:
            add_noise(lanes, share_of(used, RULE, one.size, len(updates)), bytes([place, seed] * 16))
        total += lanes
    return used.mean_of(total, len(updates), used.weight_cap)


def moved(model: Tensors, sum_: NDArray[np.float64]) -> Tensors:
    """The model after a round with this sum."""
    found, start = dict[str, Any](), 0
    for name, array in Manifest.of(model).items():
        found[name] = model[name] + sum_[start : start + array.elements].reshape(array.shape) / DEVICES
        start += array.elements
    return found


@on_day(0, of=2)
def test_a_crafted_model_reads_images_out_of_a_sum_without_noise_and_none_with_it() -> None:
    private = data_of(0, DEVICES, 1)
    model = crafted(first_model(), DEVICES)
    deltas = [mnist_mlp().train(model, data, ONE, device=f"d{n}", round=1).delta for n, data in enumerate(private)]
    updates = [flatten(delta, Manifest.of(model)) for delta in deltas]
    clip = max(float(np.linalg.norm(one)) for one in updates)
    quiet, loud = (moved(model, sum_of(updates, clip, noise, 1)) for noise in (0.0, 1.0))
    assert read_out(model, quiet, private) >= 10
    assert read_out(model, loud, private) == 0


@on_day(1, of=2)
def test_two_sums_of_one_model_tell_an_update_without_noise_and_hardly_more_than_a_coin_with_it() -> None:
    """Of two rounds of one model the second lacks a device. Which of two updates was it? At noise 4 both sums together
    are right in at most 55 of 100 trials on average: the update is an eighth of a deviation of what is compared."""
    rng, right = np.random.default_rng(3), {0.0: 0, 4.0: 0}
    for noise in right:
        for trial in range(60):
            updates = [one / np.linalg.norm(one) for one in rng.standard_normal((10, 300)).astype(np.float32)]
            *others, first, second = updates
            both = sum_of([*others, first], 1.0, noise, 2 * trial)
            without = sum_of([*others, 0 * first], 1.0, noise, 2 * trial + 1)
            right[noise] += int((both - without) @ (first - second) > 0)
    assert right[0.0] == 60
    assert 18 <= right[4.0] <= 46
