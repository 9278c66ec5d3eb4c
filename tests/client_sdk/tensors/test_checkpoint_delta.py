"""The difference of two checkpoints: exact, small where steps are coarse, and bounded whatever the bytes are."""

from __future__ import annotations

import io
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.tensors import MalformedTensors, TensorError, Tensors, to_bytes
from client_sdk.tensors.checkpoint_delta import BLOCK, decode, encode


def delta_of(base: bytes, target: bytes) -> bytes:
    return b"".join(encode(io.BytesIO(base), io.BytesIO(target)))


def restored(base: bytes, delta: bytes) -> bytes:
    return b"".join(decode(io.BytesIO(base), io.BytesIO(delta)))


def model(seed: int, size: int = 3000) -> Tensors:
    """Some tensors of each kind; a round of training between one seed and the next."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=size).astype(np.float32)
    for step in range(seed):
        weights += np.random.default_rng(step).normal(size=size).astype(np.float32) * np.float32(0.01)
    return {
        "b": np.array([seed, -0.0, 1e-45, 3e38], np.float32),
        "count": np.array(seed, np.int64),
        "half": weights[:9].astype(np.float16),
        "none": np.zeros((0, 3), np.float32),
        "on": np.array([True, seed % 2 == 0]),
        "wide": weights[:5].astype(np.float64),
        "w": weights.reshape(10, -1),
    }


def test_the_receiver_ends_with_the_very_bytes() -> None:
    base, target = to_bytes(model(1)), to_bytes(model(2))
    delta = delta_of(base, target)
    assert restored(base, delta) == target
    assert len(delta) < 0.75 * len(target)
    assert restored(target, delta) != target, "it is a difference"


@given(st.data())
def test_all_bits_of_float32_come_back(data: st.DataObject) -> None:
    words = st.lists(st.integers(0, 2**32 - 1), min_size=5, max_size=5)
    old, new = (to_bytes({"w": np.array(data.draw(words), np.uint32).view(np.float32)}) for _ in range(2))
    assert restored(old, delta_of(old, new)) == new


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, 2 * BLOCK + 1])
def test_tensors_of_more_than_a_block(size: int) -> None:
    base, target = (to_bytes({"a": np.ones(3, np.float32), **model(seed, size * 10)}) for seed in (0, 1))
    assert restored(base, delta_of(base, target)) == target


@pytest.mark.parametrize(("bits", "most"), [(8, 0.23), (4, 0.1)])
def test_steps_of_few_bits_take_few_bytes(bits: int, most: float) -> None:
    """Also where float32 rounds the sum, as of values that are much larger than the step."""
    rng = np.random.default_rng(1)
    old = rng.normal(size=60_000).astype(np.float32)
    old[::7] *= 1000
    steps = np.clip(np.rint(rng.normal(size=old.size) * 2 ** (bits - 3)), -(2 ** (bits - 1)), 2 ** (bits - 1))
    new = (old + steps * 2.0**-12).astype(np.float32)
    base, target = to_bytes({"w": old}), to_bytes({"w": new})
    delta = delta_of(base, target)
    assert restored(base, delta) == target
    assert len(delta) < most * len(target)


def test_the_same_again_takes_next_to_nothing() -> None:
    base = to_bytes(model(1, 60_000))
    assert restored(base, delta_of(base, base)) == base
    assert len(delta_of(base, base)) < len(base) / 100


@pytest.mark.parametrize("other", [{"w": np.ones(4, np.float32)}, {"v": np.ones(3, np.float32)}, {}])
def test_other_tensors_have_no_difference(other: Any) -> None:
    with pytest.raises(MalformedTensors, match="other tensors"):
        delta_of(to_bytes({"w": np.ones(3, np.float32)}), to_bytes(other))


def test_what_was_cut_off_or_goes_on_is_refused() -> None:
    base, target = to_bytes(model(1)), to_bytes(model(2))
    delta = delta_of(base, target)
    for wrong in (b"", delta[:1], delta[:100], delta[:-1], delta + b"!"):
        with pytest.raises(MalformedTensors):
            restored(base, wrong)


@given(st.data())
def test_changed_bytes_are_refused_or_give_a_checkpoint_of_the_same_length(data: st.DataObject) -> None:
    base, target = to_bytes(model(1, 30)), to_bytes(model(2, 30))
    delta = bytearray(delta_of(base, target))
    for place in data.draw(st.lists(st.integers(0, len(delta) - 1), min_size=1, max_size=4)):
        delta[place] = data.draw(st.integers(0, 255))
    try:
        assert len(restored(base, bytes(delta))) == len(target)
    except TensorError:
        pass


def test_a_bomb_takes_no_memory() -> None:
    """A plane that says it is short and would be a thousand times as long is given up at its own length."""
    base = to_bytes({"w": np.zeros(40_000, np.float32)})
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(bytes(30_000_000)) + packer.flush()
    delta = (0).to_bytes(2, "little") + len(bomb).to_bytes(4, "little") + bomb
    tracemalloc.start()
    try:
        with pytest.raises(MalformedTensors, match="has other than 40000 bytes"):
            restored(base, delta)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(MalformedTensors, match="cannot take"):
        restored(base, (0).to_bytes(2, "little") + b"\xff" * 4 + bomb)
