"""Lanes: as many bits as a sum needs, packed with none wasted, in one form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.secagg.errors import BadParameters, BadVector
from client_sdk.secagg.lanes import BITS_LIMIT, Lanes, LaneSum, cut, lane_bits, lane_dtype, pack, packed_bytes, unpack
from tests.client_sdk.secagg.attempt import entropy


def lanes_of(count: int, bits: int, seed: object) -> Lanes:
    lanes = np.frombuffer(entropy(seed)(8 * max(count, 1)), "<u8")[:count].astype(lane_dtype(bits))
    cut(lanes, bits)
    return lanes


def as_one_number(lanes: Lanes, bits: int) -> bytes:
    """The definition, slowly: all lanes as one little-endian number."""
    number = sum(int(lane) << (place * bits) for place, lane in enumerate(lanes))
    return number.to_bytes((len(lanes) * bits + 7) // 8, "little")


@given(count=st.integers(0, 70), bits=st.integers(1, BITS_LIMIT), seed=st.integers())
def test_packing_is_one_little_endian_number(count: int, bits: int, seed: int) -> None:
    lanes = lanes_of(count, bits, seed)
    packed = pack(lanes, bits)
    assert packed == as_one_number(lanes, bits)
    assert len(packed) == packed_bytes(count, bits)
    back = unpack(packed, count, bits)
    assert back.dtype == lane_dtype(bits)
    assert np.array_equal(back, lanes)


@pytest.mark.parametrize("bits", [1, 2, 9, 10, 25, 26, 32, 33, 48])
def test_packing_across_blocks(bits: int) -> None:
    count = (1 << 18) + 13
    lanes = lanes_of(count, bits, bits)
    packed = pack(lanes, bits)
    assert np.array_equal(unpack(memoryview(packed), count, bits), lanes)
    for first in (0, (1 << 18) - 8, (1 << 18)):  # on a whole byte, since it is a multiple of 8 lanes
        piece = lanes[first : first + 13]
        here = packed[first * bits // 8 :][: packed_bytes(len(piece), bits)]
        wanted = as_one_number(piece, bits)
        assert here[:-1] == wanted[:-1]
        assert here[-1] & ((1 << (len(piece) * bits % 8 or 8)) - 1) == wanted[-1]


def test_packed_bytes_are_frozen() -> None:
    assert pack(np.array([1, 2, 3, 2**25 - 1], "<u4"), 25).hex() == "0100000400000c0000f8ffff0f"


def test_bits_of_a_sum() -> None:
    assert lane_bits(300, 16) == 25
    assert lane_bits(300, 22) == 31
    assert lane_bits(1, 1) == 1
    for n in (1, 2, 3, 255, 256, 257, 300, 10_000):
        for q in (1, 2, 8, 16, 24):
            most = n * (2**q - 1)
            assert lane_bits(n, q) == math.ceil(math.log2(most + 1))
            assert most < 2 ** lane_bits(n, q) <= 2 * most
    for n, q in ((0, 16), (3, 0), (2**30, 24)):
        with pytest.raises(BadParameters):
            lane_bits(n, q)


def test_what_is_no_packed_vector() -> None:
    packed = pack(np.array([1, 2, 3], "<u4"), 25)
    with pytest.raises(BadVector, match="10 bytes, not 9"):
        unpack(packed[:-1], 3, 25)
    with pytest.raises(BadVector, match="not 11"):
        unpack(packed + b"\0", 3, 25)
    with pytest.raises(BadVector, match="behind the last"):
        unpack(packed[:-1] + bytes([packed[-1] | 0x08]), 3, 25)
    unpack(packed[:-1] + bytes([packed[-1] | 0x04]), 3, 25)


def test_what_cannot_be_packed() -> None:
    with pytest.raises(BadVector, match="does not fit"):
        pack(np.array([1 << 25], "<u4"), 25)
    with pytest.raises(BadVector, match="flat array"):
        pack(np.array([1], "<u8"), 25)
    with pytest.raises(BadVector, match="flat array"):
        pack(np.zeros((2, 2), "<u4"), 25)
    with pytest.raises(BadParameters):
        lane_dtype(BITS_LIMIT + 1)


def test_sums_wrap_and_are_cut() -> None:
    lanes = np.array([2**32 - 1, 5], "<u4")
    lanes += np.array([2, 2**25], "<u4")
    cut(lanes, 25)
    assert lanes.tolist() == [1, 5]


@given(count=st.integers(0, 70), bits=st.integers(1, BITS_LIMIT), rows=st.integers(0, 5), seed=st.integers())
def test_sum_of_packed_vectors(count: int, bits: int, rows: int, seed: int) -> None:
    vectors = [lanes_of(count, bits, (seed, row)) for row in range(rows)]
    found = LaneSum(count, bits)
    for vector in vectors:
        found.add(pack(vector, bits))
    wanted = [sum(int(vector[place]) for vector in vectors) % 2**bits for place in range(count)]
    assert found.total().dtype == lane_dtype(bits)
    assert found.total().tolist() == wanted
    assert found.total().tolist() == wanted  # taking it out changes nothing


@pytest.mark.parametrize("bits", [1, 9, 25, 32, 33])
def test_sum_across_blocks(bits: int) -> None:
    count = (1 << 18) + 13
    found, wanted = LaneSum(count, bits), np.zeros(count, "<u8")
    for row in range(3):
        vector = lanes_of(count, bits, (bits, row))
        found.add(memoryview(pack(vector, bits)))
        wanted += vector
    assert np.array_equal(found.total(), wanted % 2**bits)


def test_what_is_no_vector_is_not_added() -> None:
    found = LaneSum(3, 25)
    packed = pack(np.array([1, 2, 3], "<u4"), 25)
    found.add(packed)
    for wrong in (packed[:-1], packed + b"\0", packed[:-1] + bytes([packed[-1] | 0x08])):
        with pytest.raises(BadVector):
            found.add(wrong)
    assert found.total().tolist() == [1, 2, 3]
