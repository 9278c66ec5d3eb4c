"""Masks: known answers, a second and slow expansion, and that what one adds the other takes away."""

from __future__ import annotations

import hashlib
import hmac
import struct
from itertools import pairwise

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.errors import BadParameters, BadVector
from client_sdk.secagg.lanes import cut, lane_dtype
from client_sdk.secagg.masks import Masker, pair_seed, pair_sign, self_seed
from tests.client_sdk.secagg.attempt import digest, entropy, expand

AES_25 = [15592012, 18700005, 19919562, 25887032]
AES_40 = [983797983820, 241376948938]
PAIR_SEED = "14e0a9b291290213006ff24593621a8dea39dda575c7f7da893702c1df7f727d"


def slow_mask(seed: bytes, count: int, bits: int) -> list[int]:
    """The lanes of a mask by definition: block after block, word after word, in Python integers."""
    width = 4 if bits <= 32 else 8
    stream, block = b"", 0
    while len(stream) < count * width:
        ecb = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
        stream += ecb.update(block.to_bytes(16, "big"))
        block += 1
    return [int.from_bytes(stream[place * width : (place + 1) * width], "little") % 2**bits for place in range(count)]


@given(
    seed=st.binary(min_size=32, max_size=32),
    count=st.integers(0, 300),
    bits=st.sampled_from([1, 17, 25, 32, 33, 48]),
)
def test_masks_against_the_slow_expansion(seed: bytes, count: int, bits: int) -> None:
    assert expand(seed, count, bits).tolist() == slow_mask(seed, count, bits)


@given(
    bits=st.sampled_from([17, 25, 40]),
    block=st.sampled_from([64, 128, 448]),
    count=st.integers(0, 500),
    seed=st.integers(),
)
def test_blocks_leave_no_seam(bits: int, block: int, count: int, seed: int) -> None:
    draw = entropy(seed)
    start = np.frombuffer(draw(8 * count + 8), "<u8")[:count].astype(lane_dtype(bits))
    key = draw(32)
    vector = start.copy()
    Masker(bits, block).apply(vector, key, 1)
    wanted = (start.astype(object) + np.array(slow_mask(key, count, bits), dtype=object)) % 2**bits
    found = vector.copy()
    cut(found, bits)
    assert found.tolist() == wanted.tolist()
    Masker(bits, 4096).apply(vector, key, -1)
    assert np.array_equal(vector, start)


@pytest.mark.parametrize("bits", [25, 40])
def test_parts_of_a_vector_are_masked_alike(bits: int) -> None:
    """Workers with a part each come to the same sum as one with all of it, across any bound of blocks."""
    whole = expand(digest("a seed"), 3000, bits)
    for cuts in ((0, 1008, 3000), (0, 16, 2048, 2992, 3000)):
        total = np.zeros(3000, lane_dtype(bits))
        for start, end in pairwise(cuts):
            Masker(bits, 256).apply(total[start:end], digest("a seed"), 1, start)
        cut(total, bits)
        assert np.array_equal(total, whole)
    with pytest.raises(BadParameters, match="multiple of 64"):
        Masker(bits).apply(np.zeros(4, lane_dtype(bits)), bytes(32), 1, 15)
    with pytest.raises(BadParameters, match="multiple of 64"):
        Masker(bits).apply(np.zeros(4, lane_dtype(bits)), bytes(32), 1, -16)


def test_known_answers() -> None:
    """Frozen: a change here changes what devices of different versions of the SDK say to each other."""
    seed = digest("a seed")
    assert expand(seed, 4, 25).tolist() == AES_25
    assert expand(seed, 2, 40).tolist() == AES_40


def test_seeds_are_hkdf_of_what_was_agreed() -> None:
    h, agreed = digest("h"), digest("agreed")

    def hkdf(secret: bytes, info: bytes) -> bytes:
        return hmac.digest(hmac.digest(h, secret, "sha256"), info + b"\1", "sha256")

    domain = b"quorate secure aggregation 2\0"
    assert pair_seed(agreed, h, 5, 2) == hkdf(agreed, domain + b"pair mask" + struct.pack(">II", 2, 5))
    assert self_seed(agreed, h, 5) == hkdf(agreed, domain + b"self mask" + struct.pack(">I", 5))
    assert pair_seed(agreed, h, 5, 2) == pair_seed(agreed, h, 2, 5)
    seeds = {pair_seed(agreed, h, 5, 2), pair_seed(agreed, h, 5, 3), pair_seed(agreed, digest("other"), 5, 2)}
    assert len(seeds) == 3
    assert hashlib.sha256(pair_seed(agreed, h, 5, 2)).hexdigest() == PAIR_SEED


def test_two_peers_masks_cancel() -> None:
    one, other = AgreementKey(digest("one")), AgreementKey(digest("other"))
    h = digest("h")
    vector = np.zeros(1000, "<u4")
    masker = Masker(25)
    masker.apply(vector, pair_seed(one.agree(other.public), h, 3, 7), pair_sign(3, 7))
    assert vector.any()
    masker.apply(vector, pair_seed(other.agree(one.public), h, 7, 3), pair_sign(7, 3))
    assert not vector.any()
    with pytest.raises(BadVector):
        pair_sign(3, 3)


def test_what_is_no_vector_of_the_round() -> None:
    masker = Masker(25)
    with pytest.raises(BadVector):
        masker.apply(np.zeros(4, "<u8"), bytes(32), 1)
    with pytest.raises(BadVector):
        masker.apply(np.zeros((2, 2), "<u4"), bytes(32), 1)
    with pytest.raises(BadParameters):
        masker.apply(np.zeros(4, "<u4"), bytes(31), 1)
