"""The entropy-coded codecs: their error and sizes, what is not biased, what travels, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import codecs
from client_sdk.codecs import EDEN, ENTROPY, EntropyCoded, Origin, rans
from client_sdk.codecs.entropy import CODES, HEAD, NARROWEST, SHORTEST, _from_bits, _model, _to_bits
from client_sdk.tensors import Manifest, ManifestMismatch, OutOfRange, Tensors, from_bytes, read_header, to_bytes
from tests.rotating import taking_turns

NAMES = [codec.name for codec in ENTROPY]
ONE, TWO, FOUR = ENTROPY
each = pytest.mark.parametrize("codec", ENTROPY, ids=NAMES)
in_turns = pytest.mark.parametrize("codec", taking_turns(*ENTROPY), ids=NAMES)


def decoded(codec: codecs.Codec, values: Any, **origin: Any) -> Any:
    return codec.decode(codec.encode({"w": np.asarray(values, np.float32)}, Origin(**origin)))["w"]


def error(found: Any, values: Any) -> float:
    """||found - values||^2 / ||values||^2."""
    return float(((found - values.astype(np.float64)) ** 2).sum() / (values.astype(np.float64) ** 2).sum())


def normal(*shape: int) -> Any:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def unequal() -> Any:
    """A matrix whose rows and columns are of very unequal variances, as updates are."""
    rng = np.random.default_rng(2)
    sizes = np.exp(rng.normal(size=(100, 1)) * 1.5) * np.exp(rng.normal(size=(1, 200)) * 1.5)
    return (rng.normal(size=(100, 200)) * sizes).astype(np.float32)


def sparse() -> Any:
    rng = np.random.default_rng(3)
    return np.where(rng.random(30_000) < 0.01, rng.normal(size=30_000), 0).astype(np.float32)


KINDS = {
    "dense": normal(40_000),
    "matrix": unequal(),
    "sparse": sparse(),
    "heavy tails": np.random.default_rng(4).standard_t(1.5, size=20_000).astype(np.float32),
    "one large": np.append(np.full(5000, 1e-12), 6e4).astype(np.float32),
    "subnormal": np.full(2000, 1e-44, np.float32),
    "constant": np.ones(2000, np.float32),
    "of few values": np.array([3, -1, 0, 0.5], np.float32),
}


# ---------------------------------------------------------------- error, bias and size


@each
@pytest.mark.parametrize("kind", KINDS)
def test_a_body_has_the_bytes_of_its_name_and_an_error_within_reason(codec: EntropyCoded, kind: str) -> None:
    values = KINDS[kind]
    tensors = codec.encode({"w": values}, Origin())
    assert tensors[CODES].size == -(-max(values.size, SHORTEST) * codec.bits // 8)
    assert sum(array.nbytes for array in tensors.values()) == tensors[CODES].size
    found = codec.decode(tensors)["w"]
    assert np.isfinite(found).all()
    assert error(found, values) < {1: 1.2, 2: 0.2, 4: 0.012}[codec.bits]


@pytest.mark.parametrize(("codec", "eden"), list(zip(ENTROPY, EDEN, strict=True)), ids=NAMES)
@pytest.mark.parametrize("kind", ["matrix", "sparse"])
def test_unequal_variances_have_less_than_half_of_edens_error(
    codec: EntropyCoded, eden: codecs.Codec, kind: str
) -> None:
    values = KINDS[kind]
    assert error(decoded(codec, values), values) < error(decoded(eden, values), values) / 2


@in_turns
def test_the_mean_of_10000_draws_is_the_delta(codec: EntropyCoded) -> None:
    """10,000 runs of the same 64 values, each with a dither of its own, in one body. The squared error of the mean is
    the 10,000th part of one draw's; with a bias it would be more."""
    draws = 10_000
    values = (np.random.default_rng(5).normal(size=64) * np.repeat([0.01, 0.3, 1, 3], 16)).astype(np.float32)
    found = decoded(codec, np.tile(values, draws)).reshape(draws, 64).astype(np.float64)
    one = ((found - values) ** 2).mean(axis=0)
    assert error(found.mean(axis=0), values) < 1.6 * error(found, np.tile(values, (draws, 1))) / draws
    deviations = np.abs(found.mean(axis=0) - values) / np.sqrt(one / draws + 1e-30)
    assert deviations.max() < 4.5, "each value by itself"


@pytest.mark.slow
@in_turns
def test_the_step_and_what_fits_are_no_bias(codec: EntropyCoded) -> None:
    """In whole bodies, each with a search of its own."""
    values, draws = KINDS["matrix"][:40, :40], 200
    found = np.stack([decoded(codec, values, round=number) for number in range(draws)]).astype(np.float64)
    one = np.mean([error(draw, values) for draw in found])
    assert error(found.mean(axis=0), values) < 1.25 * one / draws


@each
def test_zeros_stay_zeros(codec: EntropyCoded) -> None:
    assert not decoded(codec, np.zeros(70_000)).any()
    values = unequal()
    values[7], values[:, 9] = 0, 0
    found = decoded(codec, values)
    assert not found[7].any()
    assert not found[:, 9].any()


# ---------------------------------------------------------------- what travels


def test_all_chance_is_the_origins() -> None:
    origins = [{"seed": 1}, {"round": 1}, {"device": "1"}, {}]
    bodies = {to_bytes(ONE.encode({"w": normal(700)}, Origin(**origin))) for origin in origins}  # type: ignore[arg-type]
    assert len(bodies) == len(origins)
    assert to_bytes(ONE.encode({"w": normal(700)}, Origin(plan="another"))) in bodies


SCRIPT = """
import hashlib
import numpy as np
from client_sdk.codecs import ENTROPY, Origin
from client_sdk.tensors import read_header, to_bytes

values = ((np.arange(150_000) * 7919 % 2003 - 1001) / 1024).astype(np.float32)
values *= np.repeat(np.float32(2) ** -np.arange(15, dtype=np.float32), 10_000)
delta = {"v": values[:90_000], "w": values[90_000:].reshape(60, -1), "b": values[:5]}
for codec in ENTROPY:
    body = to_bytes(codec.encode(delta, Origin(seed=3, round=7, device="d1")))
    back = b"".join(part.tobytes() for part in codec.blocks(body, read_header(body)))
    print(hashlib.sha256(body + back).hexdigest()[:32])
"""
GOLDEN = [
    "99a5d82c15c94fd04e11539af59491a5",
    "eacdb157a0bba42428e9f0d12ed93dd9",
    "e6f0e4f8ab7ea8ebaf3c3ae9d3dc71a5",
]


def test_the_bytes_and_what_they_mean_are_golden_in_another_process() -> None:
    """Of a vector, a matrix and a few values. Another digest is another codec: machines would not agree."""
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    assert found.split() == GOLDEN


@in_turns
def test_a_file_is_decoded_in_little_memory(codec: EntropyCoded, tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(to_bytes(codec.encode({"w": normal(1500, 1000)}, Origin())))
    header = read_header(path.read_bytes())
    tracemalloc.start()
    try:
        assert sum(part.size for part in codec.blocks(path, header)) == 1_500_000
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


def test_raw_bits_come_back() -> None:
    widths = np.array([0, 3, 24, 1, 0, 7])
    values = np.array([0, 5, 1 << 23, 1, 0, 100])
    assert _from_bits(_to_bits(values, widths), widths).tolist() == values.tolist()


def test_symbols_come_back_and_cost_their_entropy() -> None:
    rng, tables, lanes = np.random.default_rng(0), _model().tables, 16
    contexts = rng.integers(0, len(tables.frequency), 20_000)
    symbols = tables.symbol[contexts, rng.integers(0, 1 << rans.BITS, contexts.size)]
    steps = [(at, min(at + lanes, contexts.size)) for at in range(0, contexts.size, lanes)]
    frequency = tables.frequency[contexts, symbols]
    words = rans.encode(frequency, tables.start[contexts, symbols], steps, lanes)
    entropy = float((rans.BITS - np.log2(frequency)).sum()) / 16
    assert len(words) < entropy * 1.001 + 2 * lanes
    decoder, at, found = rans.Decoder(tables, words[: 2 * lanes]), 2 * lanes, []
    for first, last in steps:
        part, read = decoder.step(contexts[first:last], words[at:])
        found.append(part)
        at += read
    assert np.concatenate(found).tolist() == symbols.tolist()
    assert at == len(words)
    assert decoder.ended


def test_the_bits_of_all_frequencies_add_up() -> None:
    assert (_model().tables.frequency.sum(axis=1) == 1 << rans.BITS).all()


# ---------------------------------------------------------------- what is refused


def changed(codec: EntropyCoded, place: int | slice, value: Any) -> Tensors:
    tensors = codec.encode({"w": unequal()}, Origin(round=1))
    tensors[CODES] = tensors[CODES].copy()
    tensors[CODES][place] = value
    return tensors


def bytes_of(number: float, dtype: str) -> Any:
    return np.frombuffer(np.array([number], dtype).tobytes(), np.uint8)


@each
@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (slice(16, 20), bytes_of(np.nan, "<f4"), "the step is nan"),
        (slice(16, 20), bytes_of(-1, "<f4"), "the step is -1"),
        (slice(16, 20), bytes_of(1e30, "<f4"), r"the step is 1e\+30"),
        (slice(16, 20), bytes_of(0, "<f4"), "bytes are set"),
        (slice(20, 24), bytes_of(2**32 - 1, "<u4"), "do not fit"),
        (slice(20, 24), bytes_of(0, "<u4"), "raw bits|entropy coder"),
        (24, 255, "context 255"),
        (slice(HEAD.size, None), 0, "raw bits|entropy coder"),
        (slice(HEAD.size, None), 255, "raw bits|entropy coder"),
        (slice(0, 16), 7, "raw bits|entropy coder"),
        (-1, 1, "bytes are set behind the last word|entropy coder"),
    ],
)
def test_bytes_that_nobody_makes_are_refused(codec: EntropyCoded, place: Any, value: Any, reason: str) -> None:
    with pytest.raises(OutOfRange, match=reason):
        codec.decode(changed(codec, place, value))


@pytest.mark.slow
@in_turns
def test_any_other_bytes_are_refused_or_decoded_in_bounded_memory(codec: EntropyCoded) -> None:
    rng = np.random.default_rng(6)
    _model()
    refused = 0
    for number in range(23):
        tensors = changed(codec, slice(HEAD.size if number % 2 else 20, None), 0)
        size = tensors[CODES].size - HEAD.size
        tensors[CODES][HEAD.size :] = rng.integers(0, 256, size)
        tensors[CODES][24] = number % 23
        tensors[CODES][20:24] = bytes_of(int(rng.integers(0, size)), "<u4")
        tracemalloc.start()
        try:
            assert np.isfinite(codec.decode(tensors)["w"]).all()
        except OutOfRange:
            refused += 1
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert most < 12_000_000
    assert refused == 23, "the states at the end are those of a whole stream by a chance of 2^-16 a lane"


@each
def test_another_length_is_refused_and_the_name_is_taken(codec: EntropyCoded) -> None:
    tensors = codec.encode({"w": normal(1003)}, Origin())
    with pytest.raises(ManifestMismatch, match=CODES):
        codec.decode(tensors | {CODES: tensors[CODES][:-1]})
    with pytest.raises(ManifestMismatch, match=CODES):
        codec.decode(tensors | {"w": np.zeros((0, 1 << 20, 1 << 20), np.float32)})
    with pytest.raises(ManifestMismatch, match="its own data is there"):
        codec.encode({CODES: normal(5)}, Origin())
    with pytest.raises(codecs.UnknownCodec, match="cannot be added"):
        codecs.linear(codec.name)


def test_shapes_of_every_kind_travel() -> None:
    wide = NARROWEST
    shapes = [(), (0, 5), (wide, wide), (wide - 1, 70), (3,), (wide, 4, 2, 4), (1, 1), (70, wide - 1), (wide, 2, 70)]
    delta = {str(number): normal(*shape) for number, shape in enumerate(shapes)}
    delta["1"] = np.zeros((0, 5), np.float32)
    found = FOUR.decode(from_bytes(to_bytes(FOUR.encode(delta, Origin()))))
    assert {name: array.shape for name, array in found.items()} == {name: array.shape for name, array in delta.items()}
    whole = np.concatenate([delta[name].reshape(-1) for name in sorted(delta)])
    assert error(np.concatenate([found[name].reshape(-1) for name in sorted(found)]), whole) < 0.01
    assert Manifest.of(FOUR.encode(delta, Origin())) == FOUR.wire(Manifest.of(delta))
