"""Tensors as bytes: as the safetensors library writes and reads them, headers that lie, digests."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.tensors import (
    BF16,
    HEADER_LIMIT,
    NUMPY_DTYPES,
    MalformedTensors,
    ManifestMismatch,
    TensorError,
    Tensors,
    TrailingBytes,
    TruncatedTensors,
    canonical_bytes,
    digest,
    from_bytes,
    narrow,
    numpy_dtype,
    read_header,
    to_bytes,
    widen,
)


def file_of(header: object, data: bytes = b"", *, size: int | None = None) -> bytes:
    """A file with this header, as JSON or as it is, and this data; ``size`` overrides the length it claims."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, dtype: str = "U8", shape: list[int] | None = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def sample() -> Tensors:
    """One tensor of every dtype, each with its own values, one of them BF16."""
    rng = np.random.default_rng(3)
    found: Tensors = {}
    for index, (name, dtype) in enumerate(NUMPY_DTYPES.items()):
        raw = rng.integers(0, 2 if name == "BOOL" else 200, (2, 3 + index))
        found[f"t.{name}"] = narrow(raw.astype(np.float32), "BF16") if name == "BF16" else raw.astype(dtype)
    return found | {"scalar": np.array(2.5, np.float32), "empty": np.zeros((3, 0), np.float32)}


# ---------------------------------------------------------------- the library reads what we write, and the reverse


def test_bytes_are_the_librarys_own_for_every_dtype_it_has_in_numpy() -> None:
    tensors = {name: array for name, array in sample().items() if array.dtype != BF16}
    assert to_bytes(tensors) == safetensors.numpy.save(tensors)
    assert to_bytes(tensors, {"one": 'key "quoted" \n é'}) == safetensors.numpy.save(
        tensors, {"one": 'key "quoted" \n é'}
    )


def test_the_library_reads_what_is_written_and_the_reverse() -> None:
    tensors = {name: array for name, array in sample().items() if array.dtype != BF16}
    theirs = safetensors.numpy.load(to_bytes(tensors))
    ours = from_bytes(safetensors.numpy.save(tensors, {"a": "1", "b": "2"}))
    for name, array in tensors.items():
        np.testing.assert_array_equal(theirs[name], array, strict=True)
        np.testing.assert_array_equal(ours[name], array, strict=True)


def test_bfloat16_as_torch_writes_it() -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load, save

    model = {
        "w": torch.randn(5, 3).to(torch.bfloat16),
        "b": torch.randn(3),
        "n": torch.tensor(7),
        "m": torch.ones(2) > 0,
    }
    data = save(model)
    ours = from_bytes(data)
    assert ours["w"].dtype == BF16
    np.testing.assert_array_equal(widen(ours["w"]), model["w"].float().numpy())
    assert to_bytes(ours) == data
    assert torch.equal(load(to_bytes(ours))["w"], model["w"])


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(lambda n: n != "__metadata__")


@given(st.dictionaries(names, st.sampled_from(["F32", "U8", "I64", "BOOL", "F16"]), max_size=6), st.booleans())
def test_any_names_round_trip_through_the_library(dtypes: dict[str, str], with_metadata: bool) -> None:
    tensors = {name: np.full((2,), 1, numpy_dtype(dtype)) for name, dtype in dtypes.items()}
    data = to_bytes(tensors, {"report": "é\x00\x1f\x7f"} if with_metadata else None)
    assert data == safetensors.numpy.save(tensors, {"report": "é\x00\x1f\x7f"} if with_metadata else None)
    assert set(from_bytes(data)) == set(tensors)


def test_round_trip_of_every_dtype_keeps_dtype_shape_and_bytes() -> None:
    tensors = sample()
    found = from_bytes(to_bytes(tensors))
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert (found[name].dtype, found[name].shape, found[name].tobytes()) == (
            array.dtype,
            array.shape,
            array.tobytes(),
        )


def test_arrays_may_be_written_to_and_the_bytes_they_were_read_from_stay() -> None:
    data = to_bytes({"w": np.arange(6, dtype=np.float32)})
    for source in (data, bytearray(data), memoryview(data)):
        from_bytes(source)["w"][:] = 7
        assert bytes(source) == data


def test_other_byte_orders_and_strides_are_written_as_little_endian_rows() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    np.testing.assert_array_equal(safetensors.numpy.load(to_bytes({"w": array}))["w"], array.astype("<i4"))


def test_a_header_reads_the_same_from_bytes_path_and_stream(tmp_path: Path) -> None:
    data = to_bytes(sample(), {"k": "v"})
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    header = read_header(data)
    assert header == read_header(path) == read_header(io.BytesIO(data)) == read_header(memoryview(data))
    assert header.total_bytes == len(data) == header.data_start + header.manifest.nbytes
    assert header.metadata == {"k": "v"}
    begin, end = header.offsets["t.I64"]
    assert data[begin:end] == sample()["t.I64"].tobytes()


# ---------------------------------------------------------------- files that lie


GOOD = file_of({"a": entry(0, 2), "b": entry(2, 5)}, b"abcde")


BAD: dict[str, tuple[bytes, type[TensorError], str]] = {
    "nothing": (b"", TruncatedTensors, "0 bytes"),
    "half a length": (GOOD[:7], TruncatedTensors, "7 bytes"),
    "half a header": (GOOD[:40], TruncatedTensors, "inside its header"),
    "truncated": (GOOD[:-1], TruncatedTensors, "truncated"),
    "one byte too long": (GOOD + b"\0", TrailingBytes, "too long"),
    "header over the cap": (file_of(b"{}", size=HEADER_LIMIT + 1), MalformedTensors, "at most 4194304"),
    "length of 2^64 - 1": (
        file_of(b"{}", size=2**64 - 1),
        MalformedTensors,
        "this is not a safetensors file: to_bytes",
    ),
    "leading space": (file_of(b" {}"), MalformedTensors, "begin with"),
    "a list": (file_of(b"[]"), MalformedTensors, "begin with"),
    "no JSON": (file_of(b"{,}"), MalformedTensors, "not JSON"),
    "no UTF-8": (file_of(b'{"\xff":1}'), MalformedTensors, "not JSON"),
    "deep": (file_of(b'{"a":' + b"[" * 60000), MalformedTensors, "not JSON"),
    "long number": (file_of(b'{"a":' + b"9" * 50000 + b"}"), MalformedTensors, "not JSON"),
    "fraction": (file_of(b'{"a":1.5}'), MalformedTensors, "whole numbers"),
    "NaN": (file_of(b'{"a":NaN}'), MalformedTensors, "whole numbers"),
    "lone surrogate": (file_of(b'{"\\ud800":1}'), MalformedTensors, "surrogate"),
    "duplicate name": (
        file_of(b'{"a":' + json.dumps(entry(0, 1)).encode() + b',"a":{}}', b"x"),
        MalformedTensors,
        "twice",
    ),
    "gap": (file_of({"a": entry(0, 2), "b": entry(3, 5)}, b"abcde"), MalformedTensors, "gap"),
    "gap at the start": (file_of({"a": entry(1, 5)}, b"abcde"), MalformedTensors, "gap"),
    "overlap": (file_of({"a": entry(0, 3), "b": entry(2, 5)}, b"abcde"), MalformedTensors, "overlaps"),
    "negative offset": (file_of({"a": entry(-1, 2, shape=[3])}, b"abc"), MalformedTensors, "data_offsets"),
    "falling offsets": (file_of({"a": entry(2, 0, shape=[0])}, b"abc"), MalformedTensors, "data_offsets"),
    "boolean offset": (
        file_of(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[false,true]}}', b"a"),
        MalformedTensors,
        "data_o",
    ),
    "three offsets": (file_of({"a": entry(0, 1) | {"data_offsets": [0, 1, 1]}}, b"a"), MalformedTensors, "offsets"),
    "unknown dtype": (file_of({"a": entry(0, 1, "F8_E4M3")}, b"a"), MalformedTensors, "F8_E4M3"),
    "dtype no text": (file_of({"a": entry(0, 1) | {"dtype": ["U8"]}}, b"a"), MalformedTensors, "dtype"),
    "negative dimension": (file_of({"a": entry(0, 1, shape=[-1, -1])}, b"a"), MalformedTensors, "shape"),
    "boolean dimension": (file_of({"a": entry(0, 1) | {"shape": [True]}}, b"a"), MalformedTensors, "shape"),
    "shape no list": (file_of({"a": entry(0, 1) | {"shape": 1}}, b"a"), MalformedTensors, "list"),
    "33 dimensions": (file_of({"a": entry(0, 1, shape=[1] * 33)}, b"a"), MalformedTensors, "33 dimensions"),
    "huge beside zero": (file_of({"a": entry(0, 0, "F32", [0, 2**61])}), MalformedTensors, "memory"),
    "too few bytes": (file_of({"a": entry(0, 4, "F32", [2])}, b"abcd"), MalformedTensors, "takes 4 bytes"),
    "extra key": (file_of({"a": entry(0, 1) | {"strides": [1]}}, b"a"), MalformedTensors, "made of"),
    "missing key": (file_of({"a": {"dtype": "U8", "shape": [1]}}, b"a"), MalformedTensors, "made of"),
    "entry no table": (file_of({"a": 1}), MalformedTensors, "made of"),
    "metadata no table": (file_of({"__metadata__": ["x"]}), MalformedTensors, "__metadata__"),
    "metadata not texts": (file_of({"__metadata__": {"x": 1}}), MalformedTensors, "__metadata__"),
    "boolean of 2": (file_of({"a": entry(0, 1, "BOOL")}, b"\x02"), MalformedTensors, "booleans"),
}


def test_the_good_file_is_good() -> None:
    assert from_bytes(GOOD)["b"].tobytes() == b"cde"


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_a_sentence(case: str, tmp_path: Path) -> None:
    data, error, words = BAD[case]
    with pytest.raises(error, match=words) as caught:
        from_bytes(data)
    assert type(caught.value) is error
    if case != "boolean of 2":
        path = tmp_path / "bad"
        path.write_bytes(data)
        with pytest.raises(error):
            read_header(path)


def test_a_header_of_exactly_the_cap_is_taken_and_one_more_byte_is_not() -> None:
    text = json.dumps({"a": entry(0, 1)}).encode()
    assert read_header(file_of(text.ljust(HEADER_LIMIT), b"x")).data_start == 8 + HEADER_LIMIT
    with pytest.raises(MalformedTensors):
        read_header(file_of(text.ljust(HEADER_LIMIT + 1), b"x"))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["F32", "U8"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "a"]) | st.text(max_size=3), inner
        )
    ),
    max_leaves=12,
)


near_entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "U8", "BOOL", "BF16", "X"]) | json_values,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 12), min_size=2, max_size=2) | json_values,
    }
)


@given(
    st.binary(max_size=200) | st.dictionaries(st.text(max_size=3), near_entries | json_values, max_size=3),
    st.binary(max_size=16),
)
def test_fuzzed_headers_raise_nothing_but_tensor_errors(header: bytes | dict[str, object], data: bytes) -> None:
    with contextlib.suppress(TensorError):
        tensors = from_bytes(file_of(header, data))
        assert sum(array.nbytes for array in tensors.values()) == len(data)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(place: int, value: int) -> None:
    changed = bytearray(GOOD)
    changed[place] = value
    with contextlib.suppress(TensorError):
        assert sum(array.nbytes for array in from_bytes(bytes(changed)).values()) == 5


def test_writing_refuses_what_reading_would() -> None:
    with pytest.raises(ManifestMismatch, match="complex"):
        to_bytes({"w": np.zeros(1, np.complex64)})
    with pytest.raises(ManifestMismatch):
        to_bytes({"w": np.array(["text"])})
    with pytest.raises(MalformedTensors, match="too many tensors"):
        to_bytes({f"{i:04000}": np.zeros(1, np.float32) for i in range(1100)})
    with pytest.raises(MalformedTensors, match="UTF-8"):
        to_bytes({"\ud800": np.zeros(1, np.float32)})
    with pytest.raises(MalformedTensors, match="named"):
        to_bytes({"__metadata__": np.zeros(1, np.float32)})


# ---------------------------------------------------------------- digests


def test_canonical_bytes_depend_on_the_tensors_alone() -> None:
    tensors = sample()
    plain = to_bytes(tensors)
    shuffled = dict(reversed(tensors.items()))
    assert canonical_bytes(to_bytes(shuffled, {"k": "v", "j": "w"})) == plain == canonical_bytes(plain)
    changed = tensors | {"scalar": np.array(2.25, np.float32)}
    assert canonical_bytes(to_bytes(changed)) != plain


def test_canonical_bytes_of_another_layout() -> None:
    ours = to_bytes({"a": np.arange(2, dtype=np.uint8), "b": np.arange(3, dtype=np.uint8)})
    header = {"b": entry(0, 3), "a": entry(3, 5)}
    assert canonical_bytes(file_of(header, bytes([0, 1, 2, 0, 1]))) == ours


def test_digest_is_sha256() -> None:
    assert digest(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_state_of_torch_is_written_as_its_arrays_are() -> None:
    torch = pytest.importorskip("torch")
    state = torch.nn.BatchNorm1d(3).state_dict() | {"half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)}
    found = from_bytes(to_bytes(dict(state)))
    assert found.keys() == state.keys()
    assert widen(found["half"]).tolist() == [1.5, -2.0]
    assert found["num_batches_tracked"].shape == ()
    assert to_bytes({"w": torch.ones(2, 3).T}) == to_bytes({"w": np.ones((3, 2), np.float32)})
