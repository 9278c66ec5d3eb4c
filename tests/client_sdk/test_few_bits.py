"""EDEN, rotated stochastic rounding and the sign: their error, what is biased, what travels, and what is refused."""

from __future__ import annotations

import hashlib
import math
import tracemalloc
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from client_sdk import codecs
from client_sdk.codecs import EDEN, SIGN, STOCHASTIC, FewBits, Origin
from client_sdk.codecs.few_bits import CODES, SCALES, SEED, SHORTEST, STRETCH
from client_sdk.codecs.linear_map import ROTATED_BLOCK
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import Layout, Manifest, ManifestMismatch, Tensors, flatten, read_header, to_bytes
from client_sdk.update import Update, encode_update
from coordinator.engine.aggregation.registry import RULES
from coordinator.folding.validation import check
from tests.coordinator.engine.story import plan
from tests.rotating import on_day

ONE, TWO, FOUR = EDEN
ALL = [*EDEN, SIGN, *STOCHASTIC]
NAMES = [codec.name for codec in ALL]


def decoded(codec: FewBits, values: Any, **origin: Any) -> Any:
    return codec.decode(codec.encode({"w": np.asarray(values, np.float32)}, Origin(**origin)))["w"]


def error(found: Any, values: Any) -> float:
    """||found - values||^2 / ||values||^2."""
    return float(((found - values) ** 2).sum() / (values.astype(np.float64) ** 2).sum())


def sparse(size: int) -> Any:
    """Two values other than 0: what one rotation spreads worst."""
    values = np.zeros(size, np.float32)
    values[[1, 5]] = 3, 1
    return values


# ---------------------------------------------------------------- error and bias


@pytest.mark.parametrize(("codec", "expected"), [(ONE, 0.571), (TWO, 0.134), (FOUR, 0.0096), (SIGN, 0.3634)])
def test_the_error_on_gaussian_vectors_is_that_of_the_papers(codec: FewBits, expected: float) -> None:
    rng = np.random.default_rng(1)
    vectors = [rng.normal(size=size).astype(np.float32) * 0.01 for size in (1 << 16, 200_000, 70_001)]
    for values in vectors:
        assert error(decoded(codec, values), values) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("codec", "bits"), list(zip(STOCHASTIC, (1, 2, 4, 8), strict=True)))
@pytest.mark.parametrize("size", [1 << 16, 200_000, 70_001])
def test_the_error_of_stochastic_rounding_is_that_of_its_steps(codec: FewBits, bits: int, size: int) -> None:
    """Of a value that lies a part p of a step above a level it is p (1 - p) steps^2; and a rotated Gaussian vector is
    as one that is not rotated. In blocks of 65,536 values the largest is some 4.3 times the root mean square."""
    values = np.random.default_rng(size).normal(size=size).astype(np.float32) * 0.01
    steps = values / values.std() * (2**bits - 1) / (2 * 4.3)
    part = (steps + (2**bits - 1) / 2) % 1
    expected = float((part * (1 - part)).mean() * (2 * 4.3 / (2**bits - 1)) ** 2) if bits > 1 else 4.3**2 - 1
    assert error(decoded(codec, values), values) == pytest.approx(expected, rel=0.3)


def test_by_hand_a_value_between_two_levels_becomes_the_upper_one_as_often_as_it_is_near() -> None:
    """Three quarters of the way from -1/3 to 1/3 there is 1/6, in units of the largest value."""
    values = np.full(4000, 1 / 6, np.float32)
    values[0] = 1
    codes, scale = STOCHASTIC[1]._drawn(values, b"seed", 0)
    assert (codes[0], scale) == (3, 1)
    assert set(codes[1:].tolist()) == {1, 2}
    assert np.mean(codes[1:] == 2) == pytest.approx(3 / 4, abs=5 * (3 / 16 / 4000) ** 0.5)


def test_the_levels_are_those_of_least_squared_error() -> None:
    """Each level is the mean of the normal distribution between the middles of it and its neighbours."""
    normal = NormalDist()
    for codec, count in zip(EDEN, (2, 4, 16), strict=True):
        levels = codec.levels
        ends = [-math.inf, *((a + b) / 2 for a, b in pairwise(levels)), math.inf]
        assert len(levels) == count
        for level, (low, high) in zip(levels, pairwise(ends), strict=True):
            density = [0.0 if math.isinf(end) else normal.pdf(end) for end in (low, high)]
            below = [float(end > 0) if math.isinf(end) else normal.cdf(end) for end in (low, high)]
            assert level == pytest.approx((density[0] - density[1]) / (below[1] - below[0]), abs=2e-8)


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        pytest.param(codec, values, marks=on_day(n % 3, of=3))
        for n, (codec, values) in enumerate(
            [
                (ONE, sparse(SHORTEST)),
                (TWO, np.random.default_rng(3).standard_t(1.5, size=600).astype(np.float32)),
                (FOUR, np.random.default_rng(4).normal(size=SHORTEST + 1).astype(np.float32)),
                (STOCHASTIC[0], sparse(SHORTEST)),
                (STOCHASTIC[1], np.random.default_rng(3).standard_t(1.5, size=600).astype(np.float32)),
                (STOCHASTIC[2], np.random.default_rng(4).normal(size=SHORTEST + 1).astype(np.float32)),
                (STOCHASTIC[3], np.linspace(-1, 2, SHORTEST, dtype=np.float32)),
            ]
        )
    ],
    ids=[
        *("eden1, sparse", "eden2, heavy tails", "eden4, dense"),
        *("stochastic1, sparse", "stochastic2, heavy tails", "stochastic4, dense", "stochastic8, linear"),
    ],
)
def test_the_mean_of_10000_draws_is_the_delta(codec: FewBits, values: Any) -> None:
    """The squared error of the mean is the 10,000th part of one draw's; with a bias it would be more."""
    draws = 10_000
    total, errors = np.zeros(values.size), 0.0
    for number in range(draws):
        found = decoded(codec, values, seed=5, round=number, device="d")
        total += found
        errors += error(found, values)
    assert error(total / draws, values) < 1.25 * errors / draws / draws


def test_the_sign_is_biased() -> None:
    values = np.linspace(-1, 2, 102, dtype=np.float32)
    found = np.stack([decoded(SIGN, values, round=number) for number in range(50)])
    assert error(found.mean(axis=0), values) == pytest.approx(error(found[0], values), rel=1e-3)
    assert error(found[0], values) > 0.2


def test_by_hand_the_sign_has_the_mean_magnitude_of_each_tensor() -> None:
    delta = {"b": np.array([[1, -3], [2, -2]], np.float32), "a": np.array([0.5], np.float32)}
    found = SIGN.decode(SIGN.encode(delta, Origin()))
    assert found["b"].tolist() == [[2, -2], [2, -2]]
    assert found["a"].tolist() == [0.5]


def test_the_median_of_signs_is_the_majority_vote() -> None:
    rng = np.random.default_rng(2)
    updates = [(rng.normal(size=400) * size).astype(np.float32) for size in (1, 30, 0.1, 5, 2)]
    columns = np.stack([decoded(SIGN, values, device=str(n)) for n, values in enumerate(updates)])
    voted = RULES["median"].combine(columns, np.ones(5, np.int64), {})  # type: ignore[call-arg]
    majority = np.sign(np.sign(np.stack(updates)).sum(axis=0))
    assert np.sign(voted).tolist() == majority.tolist()


def test_what_no_device_moves_has_signs_by_lot() -> None:
    values = np.zeros(1000, np.float32)
    values[:500] = 1
    mean = np.mean([decoded(SIGN, values, device=str(device)) for device in range(200)], axis=0)
    np.testing.assert_allclose(mean[:500], 1 / 2, rtol=1e-5)
    assert np.abs(mean[500:]).max() < 5 * (1 / 2) / math.sqrt(200)


@pytest.mark.parametrize("codec", ALL, ids=NAMES)
def test_zeros_stay_zeros(codec: FewBits) -> None:
    assert not decoded(codec, np.zeros(70_000)).any()


# ---------------------------------------------------------------- what travels


@pytest.mark.parametrize(("codec", "bits"), [*zip(ALL, (1, 2, 4, 1, 1, 2, 4, 8), strict=True)])
@pytest.mark.parametrize("size", [SHORTEST - 1, SHORTEST, 100_001])
def test_codes_are_packed(codec: FewBits, bits: int, size: int) -> None:
    tensors = codec.encode({"w": np.ones(size, np.float32)}, Origin())
    count = max(size, SHORTEST) if codec.rotated else size
    assert (tensors[CODES].dtype, tensors[CODES].size) == (np.uint8, -(-count * bits // 8))
    assert tensors[SCALES].size <= 2 + size // STRETCH
    assert len(encode_update(Update({"w": np.ones(100_001, np.float32)}, 9), codec.name, "r", 1)) < 12_501 * bits + 1200


def test_a_tensor_of_signs_has_a_scale_for_every_stretch_and_eden_one_for_every_block() -> None:
    delta = {"a": np.ones(STRETCH + 1, np.float32), "b": np.ones(3, np.float32), "none": np.ones(0, np.float32)}
    assert SIGN.encode(delta, Origin())[SCALES].tolist() == [1, 1, 1]
    assert ONE.encode(delta, Origin())[SCALES].size == 2
    unlike = {"a": np.ones(ROTATED_BLOCK, np.float32), "b": np.full(ROTATED_BLOCK, 1000, np.float32)}
    found = ONE.decode(ONE.encode(unlike, Origin()))
    assert max(error(found[name], unlike[name]) for name in unlike) < 0.6, "blocks do not share a scale"


def test_all_chance_is_the_origins() -> None:
    values = np.random.default_rng(0).normal(size=700).astype(np.float32)
    values[:100] = 0
    origins = [{"seed": 1}, {"round": 1}, {"device": "1"}, {}]
    for codec in ALL:
        bodies = {to_bytes(codec.encode({"w": values}, Origin(**origin))) for origin in origins}  # type: ignore[arg-type]
        assert len(bodies) == len(origins)
        assert to_bytes(codec.encode({"w": values}, Origin(plan="another"))) in bodies


GOLDEN = {
    "eden1@1": "44004d76dacff6e02dea405f221361fb",
    "eden2@1": "6765e3a6d3723cbfc6172fa959958041",
    "eden4@1": "60c9ed28447fd12455e544e70ee2ac03",
    "sign@1": "7c4a8d6289b7926d82015e46efa78c0a",
    "stochastic1-rotated@1": "066a4447ac9053510cd3f03f871b3d81",
    "stochastic2-rotated@1": "f68ae5946e102f847ece22d168a29b3b",
    "stochastic4-rotated@1": "b01e02ff003dd0dfce66de47863948d2",
    "stochastic8-rotated@1": "6dde24871c4ea0f67bfb352f7796bd81",
}


@pytest.mark.parametrize("codec", ALL, ids=NAMES)
def test_the_bytes_and_what_they_mean_are_golden(codec: FewBits) -> None:
    """Of two tensors, over more than one block. Another digest is another codec: machines would not agree."""
    values = ((np.arange(150_000) * 7919 % 2003 - 1001) / 1024).astype(np.float32)
    delta = {"v": values[:90_000], "w": values[90_000:].reshape(3, -1) * np.float32(1 / 64)}
    body = to_bytes(codec.encode(delta, Origin(seed=3, round=7, device="d1")))
    back = b"".join(part.tobytes() for part in codec.blocks(body, read_header(body)))
    assert hashlib.sha256(body + back).hexdigest()[:32] == GOLDEN[codec.name]


@pytest.mark.parametrize("codec", ALL, ids=NAMES)
def test_a_file_is_decoded_in_little_memory(codec: FewBits, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=3_000_000).astype(np.float32)
    path = tmp_path / "body"
    path.write_bytes(to_bytes(codec.encode({"w": values}, Origin())))
    header = read_header(path.read_bytes())
    tracemalloc.start()
    try:
        assert sum(part.size for part in codec.blocks(path, header)) == values.size
        assert tracemalloc.get_traced_memory()[1] < 10 * 4 * ROTATED_BLOCK
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- what is refused


def checked(codec: FewBits, changed: Tensors, tmp_path: Path, values: Any) -> None:
    whole = encode_update(Update({"w": values}, 10), codec.name, "story", 1)
    tensors = codec.encode({"w": values}, Origin(round=1)) | changed
    path = tmp_path / "body"
    path.write_bytes(to_bytes(tensors, dict(read_header(whole).metadata)))
    layout = Layout.of(Manifest.of({"w": values}), ("*",), {})
    check(path, layout, plan(task={"codec": codec.name}), run="story", round=1, attempt=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ALL, ids=NAMES)
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1.0, 1e30])
def test_a_scale_that_nobody_makes_is_refused(codec: FewBits, scale: float, tmp_path: Path) -> None:
    values = np.ones(1003, np.float32)
    checked(codec, {}, tmp_path, values)
    scales = codec.encode({"w": values}, Origin())[SCALES]
    scales[-1] = scale
    with pytest.raises(ProblemError, match=r"scale \d is .*: those of .*@1 are 0 to 1e\+09") as refused:
        checked(codec, {SCALES: scales}, tmp_path, values)
    assert refused.value.kind == "invalid-update"


@pytest.mark.parametrize("codec", ALL[:-1], ids=NAMES[:-1])
def test_bits_behind_the_last_code_are_refused(codec: FewBits, tmp_path: Path) -> None:
    values = np.ones(1003, np.float32)
    codes = codec.encode({"w": values}, Origin(round=1))[CODES].copy()
    codes[-1] |= 0x80
    with pytest.raises(ProblemError, match="bits are set behind the last of the 1003 codes"):
        checked(codec, {CODES: codes}, tmp_path, values)


@pytest.mark.parametrize("codec", ALL, ids=NAMES)
@pytest.mark.parametrize("name", [CODES, SCALES, SEED])
def test_another_length_is_refused_and_names_are_taken(codec: FewBits, name: str, tmp_path: Path) -> None:
    values = np.ones(1003, np.float32)
    own = codec.encode({"w": values}, Origin()).get(name, np.zeros(32, np.uint8))
    with pytest.raises(ProblemError, match=name):
        checked(codec, {name: np.concatenate([own, own])}, tmp_path, values)
    with pytest.raises(ManifestMismatch, match="its own data is there"):
        codec.encode({name: values}, Origin())


def test_a_shape_of_many_values_takes_no_memory_before_it_is_refused() -> None:
    tensors = ONE.encode({"w": np.ones(5, np.float32)}, Origin())
    with pytest.raises(ManifestMismatch, match=CODES):
        ONE.decode(tensors | {"w": np.zeros((0, 1 << 20, 1 << 20), np.float32)})


@pytest.mark.parametrize("name", NAMES)
def test_they_do_not_work_under_masks(name: str) -> None:
    with pytest.raises(codecs.UnknownCodec, match="cannot be added"):
        codecs.linear(name)


def test_the_flat_vector_is_that_of_the_names() -> None:
    delta = {"b": np.full(4, -2, np.float32), "a": np.full(3, 5, np.float32)}
    body = to_bytes(SIGN.encode(delta, Origin()))
    found = np.concatenate([part.copy() for part in SIGN.blocks(body, read_header(body), 2)])
    assert found.tolist() == flatten(delta, Manifest.of({"a": delta["a"], "b": delta["b"]})).tolist()
