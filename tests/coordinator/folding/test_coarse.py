"""Steps of few bits: unbiased, as coarse as the plan says, of parameters alone, and short as a difference."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest

from client_sdk.tensors import Tensors, from_bytes
from client_sdk.tensors.checkpoint_delta import BLOCK, decode, encode
from coordinator.engine.aggregation.combining import flat
from coordinator.folding import aggregator
from coordinator.folding.aggregator import Aggregator, coarse
from tests.coordinator.folding.test_aggregator import Bench

RNG = np.random.default_rng(0)


def test_the_difference_of_checkpoints_has_the_blocks_of_a_commit() -> None:
    assert BLOCK == aggregator.BLOCK


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_steps_are_whole_multiples_of_a_power_of_two_with_so_many_bits(bits: int) -> None:
    before = np.zeros(5000, np.float32)
    after = RNG.normal(size=5000).astype(np.float32)
    found = coarse(before, after, bits, b"seed", 0).astype(np.float64)
    unit = 2.0 ** (np.frexp(np.abs(after).max())[1] - (bits - 1))
    whole = found / unit
    assert (whole == np.rint(whole)).all()
    assert -(2 ** (bits - 1)) <= whole.min() < whole.max() <= 2 ** (bits - 1)
    assert np.abs(found - after).max() < unit


def test_the_mean_of_many_roundings_is_the_step() -> None:
    """Each mean of 4000 is off by a few standard errors at most, half a unit / sqrt(4000); rounding to the nearest
    multiple is off by more."""
    before, after = np.full(64, 3, np.float32), np.linspace(2, 4, 64, dtype=np.float32)
    found = np.stack([coarse(before, after, 4, b"seed", place) for place in range(4000)]).astype(np.float64)
    unit = 2.0**-2
    assert np.abs(found.mean(axis=0) - after).max() < 5 * unit / 2 / np.sqrt(4000)
    assert np.abs(np.rint(after / unit) * unit - after).max() > 5 * unit / 2 / np.sqrt(4000)


@pytest.mark.parametrize("after", [np.zeros(3), np.array([np.nan, 0, 0]), np.array([np.inf, 0, 1])])
def test_no_step_and_one_that_is_not_finite_stay(after: Any) -> None:
    found = coarse(np.zeros(3, np.float32), after.astype(np.float32), 8, b"seed", 0)
    assert found.tobytes() == after.astype(np.float32).tobytes()


def test_chance_is_of_the_seed_and_the_place() -> None:
    before, after = np.zeros(100, np.float32), RNG.normal(size=100).astype(np.float32)
    drawn = [coarse(before, after, 4, seed, place).tobytes() for seed in (b"a", b"b") for place in (0, 100)]
    assert len(set(drawn)) == 4
    assert drawn[0] == coarse(before, after, 4, b"a", 0).tobytes()


def model(size: int) -> Tensors:
    return {
        "count": np.array(3, np.int64),
        "half": RNG.normal(size=10).astype(np.float16),
        "norm.running_mean": np.zeros(4, np.float32),
        "w": RNG.normal(size=size).astype(np.float32),
    }


def test_a_commit_rounds_the_steps_of_float32_parameters_and_nothing_else() -> None:
    size = BLOCK + 1000
    benches = [Bench(model(size), aggregation=chosen) for chosen in ({}, {"step_bits": 8})]
    exact, rounded = benches
    rounded.blobs, rounded.parent = exact.blobs, exact.parent
    delta = {"half": np.full(10, 0.01), "norm.running_mean": RNG.normal(size=4), "w": RNG.normal(size=size) * 0.01}
    items = [exact.update(f"d{number}", {name: value * number for name, value in delta.items()}) for number in (1, 2)]
    made = []
    for bench in benches:
        boot = Aggregator(bench.blobs, bench.plan, bench.parent, roles={"norm.running_mean": "statistic"})
        made.append(bench.blobs.open(boot.commit(1, bench.parent, tuple(items)).digest).read())
        again = boot.commit(1, bench.parent, tuple(reversed(items)))
        assert bench.blobs.open(again.digest).read() == made[-1]
    whole, coarser = map(from_bytes, made)
    for name in ("count", "half", "norm.running_mean"):
        assert whole[name].tobytes() == coarser[name].tobytes()
    base = exact.blobs.open(exact.parent).read()
    steps = np.abs(whole["w"].astype(np.float64) - from_bytes(base)["w"]).max()
    assert 0 < np.abs(coarser["w"] - whole["w"]).max() < steps / 2**6
    sizes = [len(b"".join(encode(BytesIO(base), BytesIO(one)))) / len(one) for one in made]
    assert sizes[0] > 0.5
    assert sizes[1] < 0.25
    delta_bytes = b"".join(encode(BytesIO(base), BytesIO(made[1])))
    assert b"".join(decode(BytesIO(base), BytesIO(delta_bytes))) == made[1]


def test_a_masked_rounds_mean_is_rounded_too() -> None:
    bench = Bench({"w": np.zeros(3, np.float32)}, aggregation={"step_bits": 2})
    mean = flat(np.array([1, 0.3, -0.7], np.float32))
    made = from_bytes(bench.blobs.open(bench.aggregator.apply(1, bench.parent, mean).digest).read())
    assert set(made["w"].tolist()) <= {-1.0, 0.0, 1.0, 2.0}
    assert made["w"].tolist() != mean.read(0, 3).tolist()
