"""The contract of all codecs, also of packages: ``class TestMine(CodecContract): codec = MINE``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.codecs import Codec, Origin, longest_body
from client_sdk.protocol.names import CODEC_PATTERN
from client_sdk.tensors import (
    Manifest,
    ManifestMismatch,
    NotFinite,
    Tensors,
    TruncatedTensors,
    flatten,
    from_bytes,
    read_header,
    to_bytes,
)

ORIGIN = Origin(seed=3, round=7, device="d1")


class CodecContract:
    codec: Codec
    error = 1.0
    """The most that a value is off, as a part of the largest magnitude of its tensor."""
    whole_error = 0.0
    """The most that it is off beyond that, as a part of the largest magnitude of all tensors: for codecs that mix
    them."""

    def delta(self) -> Tensors:
        rng = np.random.default_rng(1)
        return {
            "layer.weight": rng.normal(size=(37, 61)).astype(np.float32),
            "b": (rng.normal(size=5) * 1e-4).astype(np.float32),
            "scalar": np.array(0.75, np.float32),
            "none": np.zeros((0, 3), np.float32),
            "flat": np.zeros(3000, np.float32),
        }

    def body(self, delta: Tensors, origin: Origin = ORIGIN) -> bytes:
        return to_bytes(self.codec.encode(delta, origin), {"k": "v"})

    def test_its_name_has_a_version(self) -> None:
        assert re.fullmatch(CODEC_PATTERN, self.codec.name)

    def test_what_comes_back_has_the_names_and_shapes_and_is_near(self) -> None:
        delta = self.delta()
        found = self.codec.decode(self.codec.encode(delta, ORIGIN))
        assert found.keys() == delta.keys()
        beyond = self.whole_error * max(float(np.abs(array).max(initial=0.0)) for array in delta.values())
        for name, array in delta.items():
            assert (found[name].shape, found[name].dtype) == (array.shape, np.dtype(np.float32))
            most = self.error * float(np.abs(array).max(initial=0.0)) + beyond
            assert (np.abs(found[name] - array) <= most).all()
            if self.codec.lossless:
                assert found[name].tobytes() == array.tobytes()

    def test_the_same_update_gives_the_same_bytes(self) -> None:
        delta = self.delta()
        turned = dict(reversed(delta.items()))
        assert self.body(delta) == self.body(delta) == self.body(turned)

    def test_encoding_changes_nothing_that_was_given_and_no_global_chance(self) -> None:
        delta = self.delta()
        before = {name: array.tobytes() for name, array in delta.items()}
        np.random.seed(3)
        drawn = np.random.get_state()[1].tobytes()  # type: ignore[index]
        self.codec.encode(delta, ORIGIN)
        assert np.random.get_state()[1].tobytes() == drawn  # type: ignore[index]
        assert {name: array.tobytes() for name, array in delta.items()} == before

    def test_what_travels_is_what_it_says_and_no_longer(self) -> None:
        body = self.body(self.delta())
        manifest = Manifest.of(self.delta())
        assert read_header(body).manifest == self.codec.wire(manifest)
        assert self.codec.wire(manifest.with_dtype("F16")) == self.codec.wire(manifest), "dtypes do not matter"
        assert len(body) <= longest_body(self.codec, manifest)

    @pytest.mark.parametrize("block", [1, 7, 1000, 1024, 65536])
    def test_blocks_are_the_flat_vector_from_files_and_from_memory(self, tmp_path: Path, block: int) -> None:
        body = self.body(self.delta())
        whole = flatten(self.codec.decode(from_bytes(body)), Manifest.of(self.delta()))
        path = tmp_path / "body"
        path.write_bytes(body)
        for source in (body, bytearray(body), memoryview(body), path):
            parts = [part.copy() for part in self.codec.blocks(source, read_header(body), block)]
            assert all(0 < part.size <= block and part.dtype == np.float32 for part in parts)
            assert np.concatenate(parts).tobytes() == whole.tobytes()

    def test_a_block_ends_where_its_tensor_ends(self) -> None:
        body = self.body({"a": np.ones(3, np.float32), "b": np.ones(5, np.float32)})
        assert [part.size for part in self.codec.blocks(body, read_header(body), 4)] == [3, 4, 1]

    def test_a_file_that_became_shorter_is_found_out(self, tmp_path: Path) -> None:
        body = self.body(self.delta())
        path = tmp_path / "body"
        path.write_bytes(body[:-2000])
        with pytest.raises(TruncatedTensors, match="shorter"):
            list(self.codec.blocks(path, read_header(body)))

    def test_tensors_of_another_codec_are_refused(self) -> None:
        other: dict[str, Any] = {"w": np.zeros(3, np.uint64)}
        body = to_bytes(other)
        with pytest.raises(ManifestMismatch):
            self.codec.decode(other)
        with pytest.raises(ManifestMismatch):
            list(self.codec.blocks(body, read_header(body)))

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite_is_refused_by_its_name(self, value: float) -> None:
        with pytest.raises(NotFinite, match="'b'"):
            self.codec.encode(self.delta() | {"b": np.array([0.1, value], np.float32)}, ORIGIN)

    @pytest.mark.parametrize("dtype", [np.float64, np.int32])
    def test_only_float32_is_encoded(self, dtype: Any) -> None:
        with pytest.raises(ManifestMismatch, match="a codec takes float32"):
            self.codec.encode({"w": np.zeros(2, dtype)}, ORIGIN)

    def test_a_model_of_one_value_and_one_of_none_travel(self) -> None:
        for array in (np.array(3.5, np.float32), np.zeros(0, np.float32)):
            found = self.codec.decode(self.codec.encode({"w": array}, ORIGIN))["w"]
            np.testing.assert_allclose(found, array, rtol=1e-2)
