"""Stochastic rounding to eight bits: near, unbiased, repeatable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.codecs import STOCHASTIC8, Origin
from client_sdk.codecs.stochastic8 import RUN, SCALES
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import Layout, Manifest, ManifestMismatch, read_header, to_bytes
from client_sdk.tensors.exact_sum import ExactSum
from client_sdk.update import Update, encode_update
from coordinator.folding.validation import check
from quorate.testing.codec import ORIGIN
from tests.coordinator.engine.story import plan


def decoded(array: Any, **origin: Any) -> Any:
    return STOCHASTIC8.decode(STOCHASTIC8.encode({"w": np.asarray(array, np.float32)}, Origin(**origin)))["w"]


def test_by_hand_what_lies_on_a_step_stays_and_what_lies_between_goes_to_a_neighbour() -> None:
    found = decoded([127, -127, 3, 0, 2.25] + [2.25] * 500, seed=1)
    assert found[:4].tolist() == [127, -127, 3, 0]
    assert set(found[4:].tolist()) == {2.0, 3.0}


def test_the_mean_of_many_roundings_is_the_value() -> None:
    """4000 roundings of 64 values: each mean is off by a few standard errors at most, half a step / sqrt(4000)."""
    values = np.linspace(-1, 1, 64, dtype=np.float32)
    found = np.stack([decoded(values, seed=seed) for seed in range(4000)]).astype(np.float64)
    step = 1 / 127
    assert np.abs(found.mean(axis=0) - values).max() < 5 * step / 2 / np.sqrt(4000)
    assert np.abs(found - values).max() <= step * 1.0001
    nearest = np.rint(values / step) * step
    assert np.abs(nearest - values).max() > 5 * step / 2 / np.sqrt(4000), "rounding to nearest would not pass"


def test_devices_rounds_seeds_and_tensors_round_apart() -> None:
    values = np.random.default_rng(0).normal(size=300).astype(np.float32)
    origins = [
        ORIGIN,
        Origin(seed=4, round=7, device="d1"),
        Origin(seed=3, round=8, device="d1"),
        Origin(seed=3, round=7),
    ]
    codes = [STOCHASTIC8.encode({"a": values, "b": values}, origin) for origin in origins]
    drawn = {tensors[name].tobytes() for tensors in codes for name in ("a", "b")}
    assert len(drawn) == 2 * len(origins)
    both, alone = codes[0]["a"], STOCHASTIC8.encode({"a": values}, ORIGIN)["a"]
    assert both.tobytes() == alone.tobytes(), "a tensor's rounding does not hang on the others"


def test_the_stream_is_a_golden_one() -> None:
    """A change of these bytes is another codec: runs under way would not be folded alike."""
    tensors = STOCHASTIC8.encode({"w": np.linspace(-1, 1, 12, dtype=np.float32)}, ORIGIN)
    assert tensors["w"].tolist() == [-127, -104, -81, -58, -35, -12, 11, 35, 58, 80, 104, 127]
    assert tensors[SCALES].tolist() == [pytest.approx(1 / 127, rel=3e-7)]


@pytest.mark.parametrize(("size", "scales"), [(1023, 1), (1024, 1), (1025, 2), (65_536, 64), (65_537, 65)])
def test_the_format_has_a_scale_for_every_1024_values(size: int, scales: int) -> None:
    """Also for tensors of more than one piece of work: devices and coordinators of other versions count like this."""
    values = np.linspace(1, 2, size, dtype=np.float32)
    found = STOCHASTIC8.encode({"w": values}, ORIGIN)[SCALES]
    assert found.tolist() == [pytest.approx(values[min(size, 1024 * n) - 1] / 127) for n in range(1, scales + 1)]


@pytest.mark.parametrize("size", [1, RUN - 1, RUN, RUN + 1, 64 * RUN + 3])
def test_each_run_has_a_scale_of_its_own(size: int) -> None:
    values = np.geomspace(1e-20, 1e3, size, dtype=np.float32)
    tensors = STOCHASTIC8.encode({"w": values}, ORIGIN)
    assert tensors[SCALES].shape == (-(-size // RUN),)
    found = STOCHASTIC8.decode(tensors)["w"]
    for start in range(0, size, RUN):
        part, back = values[start : start + RUN], found[start : start + RUN]
        assert np.abs(back - part).max() <= part.max() / 127 * 1.0001


@pytest.mark.parametrize("largest", [1e-45, 1e-38, 0.1, 1.0, 3.0, 1e4, 6e4])
def test_the_largest_value_of_a_run_is_never_cut_off(largest: float) -> None:
    values = np.array([largest, -largest, 0], np.float32)
    tensors = STOCHASTIC8.encode({"w": values}, ORIGIN)
    assert abs(int(tensors["w"][0])) in (1, 126, 127)
    np.testing.assert_allclose(STOCHASTIC8.decode(tensors)["w"], values, rtol=0.01)
    assert np.float64(tensors[SCALES][0]) * 127 >= np.float64(values[0])


def test_the_scales_name_is_taken() -> None:
    taken = {SCALES: np.zeros(3, np.float32)}
    for refused in (lambda: STOCHASTIC8.encode(taken, ORIGIN), lambda: STOCHASTIC8.wire(Manifest.of(taken))):
        with pytest.raises(ManifestMismatch, match="keeps its scales there"):
            refused()


def test_an_updates_body_is_an_eighth_per_value_and_is_checked_as_any(tmp_path: Path) -> None:
    asked = plan(task={"codec": "stochastic8@1"})
    values = np.random.default_rng(2).normal(size=50_000).astype(np.float32)
    body = encode_update(Update({"w": values}, 10), "stochastic8@1", "story", 1, device="d1", seed=9)
    assert len(body) < 50_000 * 1.02
    path, layout = tmp_path / "body", Layout.of(Manifest.of({"w": values}), ("*",), {})
    path.write_bytes(body)
    report, measures = check(path, layout, asked, run="story", round=1, attempt=0)
    assert (report.codec, report.examples) == ("stochastic8@1", 10)
    total = ExactSum(50_000)
    total.add_blocks(STOCHASTIC8.blocks(path, read_header(path)), 1, measures.peak)
    np.testing.assert_allclose(total.mean(), values, atol=np.abs(values).max() / 126)


@pytest.mark.parametrize("scale", [np.nan, np.inf, 1e38])
def test_a_body_with_scales_that_nobody_makes_is_refused(tmp_path: Path, scale: float) -> None:
    whole = encode_update(Update({"w": np.ones(3, np.float32)}, 10), "stochastic8@1", "story", 1)
    metadata = dict(read_header(whole).metadata)
    tensors = {"w": np.array([127, 0, -127], np.int8), SCALES: np.array([scale], np.float32)}
    path = tmp_path / "body"
    path.write_bytes(to_bytes(tensors, metadata))
    layout = Layout.of(Manifest.of({"w": np.ones(3, np.float32)}), ("*",), {})
    with pytest.raises(ProblemError, match="the values hold NaN or infinity") as refused:
        check(path, layout, plan(task={"codec": "stochastic8@1"}), run="story", round=1, attempt=0)
    assert refused.value.kind == "invalid-update"


@pytest.mark.filterwarnings("error")
def test_a_run_of_zeros_is_zeros_without_a_division() -> None:
    """0 / 0 is NaN, and what NaN is as int8 depends on the processor."""
    values = np.zeros(2 * RUN, np.float32)
    values[RUN] = 1.0
    tensors = STOCHASTIC8.encode({"w": values}, ORIGIN)
    assert tensors["w"].nonzero()[0].tolist() == [RUN]
    assert tensors[SCALES][0] == 0
