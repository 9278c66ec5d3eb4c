"""The identity codecs: what travels, what comes back, block by block, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from client_sdk import codecs
from client_sdk.codecs import Codec, UnknownCodec, longest_body
from client_sdk.protocol.devices import Task
from client_sdk.tensors import (
    SHORT_HEADER,
    Manifest,
    ManifestMismatch,
    NotFinite,
    OutOfRange,
    Tensors,
    TruncatedTensors,
    flatten,
    from_bytes,
    read_header,
    to_bytes,
)

BOTH = ["float32@1", "float16@1"]


def deltas() -> Tensors:
    rng = np.random.default_rng(4)
    return {
        "w": rng.normal(0, 0.1, (7, 30)).astype(np.float32),
        "b": rng.normal(0, 0.1, 30).astype(np.float32),
        "scale": np.array(0.25, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }


@pytest.fixture(params=BOTH)
def codec(request: pytest.FixtureRequest) -> Codec:
    return codecs.get(request.param)


def test_the_default_of_a_task_is_a_codec() -> None:
    assert codecs.get(Task(learner="a:b").codec).name == "float32@1"
    assert set(BOTH) <= set(codecs.names())


@pytest.mark.parametrize("name", ["float32", "float32@2", "", "x" * 10_000])
def test_an_unknown_codec_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownCodec, match=r"float32@1, float16@1") as caught:
        codecs.get(name)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("versions", [(1,), (1, 2)])
def test_a_package_brings_one_codec_or_several_versions_of_it(
    monkeypatch: pytest.MonkeyPatch, versions: tuple[int, ...]
) -> None:
    brought = [SimpleNamespace(name=f"clinic:sketch@{version}") for version in versions]
    entry = SimpleNamespace(version="1.2", load=lambda: brought if len(brought) > 1 else brought[0])
    monkeypatch.setattr(codecs, "extensions", lambda group: {"clinic:sketch": entry})
    codecs._of_package.cache_clear()
    try:
        assert [codecs.get(codec.name) for codec in brought] == brought
        have = ", ".join(codec.name for codec in brought)
        with pytest.raises(UnknownCodec, match=f"codec 'clinic:sketch@3', in version 1.2, has {have}$"):
            codecs.get("clinic:sketch@3")
        with pytest.raises(UnknownCodec, match="codec 'clinic:other@1' is not installed here: install its package"):
            codecs.get("clinic:other@1")
    finally:
        codecs._of_package.cache_clear()


def test_float32_gives_back_the_same_bits_and_float16_the_nearest_half() -> None:
    delta = deltas()
    for name, array in codecs.get("float32@1").decode(codecs.get("float32@1").encode(delta)).items():
        assert array.tobytes() == delta[name].tobytes()
    half = codecs.get("float16@1")
    for name, array in half.decode(half.encode(delta)).items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, delta[name].astype(np.float16).astype(np.float32))


@given(hnp.arrays(np.float32, st.integers(0, 20), elements=st.floats(-65504, 65504, width=32)))
def test_float16_is_near_and_stable(array: np.ndarray) -> None:
    codec = codecs.get("float16@1")
    once = codec.decode(codec.encode({"w": array}))
    np.testing.assert_allclose(once["w"], array, rtol=2.0**-11, atol=2.0**-25)
    twice = codec.decode(codec.encode(once))
    assert twice["w"].tobytes() == once["w"].tobytes()


def test_what_travels_is_what_wire_announces(codec: Codec) -> None:
    delta = deltas()
    body = to_bytes(codec.encode(delta))
    expected = codec.wire(Manifest.of(delta))
    assert read_header(body).manifest == expected
    assert list(read_header(body).manifest) == list(expected)
    assert len(body) <= longest_body(codec, Manifest.of(delta)) == 8 + SHORT_HEADER + expected.nbytes


def test_float16_is_half_as_long() -> None:
    manifest = Manifest.of(deltas())
    assert codecs.get("float16@1").wire(manifest).nbytes * 2 == codecs.get("float32@1").wire(manifest).nbytes


@pytest.mark.parametrize("block", [1, 7, 30, 64, 65536])
def test_blocks_are_the_flat_vector_in_order(codec: Codec, block: int, tmp_path: Path) -> None:
    delta = deltas()
    body = to_bytes(codec.encode(delta), {"k": "v"})
    header = read_header(body)
    path = tmp_path / "body"
    path.write_bytes(body)
    expected = flatten(codec.decode(codec.encode(delta)), Manifest.of(delta))
    for source in (body, bytearray(body), memoryview(body), path):
        found = [part.copy() for part in codec.blocks(source, header, block)]
        assert all(part.dtype == np.float32 and 0 < part.size <= block for part in found)
        assert np.concatenate(found).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", codecs.names())
def test_statistics_travel_beside_each_codec_as_they_are(name: str) -> None:
    delta, plain, codec = deltas(), codecs.get(name), codecs.beside(name, ("b", "scale"))
    origin = codecs.Origin(seed=1, round=2, device="d", plan="ab" * 32)
    of_parameters = {name: delta[name] for name in ("empty", "w")}
    of_statistics = {name: delta[name] for name in ("b", "scale")}
    body = to_bytes(codec.encode(delta, origin))
    header, wire = read_header(body), codec.wire(Manifest.of(delta))
    assert list(header.manifest.items()) == list(wire.items())
    assert codec.lossless == plain.lossless == (name == "float32@1")
    found = [part.copy() for part in codec.blocks(body, header, 7)]
    assert max(part.size for part in found) <= 7
    there = plain.decode(plain.encode(of_parameters, origin))
    expected = (*(flatten(part, Manifest.of(part).select(("*",))) for part in (there, of_statistics)),)
    assert np.concatenate(found).tobytes() == np.concatenate(expected).tobytes()
    back = codec.decode(from_bytes(body))
    assert {key: array.tobytes() for key, array in back.items()} == {
        key: array.tobytes() for key, array in (there | of_statistics).items()
    }


def test_a_statistic_that_is_called_as_what_a_codec_keeps_is_refused() -> None:
    delta = {"w": np.ones(3, np.float32), "stochastic8.scales": np.ones(2, np.float32)}
    with pytest.raises(ManifestMismatch, match=r"keeps its own data under the name 'stochastic8\.scales'"):
        codecs.beside("stochastic8@1", ("stochastic8.scales",)).wire(Manifest.of(delta))


def test_blocks_follow_the_names_even_where_the_file_does_not() -> None:
    text = (
        b'{"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
    )
    body = len(text).to_bytes(8, "little") + text + np.array([2, 1], "<f4").tobytes()
    blocks = codecs.get("float32@1").blocks(body, read_header(body))
    assert np.concatenate(list(blocks)).tolist() == [1.0, 2.0]


def test_a_body_of_another_codec_is_refused() -> None:
    body = to_bytes(codecs.get("float16@1").encode(deltas()))
    with pytest.raises(ManifestMismatch, match="F16, expected F32"):
        codecs.get("float32@1").blocks(body, read_header(body))
    with pytest.raises(ManifestMismatch, match="F32, expected F16"):
        codecs.get("float16@1").decode(deltas())


def test_a_file_cut_after_its_header_was_read_is_truncated(codec: Codec, tmp_path: Path) -> None:
    body = to_bytes(codec.encode(deltas()))
    path = tmp_path / "body"
    path.write_bytes(body)
    header = read_header(path)
    path.write_bytes(body[:-3])
    with pytest.raises(TruncatedTensors, match="shorter"):
        list(codec.blocks(path, header))


@pytest.mark.parametrize("value", [65520.0, -65536.0])
def test_float16_refuses_what_it_cannot_hold_and_names_the_tensor(value: float) -> None:
    delta = deltas() | {"b": np.array([0.1, value], np.float32)}
    with pytest.raises(OutOfRange, match=r"'b' does not fit float16@1.*65[0-9]{3}"):
        codecs.get("float16@1").encode(delta)
    assert codecs.get("float32@1").encode(delta)["b"][1] == np.float32(value)


@pytest.mark.parametrize(("value", "error"), [(np.nan, NotFinite), (np.inf, NotFinite), (-1e9, OutOfRange)])
def test_what_no_sum_would_take_is_refused_before_it_travels(
    codec: Codec, value: float, error: type[Exception]
) -> None:
    with pytest.raises(error, match="'b'"):
        codec.encode(deltas() | {"b": np.array([0.1, value], np.float32)})


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
def test_only_float32_deltas_are_encoded(codec: Codec, dtype: type) -> None:
    with pytest.raises(ManifestMismatch, match="takes float32"):
        codec.encode({"w": np.zeros(2, dtype)})


@pytest.mark.parametrize(
    ("decode", "sentence"),
    [
        (lambda one: {}, "gives other tensors than were encoded: what it decodes lacks 'w'"),
        (lambda one: {"w": one.astype(np.float64)}, "what it decodes has 'w' as F64, expected F32"),
        (lambda one: {"w": one[:1]}, r"what it decodes has 'w' of shape \[1\], expected \[3\]"),
        (lambda one: 1 / 0, "failed: ZeroDivisionError: division by zero"),
        (lambda one: None, "failed: "),
    ],
)
def test_a_codec_that_decodes_something_else_is_named_as_such(decode: Any, sentence: str) -> None:
    """The coordinator decodes by blocks: what a simulation took for the update was another one."""
    codec: Any = SimpleNamespace(
        name="lab:odd@1", lossless=False, encode=lambda delta, origin: delta, decode=lambda sent: decode(sent["w"])
    )
    with pytest.raises(codecs.CodecFailed, match=f"^The codec lab:odd@1 .*{sentence}"):
        codecs.as_decoded(codec, {"w": np.ones(3, np.float32)}, codecs.Origin())
