"""Flower's records as bytes: what comes back is what was sent, and damaged bytes give one clear error."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from client_sdk.flower import records as module
from client_sdk.flower.records import MAGIC, RecordsError, decode, encode


def content(records: RecordDict) -> bytes:
    encoded = encode(records)
    whole = b"".join(encoded.parts())
    assert len(whole) == encoded.length
    assert hashlib.sha256(whole).hexdigest() == encoded.digest
    return whole


def told(records: RecordDict) -> list[object]:
    """What the records hold, with types, order and the bits of floats."""

    def value(one: object) -> object:
        if isinstance(one, list):
            return [value(part) for part in one]
        return (type(one).__name__, "nan" if isinstance(one, float) and math.isnan(one) else repr(one))

    def item(one: object) -> object:
        return (one.dtype, one.shape, one.stype, one.data) if isinstance(one, Array) else value(one)

    return [
        (name, type(record).__name__, [(key, item(one)) for key, one in record.items()])
        for name, record in records.items()
    ]


def opaque(data: bytes, stype: str = "numpy.ndarray") -> RecordDict:
    return RecordDict({"a": ArrayRecord({"w": Array("", (), stype, data)})})


KEYS = st.text(max_size=8)
INTS = st.integers(-(2**70), 2**70)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
ARRAYS = hnp.arrays(
    st.one_of(hnp.scalar_dtypes(), hnp.unicode_string_dtypes()),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3),
)


@st.composite
def array_items(draw: Callable[[st.SearchStrategy[object]], object]) -> Array:
    array = draw(ARRAYS)
    assert isinstance(array, np.ndarray)
    return Array(np.asfortranarray(array) if draw(st.booleans()) else array)


OTHER = st.builds(
    Array, st.just("x"), st.tuples(st.integers(0, 9)), st.sampled_from(["a", "numpy.ndarray"]), st.binary(max_size=40)
)
METRICS = st.one_of(INTS, FLOATS, st.lists(INTS, max_size=4), st.lists(FLOATS, max_size=4))
CONFIG = st.one_of(
    METRICS, st.booleans(), st.text(max_size=9), st.binary(max_size=9), st.lists(st.binary(max_size=4), max_size=3),
    st.lists(st.text(max_size=4), max_size=3), st.lists(st.booleans(), max_size=3),
)  # fmt: skip
RECORDS = st.one_of(
    st.builds(ArrayRecord, st.dictionaries(KEYS, st.one_of(array_items(), OTHER), max_size=3)),
    st.builds(MetricRecord, st.dictionaries(KEYS, METRICS, max_size=4)),
    st.builds(ConfigRecord, st.dictionaries(KEYS, CONFIG, max_size=4)),
)
DICTS = st.builds(RecordDict, st.dictionaries(KEYS, RECORDS, max_size=4))


@given(DICTS)
def test_what_comes_back_is_what_was_sent(records: RecordDict) -> None:
    whole = content(records)
    back = decode(whole)
    assert told(back) == told(records)
    assert content(back) == whole


@pytest.mark.slow
@given(DICTS, st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_damaged_bytes_give_one_error(records: RecordDict, random: object) -> None:
    whole = bytearray(content(records))
    for _ in range(random.randint(1, 4)):  # type: ignore[attr-defined]
        at = random.randrange(len(whole))  # type: ignore[attr-defined]
        match random.randrange(3):  # type: ignore[attr-defined]
            case 0:
                whole[at] = random.randrange(256)  # type: ignore[attr-defined]
            case 1:
                del whole[at : at + random.randint(1, 9)]  # type: ignore[attr-defined]
            case _:
                whole[at:at] = random.randbytes(random.randint(1, 9))  # type: ignore[attr-defined]
        if not whole:
            break
    try:
        decode(whole)
    except RecordsError as error:
        said = str(error)
    else:
        said = "."
    assert said.endswith(".")


@given(st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["key", "dtype", "shape", "stype", "raw", "bytes", "b", "f"]), inner),
        st.tuples(st.text(max_size=2), st.sampled_from(["arrays", "metrics", "config"]), inner),
    ),
    max_leaves=12,
))  # fmt: skip
def test_any_header_is_read_or_refused(header: object) -> None:
    text = json.dumps(header).encode()
    try:
        decode(MAGIC + len(text).to_bytes(8, "little") + text + bytes(16))
    except RecordsError as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said


def test_order_of_insertion_is_part_of_the_content() -> None:
    first = RecordDict({"b": MetricRecord({"y": 1, "x": 2}), "a": MetricRecord()})
    other = RecordDict({"a": MetricRecord(), "b": MetricRecord({"y": 1, "x": 2})})
    assert list(decode(content(first))) == ["b", "a"]
    assert encode(first).digest != encode(other).digest


def test_arrays_travel_without_their_file_header_and_without_a_copy() -> None:
    array = Array(np.arange(1 << 20, dtype=np.float32))
    records = RecordDict({"arrays": ArrayRecord({"w": array})})
    tracemalloc.start()
    encoded = encode(records)
    for _ in encoded.parts():
        pass
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 1 << 20
    assert b"NUMPY" not in b"".join(encoded.parts())


def test_decoding_a_file_copies_each_array_once(tmp_path: Path) -> None:
    size = 8 << 20
    path = tmp_path / "content"
    path.write_bytes(content(RecordDict({"arrays": ArrayRecord([np.ones(size // 8), np.ones(size // 8)])})))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        tracemalloc.start()
        records = decode(mapped)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert used < 2 * size + (1 << 20)
    assert records.array_records["arrays"]["1"].numpy().sum() == size // 8


def test_numbers_of_numpy_become_plain_ones() -> None:
    back = decode(content(RecordDict({"m": MetricRecord({"a": np.float64(0.1), "b": [np.float64(1.5)]})})))
    assert told(back) == told(RecordDict({"m": MetricRecord({"a": 0.1, "b": [1.5]})}))


def test_array_of_python_objects_is_refused_by_sender_and_receiver() -> None:
    file = b"\x93NUMPY\x01\x00" + (64).to_bytes(2, "little")
    file += b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(63) + b"\n" + b"cos\nsystem"
    with pytest.raises(RecordsError, match=r"array 'w' of the record 'a' .* Python objects, which only pickle"):
        encode(opaque(file))
    whole = content(opaque(file, stype="numpy.ndarraz")).replace(b"ndarraz", b"ndarray")
    with pytest.raises(RecordsError, match=r"array 'w' is refused: it holds Python objects"):
        decode(whole)


def test_long_lists_of_metrics_are_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEADER_LIMIT", 100)
    with pytest.raises(RecordsError, match=r"as an array, in an ArrayRecord\.$"):
        encode(RecordDict({"m": MetricRecord({"losses": [0.5] * 100})}))


def test_number_that_no_json_can_hold_is_refused() -> None:
    with pytest.raises(RecordsError, match=r"^A value of a message cannot be sent"):
        encode(RecordDict({"m": MetricRecord({"huge": 10**5000})}))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ([["a", "arrays", [{"key": "w", "dtype": "", "shape": [], "stype": "x", "bytes": 2**62}]]], "expected at"),
        ([["a", "arrays", [{"key": "w", "dtype": "", "shape": [], "stype": "x", "bytes": -1}]]], "no size"),
        (
            [["a", "arrays", [{"key": "w", "dtype": "", "shape": [], "stype": "x", "raw": ["<f8", [2**40, 2**40]]}]]],
            "expected at",
        ),
        (
            [["a", "arrays", [{"key": "w", "dtype": "", "shape": [], "stype": "x", "raw": ["|O", [1]]}]]],
            "dtype or a number of dimensions that does not exist",
        ),
        ([["m", "metrics", [["x", "text"]]]], "malformed"),
        ([["m", "metrics", [["x", 1], ["x", 2]]]], "'x' twice"),
        ([["m", "metrics", []], ["m", "config", []]], "'m' twice"),
        ([["m", "pickles", []]], "malformed"),
        ({}, "bytes too many"),
        (7, "malformed"),
    ],
)
def test_malformed_header_is_refused_before_anything_is_allocated(header: object, says: str) -> None:
    text = json.dumps(header).encode()
    whole = MAGIC + len(text).to_bytes(8, "little") + text + b"12345678"
    tracemalloc.start()
    with pytest.raises(RecordsError, match=says):
        decode(whole)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("whole", "says"),
    [
        (b"", "no content of a Flower message"),
        (b"\x80\x04K\x01." * 10, "no content of a Flower message"),
        (MAGIC + (2**40).to_bytes(8, "little") + b"[]", "cut off or damaged"),
        (MAGIC + (2).to_bytes(8, "little") + b"[[", "no JSON"),
        (MAGIC + (200000).to_bytes(8, "little") + b"[" * 200000, "no JSON"),
    ],
)
def test_bytes_that_are_no_content_are_refused(whole: bytes, says: str) -> None:
    with pytest.raises(RecordsError, match=says):
        decode(whole)
