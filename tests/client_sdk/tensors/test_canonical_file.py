"""A safetensors file is read in blocks as the bytes that ``canonical_bytes`` gives of it in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client_sdk.tensors import MalformedTensors, TensorError, TruncatedTensors, canonical_bytes, digest
from client_sdk.tensors import safetensors_file as module
from client_sdk.tensors.safetensors_file import CanonicalFile, canonical_digest


def file_of(path: Path, header: object, data: bytes) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(
            st.sampled_from(["F32", "F16", "U8", "I64", "BOOL"]), st.lists(st.integers(0, 4), max_size=3).map(tuple)
        ),
        max_size=5,
    ),
    st.integers(1, 40),
    st.data(),
)
def test_blocks_are_the_canonical_bytes(
    tmp_path: Path, specs: dict[str, tuple[str, tuple[int, ...]]], block: int, data: st.DataObject
) -> None:
    """Whatever the order of the tensors in the file, the metadata, and the size of a block."""
    dtypes = {"F32": np.float32, "F16": np.float16, "U8": np.uint8, "I64": np.int64, "BOOL": np.uint8}
    header: dict[str, object] = {"__metadata__": {"author": "me"}} if data.draw(st.booleans()) else {}
    parts, at = [], 0
    for name in data.draw(st.permutations(sorted(specs))):
        dtype, shape = specs[name]
        raw = (np.arange(int(np.prod(shape))) % 2).astype(dtypes[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    path = file_of(tmp_path / "model.safetensors", header, b"".join(parts))
    wanted = canonical_bytes(path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        file = CanonicalFile(path)
        head, *blocks = file.blocks()
        assert head + b"".join(blocks) == wanted
        assert max(map(len, blocks), default=0) <= block
        assert (file.size, file.digest()) == (len(wanted), digest(wanted))
        assert canonical_digest(path) == canonical_digest(path.read_bytes()) == digest(wanted)


def test_a_wrong_header_of_a_large_file_is_reported_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(20 << 30)  # sparse: 20 GiB that need no disk
    with pytest.raises(TensorError):
        CanonicalFile(path)


def test_data_that_cannot_be_is_refused_while_it_is_read(tmp_path: Path) -> None:
    entry = {"b": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}}
    file = CanonicalFile(file_of(tmp_path / "model.safetensors", entry, bytes([0, 1, 2])))
    with pytest.raises(MalformedTensors, match="neither 0 nor 1"):
        file.digest()


def test_a_file_that_becomes_shorter_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors.numpy.save({"w": np.zeros(100, np.float32)}))
    file = CanonicalFile(path)
    with path.open("r+b") as shorter:
        shorter.truncate(200)
    with pytest.raises(TruncatedTensors, match="became shorter"):
        file.digest()


def test_repro_one_model_has_one_digest_in_whatever_file() -> None:
    """By the digests of their files, these are many checkpoints; a device would sign a list on each of them."""
    tensors = {"a": np.arange(3, dtype=np.float32), "b": np.ones((2, 2), np.float32)}
    plain = safetensors.numpy.save(tensors)
    raw = tensors["b"].tobytes() + tensors["a"].tobytes()
    header = {
        "b": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "a": {"dtype": "F32", "shape": [3], "data_offsets": [16, 28]},
    }
    files = [plain, safetensors.numpy.save(tensors, {"salt": "1"})]
    for text in (json.dumps(header).encode(), json.dumps(header).encode() + b" " * 24):
        files.append(len(text).to_bytes(8, "little") + text + raw)
    assert len({digest(file) for file in files}) == 4
    assert {canonical_digest(file) for file in files} == {digest(plain)}


@pytest.mark.parametrize(
    "other",
    [
        {"a": np.array([0, 1, 3], np.float32)},
        {"b": np.array([0, 1, 2], np.float32)},
        {"a": np.array([[0, 1, 2]], np.float32)},
        {"a": np.array([0, 1, 2], np.float32).view(np.int32)},
        {"a": np.array([-0.0, 1, 2], np.float32)},
        {"a": np.array([0, 1, 2], np.float32), "empty": np.empty(0, np.float32)},
    ],
    ids=["value", "name", "shape", "dtype", "sign of zero", "one more"],
)
def test_other_tensors_have_another_digest(other: dict[str, np.ndarray[Any, Any]]) -> None:
    model = safetensors.numpy.save({"a": np.array([0, 1, 2], np.float32)})
    assert canonical_digest(safetensors.numpy.save(other)) != canonical_digest(model)
