"""The largest values alone: which are sent, their error, and bodies that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk import codecs
from client_sdk.codecs import Origin
from client_sdk.tensors import Manifest, ManifestMismatch, OutOfRange, Tensors, TensorSpec, read_header, to_bytes

TENTH, HUNDREDTH = codecs.TOP


def test_the_largest_of_all_tensors_are_sent_and_of_equal_ones_the_first() -> None:
    delta = {"a": np.array([3, -1, 2, 1, 1], np.float32), "b": np.full((3, 5), -2, np.float32)}
    found = TENTH.decode(TENTH.encode(delta, Origin()))
    assert found["a"].tolist() == [3, 0, 2, 0, 0]
    assert not found["b"].any()
    delta["b"][2, 4] = -9
    assert TENTH.decode(TENTH.encode(delta, Origin()))["b"][2, 4] == -9


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 99, 100, 101, 250])
def test_as_many_values_are_sent_as_a_part_of_all_rounded_up(count: int) -> None:
    delta = {"w": np.linspace(1, 2, count, dtype=np.float32)}
    for codec, one_of in ((TENTH, 10), (HUNDREDTH, 100)):
        sent = codec.encode(delta, Origin())
        assert sent["top.places"].size == sent["top.values"].size == -(-count // one_of)


@pytest.mark.parametrize(("codec", "error", "size"), [(TENTH, 0.560, 0.8), (HUNDREDTH, 0.915, 0.08)])
def test_the_error_of_a_gaussian_vector_is_the_one_that_is_documented(
    codec: codecs.Codec, error: float, size: float
) -> None:
    delta = {"w": np.random.default_rng(0).standard_normal(100_000).astype(np.float32)}
    sent = codec.encode(delta, Origin())
    assert sum(array.nbytes for array in sent.values()) / 100_000 == pytest.approx(size, rel=0.01)
    missed = codec.decode(sent)["w"] - delta["w"]
    assert float((missed**2).sum() / (delta["w"] ** 2).sum()) == pytest.approx(error, abs=0.01)


@pytest.mark.parametrize("places", [[1, 1], [5, 3], [3, 20], [3, 2**32 - 1]])
def test_places_that_do_not_rise_or_are_beyond_the_end_are_refused(places: list[int]) -> None:
    sent = TENTH.encode({"w": np.arange(20, dtype=np.float32)}, Origin())
    sent["top.places"] = np.array(places, np.uint32)
    with pytest.raises(OutOfRange, match="do not rise, or are beyond 20 values"):
        TENTH.decode(sent)
    body = to_bytes(sent)
    with pytest.raises(OutOfRange):
        list(TENTH.blocks(body, read_header(body)))


def test_other_counts_and_names_are_refused() -> None:
    sent: Tensors = TENTH.encode({"w": np.arange(20, dtype=np.float32)}, Origin())
    with pytest.raises(ManifestMismatch):
        TENTH.decode({**sent, "top.values": sent["top.values"][:1]})
    with pytest.raises(ManifestMismatch, match="its own data is there"):
        TENTH.wire(Manifest({"top.places": TensorSpec("F32", (2,))}))
    with pytest.raises(ManifestMismatch, match="at most 4,294,967,296 values"):
        TENTH.wire(Manifest({"w": TensorSpec("F32", (2**16, 2**16 + 1))}))
