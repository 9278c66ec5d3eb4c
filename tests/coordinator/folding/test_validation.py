"""The validation of updates: each error in a body is one sentence; and the measures of a valid one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from client_sdk import codecs
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import (
    SHORT_HEADER,
    Layout,
    Manifest,
    OutOfRange,
    TensorError,
    compiled,
    header_limit,
    scaled,
    to_bytes,
)
from client_sdk.tensors.exact_sum import RANGE, range_for
from client_sdk.update import Update, encode_update
from coordinator.engine.aggregation.section import heaviest
from coordinator.folding.validation import Bounds, Measures, check, measure, measure_blocks
from tests.coordinator.engine.story import plan

MODEL = {"b": np.zeros((2, 3), np.float32), "a": np.zeros(4, np.float16), "n": np.array(3, np.int64)}
LAYOUT = Layout.of(Manifest.of(MODEL), ("*",), {})
PLAN = plan()


def body(delta: dict[str, Any] | None = None, *, codec: str = "float32@1", attempt: int = 0) -> bytes:
    arrays = {"a": np.full(4, 0.5), "b": np.full((2, 3), -2.0)} if delta is None else delta
    update = Update({name: np.asarray(array, np.float32) for name, array in arrays.items()}, 10)
    return encode_update(update, codec, "run", 3, attempt)


def checked(tmp_path: Path, data: bytes, **plan_sections: Any) -> Measures:
    file = tmp_path / "update"
    file.write_bytes(data)
    chosen = plan(**plan_sections) if plan_sections else PLAN
    report, measures = check(file, LAYOUT, chosen, run="run", round=3, attempt=0)
    assert report.examples == 10
    return measures


def refused(tmp_path: Path, data: bytes, **plan_sections: Any) -> str:
    with pytest.raises(ProblemError) as refusal:
        checked(tmp_path, data, **plan_sections)
    assert refusal.value.kind == "invalid-update"
    detail = refusal.value.problem.detail
    assert detail
    assert "Traceback" not in detail
    assert "\n" not in detail
    return detail


def test_a_good_update_is_measured(tmp_path: Path) -> None:
    measures = checked(tmp_path, body())
    assert measures.scale is None
    assert 2.0 <= measures.peak < 5.0, "at least the largest magnitude, and about the norm at most"


def test_float16_is_taken_where_the_plan_asks_for_it(tmp_path: Path) -> None:
    assert checked(tmp_path, body(codec="float16@1"), task={"codec": "float16@1"}).peak >= 2.0
    assert "float32@1; the task asks for float16@1" in refused(tmp_path, body(), task={"codec": "float16@1"})


class Faulty:
    """A package's codec with a bug in its decoder: ``gives`` makes the blocks, or raises."""

    name = "clinic:faulty@1"
    wire = staticmethod(codecs.FLOAT32.wire)

    def __init__(self, gives: Callable[[], Iterator[Any]]) -> None:
        self._gives = gives

    def blocks(self, *_: Any, **__: Any) -> Iterator[Any]:
        return self._gives()


def whole(dtype: Any = np.float32, size: int = 10) -> Iterator[Any]:
    yield np.zeros(size, dtype)


@pytest.mark.parametrize(
    ("gives", "sentence"),
    [
        (lambda: 1 // 0, "the codec clinic:faulty@1 failed on it: ZeroDivisionError"),
        (lambda: (1 // 0 for _ in range(1)), "the codec clinic:faulty@1 failed on it: ZeroDivisionError"),
        (lambda: whole(np.float64), "gives float64 [10] in place of a 1-d float32 block"),
        (lambda: iter([None]), "gives NoneType in place of a 1-d float32 block"),
        (lambda: iter(np.zeros((2, 1, 5), np.float32)), "gives float32 [1, 5] in place of a 1-d float32 block"),
        (lambda: whole(size=9), "gives 9 values in place of 10"),
        (lambda: whole(size=11), "gives 11 values in place of 10"),
    ],
    ids=["raises at once", "raises on the way", "float64", "nothing", "2-d", "too few", "too many"],
)
def test_a_bug_in_a_packages_codec_refuses_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives: Callable[[], Iterator[Any]], sentence: str
) -> None:
    """What it decodes is checked before the update is acknowledged: afterwards it would stop the round."""
    faulty = Faulty(gives)
    data = body().replace(b"float32@1", b"clinic:faulty@1")
    length = int.from_bytes(data[:8], "little") + len("clinic:faulty@1") - len("float32@1")
    monkeypatch.setattr(codecs, "get", lambda name: faulty)
    assert sentence in refused(tmp_path, length.to_bytes(8, "little") + data[8:], task={"codec": "clinic:faulty@1"})


def test_a_lack_of_memory_in_a_codec_is_no_verdict_on_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> Iterator[Any]:
        raise MemoryError

    data = body()
    monkeypatch.setattr(codecs, "get", lambda name: Faulty(full))
    with pytest.raises(MemoryError):
        checked(tmp_path, data)


def test_a_bug_in_a_codec_of_ours_is_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = body()
    monkeypatch.setattr(codecs, "get", lambda name: Faulty(lambda: iter([1 // 0])))
    with pytest.raises(ZeroDivisionError):
        checked(tmp_path, data)


def test_a_wrong_attempt(tmp_path: Path) -> None:
    assert "attempt 2" in refused(tmp_path, body(attempt=2))


@pytest.mark.parametrize(
    ("delta", "word"),
    [
        ({"a": np.zeros(4)}, "b"),
        ({"a": np.zeros(4), "b": np.zeros((2, 3)), "n": np.zeros(())}, "n"),
        ({"a": np.zeros(4), "b": np.zeros((3, 2))}, "b"),
        ({"a": np.zeros(5), "b": np.zeros((2, 3))}, "a"),
        ({"A": np.zeros(4), "b": np.zeros((2, 3))}, "a"),
    ],
)
def test_names_and_shapes_are_compared_to_the_model(tmp_path: Path, delta: dict[str, Any], word: str) -> None:
    assert word in refused(tmp_path, body(delta))


def test_safetensors_without_a_report(tmp_path: Path) -> None:
    assert "quorate.report" in refused(
        tmp_path, to_bytes({"a": np.zeros(4, np.float32), "b": np.zeros((2, 3), np.float32)})
    )


@given(data=st.data())
def test_bytes_cut_anywhere_are_refused_and_never_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = body()
    cut = data.draw(st.integers(0, len(whole) - 1))
    refused(tmp_path_factory.mktemp("cut", numbered=True), whole[:cut])


@given(data=st.data())
def test_any_byte_of_the_header_changed_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A changed digit of the report may still be a valid update of other numbers; anything else is a plain refusal."""
    whole = bytearray(body())
    header = 8 + int.from_bytes(whole[:8], "little")
    place = data.draw(st.integers(0, header - 1))
    whole[place] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("changed", numbered=True) / "update"
    file.write_bytes(bytes(whole))
    kind = ""
    try:
        report, measures = check(file, LAYOUT, PLAN, run="run", round=3, attempt=0)
    except ProblemError as refusal:
        kind = refusal.kind
    else:
        assert 2.0 <= measures.peak < 5.0
        assert (report.run, report.round) == ("run", 3)
    assert kind in ("", "invalid-update")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_anywhere_is_found(tmp_path: Path, value: float) -> None:
    whole = bytearray(body())
    data = 8 + int.from_bytes(whole[:8], "little")
    for place in range(data, len(whole), 4):
        changed = whole.copy()
        changed[place : place + 4] = np.float32(value).tobytes()
        name = "a" if place < data + 16 else "b"
        assert f"the delta of '{name}': the values hold NaN or infinity" in refused(tmp_path, bytes(changed))


def test_the_largest_value_that_a_round_can_hold_is_taken_and_the_next_is_not(tmp_path: Path) -> None:
    """sum_k w_k |x_k| of a full round of the heaviest devices stays in the exact sum's range."""
    heavy = {"aggregation": {"weight_cap": 2**20}, "cohort": {"select": 256, "goal": 256}}
    most = range_for(heaviest(plan(**heavy).aggregation, 1), 256)
    assert 7.9 < most <= 8.0
    values = np.zeros(4, np.float32)
    values[2] = np.nextafter(np.float32(most), np.float32(0), dtype=np.float32)
    good = {"a": values, "b": np.zeros((2, 3))}
    assert checked(tmp_path, body(good), **heavy).peak == values[2]
    values[2] = np.nextafter(np.float32(8.0), np.float32(9), dtype=np.float32)
    assert "is above" in refused(tmp_path, body(good), **heavy)


def test_no_plan_takes_values_above_the_exact_sums_own_range(tmp_path: Path) -> None:
    light = {"aggregation": {"weighting": "equal"}}
    edge = {"a": np.full(4, RANGE), "b": np.zeros((2, 3))}
    assert checked(tmp_path, body(edge), **light).peak == RANGE
    whole = bytearray(body())
    whole[-4:] = np.nextafter(np.float32(RANGE), np.float32(np.inf), dtype=np.float32).tobytes()
    assert "65536" in refused(tmp_path, bytes(whole), **light)


def test_a_header_may_be_as_long_as_the_runs_own_tensors_need(tmp_path: Path) -> None:
    """With a report, and not longer: a peer's longer header is not even read."""
    few = bytearray(body())
    few[:8] = (SHORT_HEADER + 1).to_bytes(8, "little")
    assert f"at most {SHORT_HEADER} are taken" in refused(tmp_path, bytes(few) + bytes(SHORT_HEADER))

    many = {f"layer.{number:0200}": np.ones(1, np.float32) for number in range(700)}
    manifest = Manifest.of(many)
    layout = Layout.of(manifest, ("*",), {})
    data = encode_update(Update(many, 10), "float32@1", "run", 3, 0)
    limit = header_limit(manifest)
    assert 2 * SHORT_HEADER < int.from_bytes(data[:8], "little") < limit
    file = tmp_path / "update"
    file.write_bytes(data)
    assert check(file, layout, PLAN, run="run", round=3, attempt=0)[0].examples == 10
    file.write_bytes((limit + 1).to_bytes(8, "little") + data[8:].ljust(2 * limit))
    with pytest.raises(ProblemError, match=f"at most {limit} are taken"):
        check(file, layout, PLAN, run="run", round=3, attempt=0)


def test_a_long_update_is_clipped_and_its_clipped_size_is_what_counts(tmp_path: Path) -> None:
    delta = {"a": np.array([30, 40, 0, 0]), "b": np.zeros((2, 3))}
    measures = checked(tmp_path, body(delta), aggregation={"clip_norm": 5.0})
    assert measures.scale == pytest.approx(0.1)
    assert 5.0 <= measures.peak < 5.001, "a bound on what is added, not the value sent"
    short = checked(tmp_path, body(), aggregation={"clip_norm": 100.0})
    assert short == Measures(peak=2.0, scale=None)


@given(st.floats(2.0, 1000.0, width=32), st.floats(0.01, 1.0))
@example(float(np.float32(7.3)), 0.3)
def test_the_peak_bounds_what_is_added_after_clipping_in_float32(value: float, clip_norm: float) -> None:
    """The sum refuses values above the announced peak in the middle of an update, and is spoiled then."""
    block = np.array([value, 0.0], np.float32)
    measures = measure_blocks(lambda: [block], plan(aggregation={"clip_norm": clip_norm}), Bounds(2, None))
    assert measures.scale is not None
    assert float(scaled(block, measures.scale)[0]) <= measures.peak <= 1.001 * clip_norm


def test_one_long_block_is_clipped_as_several_are() -> None:
    block, clipping = np.ones(70_000, np.float32), plan(aggregation={"clip_norm": 1.0})
    assert measure_blocks(lambda: [block], clipping, Bounds(70_000, None)).scale == pytest.approx(70_000**-0.5)


def test_of_small_values_the_largest_says_how_much_is_rounded_away() -> None:
    block = np.array([1e-7, -3e-8], np.float32)
    measures = measure_blocks(lambda: [block], plan(), Bounds(2, None))
    assert measures.peak == float(block[0])
    assert measures.treated.rounding == pytest.approx(2.0**-33 / 1e-7)
    assert measure_blocks(lambda: [2 * block], plan(), Bounds(2, None)).treated.rounding == 0.0, "below 0.001"


@pytest.mark.parametrize("codec", ["float32@1", "float16@1"])
@pytest.mark.parametrize("exponent", [-30, -24, -23, -21, -16, -15, -11, -8])
def test_repro_what_is_rounded_away_is_the_same_whatever_has_measured_the_values(
    codec: str, exponent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the log. The quick bound of many small values, of which none is large, was taken for the largest."""
    block = np.full(3 * 65536, 2.0**exponent, np.float32)
    given = plan(task={"codec": codec})
    assert compiled.loops is None or measure_blocks(lambda: [block], given, Bounds(block.size, None)).peak == block[0]
    monkeypatch.setattr(compiled, "loops", None)
    exact = Measures(peak=float(block[0]), scale=None, coarse=2.0**-25 if codec == "float16@1" else 0.0)
    assert measure_blocks(lambda: [block], given, Bounds(block.size, None)).treated == exact.treated


def test_clipping_lets_in_what_the_sum_could_not_hold_otherwise(tmp_path: Path) -> None:
    heavy = {"weight_cap": 2**20}
    cohort = {"select": 256, "goal": 256}
    delta = {"a": np.array([600.0, 0, 0, 0]), "b": np.zeros((2, 3))}
    assert "is above" in refused(tmp_path, body(delta), aggregation=heavy, cohort=cohort)
    assert checked(tmp_path, body(delta), aggregation={**heavy, "clip_norm": 1.0}, cohort=cohort).scale is not None


def test_measuring_alone_raises_for_the_same_values(tmp_path: Path) -> None:
    file = tmp_path / "update"
    file.write_bytes(body({"a": np.full(4, 60_000.0), "b": np.zeros((2, 3))}))
    with pytest.raises(OutOfRange, match="60000 is above"):
        measure(file, plan(aggregation={"weight_cap": 2**20}), LAYOUT)


def test_the_tensor_with_the_worst_value_is_named_also_a_statistic_and_in_any_blocks() -> None:
    model = Manifest.of({"a": np.zeros(3, np.float32), "mean": np.zeros(2, np.float32), "z": np.zeros(2, np.float32)})
    bounds = Bounds.of(PLAN, Layout.of(model, ("*",), {"mean": "statistic"}))
    for place, name in enumerate(["a", "a", "a", "z", "z", "mean", "mean"]):
        for value in (1e9, np.nan, -np.inf):
            flat = np.full(7, -4e8, np.float32)
            flat[place] = value
            for cut in (7, 4, 1):
                with pytest.raises(TensorError, match=f"the delta of '{name}': "):
                    measure_blocks(lambda: np.split(flat, range(cut, 7, cut)), PLAN, bounds)  # noqa: B023
