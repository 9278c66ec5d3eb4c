"""The sum as a checkpoint, to the bit; and a model that moves by as little as it can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.secagg.lanes import lane_bits, lane_dtype
from client_sdk.secagg.quantize import WEIGHT_LIMIT, Quantizer
from client_sdk.tensors import Manifest, Tensors, from_bytes, narrow, to_bytes, widen
from coordinator.blobs import MemoryBlobs
from coordinator.folding.aggregator import BLOCK, Aggregator, CannotAggregate
from coordinator.secure.performing import advance, commit_sums
from tests.client_sdk.secagg.lanes_of_sums import mean_of_sum
from tests.coordinator.engine.story import plan

UNIT = 2.0**-32


def aggregator(model: Tensors, **sections: Any) -> tuple[Aggregator, MemoryBlobs, str]:
    blobs = MemoryBlobs()
    parent = blobs.put(to_bytes(model))
    return Aggregator(blobs, plan(**sections), parent, roles={}), blobs, parent


def lanes(values: list[int], weight: int, canary: int, bits: int = 32) -> Any:
    return np.array([*values, weight, canary], lane_dtype(bits))


def in_digits(weight: int, n: int, quantizer: Quantizer) -> list[int]:
    """The weight lanes' sums where ``n`` survivors share ``weight`` as evenly as it goes."""
    shares = [weight // n + (k < weight % n) for k in range(n)]
    digit, lanes_ = 2**quantizer.q - 1, range(quantizer.weight_lanes)
    return [sum(share >> quantizer.q * lane & digit for share in shares) for lane in lanes_]


@given(q=st.integers(1, 24), n=st.integers(3, 20), data=st.data())
def test_the_checkpoint_is_the_mean_of_what_the_lanes_say(q: int, n: int, data: st.DataObject) -> None:
    """Against the formula, value by value, in Python's integers and floats."""
    cap = data.draw(st.integers(1, 2**q - 1) | st.integers(1, WEIGHT_LIMIT))
    radius = data.draw(st.sampled_from([0.25, 1.0, 3.0]))
    levels, size = max(1, 2**q - 2), 6
    weight = data.draw(st.integers(1, n * cap))
    least, most = levels * (n * cap - weight) // (2 * cap), levels * (n * cap + weight) // (2 * cap)
    total = [data.draw(st.integers(least, most)) for _ in range(size)]
    model = {"b": np.array([0.5, -1.5], np.float32), "a": np.array([0.0, 1.0, 2.0, 3e5], np.float32)}
    aggregator_, blobs, parent = aggregator(model)
    quantizer = Quantizer(q=q, max_norm=1e3, max_abs=radius, weight_cap=cap)
    made = np.array([*total, *in_digits(weight, n, quantizer), n], lane_dtype(lane_bits(n, q)))
    digest, bytes_, *_ = commit_sums(aggregator_, 1, parent, quantizer, [(made, n)])
    assert bytes_ == len(blobs.open(digest).read())
    found = from_bytes(blobs.open(digest).read())
    means = [np.float32((t - n * levels / 2) * (2 * radius / levels * (cap / weight))) for t in total]
    assert found["a"].tolist() == [m + d for m, d in zip(model["a"], means[:4], strict=True)]
    assert found["b"].tolist() == [m + d for m, d in zip(model["b"], means[4:], strict=True)]
    assert commit_sums(aggregator_, 1, parent, quantizer, [(made, n)])[:2] == (digest, bytes_)


def test_a_server_optimizer_steps_by_the_mean_of_the_lanes() -> None:
    """And hands its state on: the second round's step is what momentum makes of both."""
    momentum = {"server_optimizer": "fedavgm", "server_optimizer_parameters": {"momentum": 0.5}}
    aggregator_, blobs, parent = aggregator({"w": np.array([1.0, 2.0], np.float32)}, aggregation=momentum)
    quantizer = Quantizer(q=8, max_norm=1e3, max_abs=1.0, weight_cap=9)
    total = lanes([500, 300], 27, 3, lane_bits(3, 8))
    mean = mean_of_sum(quantizer, total, 3)[0].astype(np.float32)
    first = commit_sums(aggregator_, 1, parent, quantizer, [(total, 3)])
    second = commit_sums(aggregator_, 2, first.digest, quantizer, [(total, 3)], first.named_tensors)
    one = np.array([1.0, 2.0], np.float32) + mean
    two = one + (np.float32(0.5) * mean + mean)
    assert from_bytes(blobs.open(first.digest).read())["w"].tolist() == one.tolist()
    assert from_bytes(blobs.open(second.digest).read())["w"].tolist() == two.tolist()
    assert advance(blobs, second.digest, Manifest.of({"w": one})).named_tensors == {}


def test_a_model_of_several_blocks() -> None:
    size = 2 * BLOCK + 5
    aggregator_, blobs, parent = aggregator({"w": np.zeros(size, np.float32)})
    quantizer = Quantizer(q=16, max_norm=1e6, max_abs=1.0, weight_cap=9)
    total = lanes(list(range(size)), 27, 3)
    digest, *_ = commit_sums(aggregator_, 1, parent, quantizer, [(total, 3)])
    whole, _ = mean_of_sum(quantizer, total, 3)
    assert np.array_equal(from_bytes(blobs.open(digest).read())["w"], whole.astype(np.float32))


@pytest.mark.parametrize(("weight", "canary", "match"), [(5, 2, "canary"), (28, 3, "weights"), (0, 3, "no mean")])
def test_what_no_survivors_can_have_summed_is_no_checkpoint(weight: int, canary: int, match: str) -> None:
    aggregator_, blobs, parent = aggregator({"w": np.zeros(2, np.float32)})
    quantizer = Quantizer(q=8, max_norm=1.0, max_abs=1.0, weight_cap=9)
    with pytest.raises(CannotAggregate, match=match):
        commit_sums(aggregator_, 1, parent, quantizer, [(lanes([382, 383], weight, canary), 3)])
    assert list(blobs.digests()) == [parent]


def test_values_that_would_not_be_finite_are_no_checkpoint() -> None:
    aggregator_, _, parent = aggregator({"w": np.full(1, 3.4e38, np.float32)})
    quantizer = Quantizer(q=8, max_norm=1e39, max_abs=1e39, weight_cap=9)
    with pytest.raises(CannotAggregate, match="finite"):
        commit_sums(aggregator_, 1, parent, quantizer, [(lanes([600], 27, 3), 3)])


# ------------------------------------------------------------ advance


def advanced(model: Tensors, chosen: list[str] | None = None) -> tuple[Tensors, str, MemoryBlobs]:
    blobs = MemoryBlobs()
    parent = blobs.put(to_bytes(model))
    manifest = Manifest.of(model)
    digest, size, *_ = advance(blobs, parent, manifest.select(chosen) if chosen else manifest)
    body = blobs.open(digest).read()
    assert len(body) == size
    assert digest != parent
    assert advance(blobs, parent, manifest.select(chosen) if chosen else manifest)[:2] == (digest, size)
    return from_bytes(body), digest, blobs


def test_one_value_rises_by_one_unit() -> None:
    model = {"a": np.array([5.0, -0.0, 0.0], np.float32), "b": np.array([1.0], np.float32)}
    after, _, _ = advanced(model)
    assert after["a"].tolist() == [5.0, UNIT, 0.0]  # 5 + 2^-32 is 5 in float32
    assert after["b"].tolist() == [1.0]


def test_only_what_is_averaged_moves() -> None:
    model: Tensors = {"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32), "steps": np.array([7], np.int64)}
    after, _, _ = advanced(model, ["b"])
    assert after["b"].tolist() == [UNIT, 0.0]
    assert after["a"].tolist() == [0.0] * 3
    assert after["steps"].tolist() == [7]


@pytest.mark.parametrize("value", [3.0, -3.0, 65504.0, 1e-3])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F64"])
def test_a_large_value_rises_by_what_it_takes(value: float, dtype: str) -> None:
    model: Tensors = {"w": narrow(np.full(2, value if dtype != "BF16" else 3.0, np.float32), dtype)}
    if dtype == "F16" and value == 65504.0:
        with pytest.raises(CannotAggregate, match="can be moved"):  # the largest there is
            advanced(model)
        return
    after, _, _ = advanced(model)
    before, now = (_as_floats(each["w"]) for each in (model, after))
    assert now[0] > before[0]
    assert now[1] == before[1]
    assert now[0] - before[0] <= max(UNIT, abs(before[0]) * 2.0**-6)


def _as_floats(array: Any) -> Any:
    return widen(array).astype(np.float64)


def test_a_line_of_advances_never_comes_back() -> None:
    blobs = MemoryBlobs()
    model = {"w": np.array([2.0, -1e-9], np.float32)}
    digests = [blobs.put(to_bytes(model))]
    for _ in range(20):
        digests.append(advance(blobs, digests[-1], Manifest.of(model))[0])
    assert len(set(digests)) == 21


def test_a_later_block_moves_where_the_first_cannot() -> None:
    values = np.full(BLOCK + 3, 1.0, np.float32)
    values[BLOCK + 1] = 0.0
    after, _, _ = advanced({"w": values})
    assert np.flatnonzero(after["w"] != values).tolist() == [BLOCK + 1]
