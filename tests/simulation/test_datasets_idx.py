"""Any bytes as an idx file: the values that were written, or one sentence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.datasets.cache import DataCorrupt
from simulation.datasets.mnist_images import decode_idx, idx_bytes

SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)


def written(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


@given(SHAPES, st.binary(min_size=64, max_size=64))
def test_what_was_written_is_read(shape: tuple[int, ...], drawn: bytes) -> None:
    values = np.frombuffer(drawn, np.uint8)[: int(np.prod(shape))].reshape(shape)
    file = written(values)
    assert len(file) == idx_bytes(shape)
    assert decode_idx(file, shape, "it").tolist() == values.tolist()


@given(SHAPES, st.data())
def test_a_file_with_another_header_or_length_is_refused(shape: tuple[int, ...], data: st.DataObject) -> None:
    file = written(np.zeros(shape, np.uint8))
    head = file[: 4 + 4 * len(shape)]
    other = data.draw(
        st.binary(max_size=40).filter(lambda found: found[: len(head)] != head or len(found) != len(file))
    )
    with pytest.raises(DataCorrupt, match=r"^the labels (is no idx file|states shape|has \d+ bytes)"):
        decode_idx(other, shape, "the labels")
    with pytest.raises(DataCorrupt, match=r"where its shape needs"):
        decode_idx(file + b"\0", shape, "the labels")
