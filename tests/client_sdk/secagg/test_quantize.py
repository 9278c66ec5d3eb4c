"""Values as lanes: clipped, rounded without bias, by a stream of their own; and the mean out of a sum of lanes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.secagg import quantize
from client_sdk.secagg.agreement import KeyStream
from client_sdk.secagg.errors import BadParameters, BadVector
from client_sdk.secagg.lanes import Lanes, cut, lane_bits, lane_dtype
from client_sdk.secagg.quantize import WEIGHT_LIMIT, Quantizer, rounding_key
from client_sdk.tensors.floats import Float32
from client_sdk.tensors.manifest import NotFinite
from tests.client_sdk.secagg.attempt import digest, entropy
from tests.client_sdk.secagg.lanes_of_sums import mean_of_sum

PLAN = Quantizer(q=16, max_norm=2.0, max_abs=0.5, weight_cap=1000)
KEY = digest("rounding")
FROZEN = [9830, 14418, 23592, 32767, 41941, 51116, 55704, 700, 1]


def lanes(values: object, weight: int = 1000, plan: Quantizer = PLAN, key: bytes = KEY, bits: int = 25) -> Lanes:
    return plan.lanes(np.asarray(values, np.float32), weight, bits, key)


def slow_lanes(values: list[float], weight: int, plan: Quantizer, key: bytes) -> list[int]:
    """The formula, value by value, in Python floats."""
    stream = KeyStream(4096)
    stream.start(key)
    norm = math.sqrt(math.fsum(float(np.float32(value)) ** 2 for value in values))
    clip = min(1.0, plan.max_norm / norm) if norm else 1.0
    share = weight / plan.weight_cap
    found = []
    for value in values:
        word = int.from_bytes(bytes(stream.take(4)), "little")
        middle = plan.levels / 2
        scaled = float(np.float32(value)) * (clip * (share * (middle / plan.max_abs)))
        level = min(max(scaled, -middle * share), middle * share) + middle
        found.append(min(math.floor(level + word / 2**32), plan.levels))
    digits = []
    for _ in range(math.ceil(plan.weight_cap.bit_length() / plan.q)):
        weight, digit = divmod(weight, 2**plan.q)
        digits.append(digit)
    assert weight == 0
    return [*found, *digits, 1]


@given(
    values=st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=40),
    q=st.integers(1, 24),
    data=st.data(),
)
def test_lanes_by_the_formula(values: list[float], q: int, data: st.DataObject) -> None:
    cap = data.draw(st.integers(1, 2**q - 1) | st.integers(1, WEIGHT_LIMIT))
    weight = data.draw(st.integers(0, cap))
    plan = Quantizer(q=q, max_norm=2.0, max_abs=0.5, weight_cap=cap)
    assert lanes(values, weight, plan, bits=48).tolist() == slow_lanes(values, weight, plan, KEY)


@given(
    values=st.lists(st.floats(-0.75, 0.75, width=32), min_size=1, max_size=30),
    q=st.integers(2, 24),
    key=st.binary(min_size=32, max_size=32),
)
def test_a_lane_is_within_one_step_of_its_value(values: list[float], q: int, key: bytes) -> None:
    plan = Quantizer(q=q, max_norm=1000.0, max_abs=0.5, weight_cap=3)
    found, weight = mean_of_sum(plan, lanes(values, 3, plan, key, 48), 1)
    assert weight == 3
    step = 2 * plan.max_abs / plan.levels
    assert np.abs(found - np.clip(np.asarray(values, np.float32), -0.5, 0.5)).max() <= step * (1 + 1e-6)


def test_the_ends_of_the_range_are_the_ends_of_a_lane() -> None:
    for seed in range(50):
        found = lanes([0.5, -0.5, 9.0, -9.0], plan=replace(PLAN, max_norm=100.0), key=entropy(seed)(32))
        assert found.tolist() == [65534, 0, 65534, 0, 1000, 1]


def test_clipping_is_to_the_norm_first_then_to_the_range() -> None:
    found, _ = mean_of_sum(PLAN, lanes([3.0, 4.0]), 1)  # norm 5 -> 2: 1.2 and 1.6, then 0.5 each
    assert found == pytest.approx([0.5, 0.5], abs=1e-9)
    found, _ = mean_of_sum(PLAN, lanes([2.4] + [0.4] * 100), 1)
    clip = 2.0 / math.sqrt(2.4**2 + 100 * 0.4**2)
    assert found == pytest.approx([0.5] + [0.4 * clip] * 100, abs=2 / 65534)


def test_rounding_is_unbiased() -> None:
    """40,000 roundings of one value: their mean is off by less than 5 standard deviations, at most 1/2 / 200 steps."""
    plan = Quantizer(q=4, max_norm=1e9, max_abs=1.0, weight_cap=1)
    for value in (0.0, 0.123, -0.77, 0.999):
        found = lanes([value] * 40_000, 1, plan, bits=25)[:-2]
        level = (float(np.float32(value)) + 1) * 14 / 2
        assert set(found.tolist()) <= {math.floor(level), math.floor(level) + 1}
        assert abs(float(found.mean()) - level) < 5 * 0.5 / 200


def test_rounding_depends_on_secret_and_header_alone() -> None:
    values = np.linspace(-0.5, 0.5, 200)
    first = lanes(values, key=rounding_key(digest("device"), digest("header")))
    assert np.array_equal(first, lanes(values, key=rounding_key(digest("device"), digest("header"))))
    for other in (
        rounding_key(digest("device"), digest("another header")),
        rounding_key(digest("another device"), digest("header")),
    ):
        assert not np.array_equal(first, lanes(values, key=other))


@given(
    n=st.integers(1, 9),
    q=st.integers(1, 24),
    seed=st.integers(0, 2**32),
    dimension=st.integers(1, 20),
)
def test_the_mean_is_the_weighted_mean(n: int, q: int, seed: int, dimension: int) -> None:
    rng = np.random.default_rng(seed)
    cap = int(rng.integers(1, 2 ** int(rng.choice([q, 24]))))
    plan = Quantizer(q=q, max_norm=1.0, max_abs=0.25, weight_cap=cap)
    values = rng.normal(0, 0.05, (n, dimension)).astype(np.float32)
    values /= np.maximum(1, np.linalg.norm(values, axis=1, keepdims=True))
    weights = rng.integers(1, cap + 1, n)
    bits = lane_bits(n, q)
    total = np.zeros(dimension + plan.extra_lanes, lane_dtype(bits))
    for row, weight in zip(values, weights, strict=True):
        total += plan.lanes(row, int(weight), bits, rng.bytes(32))
    cut(total, bits)
    mean, weight_sum = mean_of_sum(plan, total, n)
    assert weight_sum == weights.sum()
    wanted = (weights[:, None] * values).sum(axis=0) / weights.sum()
    steps = n * 2 * plan.max_abs / plan.levels * cap / weight_sum
    assert np.abs(mean - np.clip(wanted, -0.25, 0.25)).max() <= steps * (1 + 1e-6) + 1e-9


def test_impossible_sums_are_refused() -> None:
    total = lanes([0.1, 0.2]) + lanes([0.3, 0.4])
    assert PLAN.require_possible(total, 2) == 2000
    with pytest.raises(BadVector, match="canary"):
        mean_of_sum(PLAN, total, 3)
    for place, value, words in ((-1, 1, "canary"), (-2, 2001, "weights"), (0, 2 * 65534 + 1, "lane")):
        wrong = total.copy()
        wrong[place] = value
        with pytest.raises(BadVector, match=words):
            mean_of_sum(PLAN, wrong, 2)


def summed(plan: Quantizer, rows: list[Float32], weights: list[int]) -> Lanes:
    """The lanes of devices that keep the rules, added up."""
    bits = lane_bits(len(rows), plan.q)
    total = np.zeros(rows[0].size + plan.extra_lanes, lane_dtype(bits))
    for place, (row, weight) in enumerate(zip(rows, weights, strict=True)):
        total += plan.lanes(row, weight, bits, bytes([place] * 32))
    return cast("Lanes", total)


@given(
    q=st.integers(1, 24),
    n=st.integers(1, 8),
    norm=st.sampled_from([1e-3, 1.0, 50.0]),
    value=st.sampled_from([0.0, 1e-45, 0.1, -0.25, 3e38, -3e38]),
    data=st.data(),
)
def test_what_honest_survivors_put_in_is_possible_at_the_very_ends(
    q: int, n: int, norm: float, value: float, data: st.DataObject
) -> None:
    """All of them at one end of the range or of the norm, whatever they weigh."""
    cap = data.draw(st.integers(1, 1000))
    plan = Quantizer(q=q, max_norm=norm, max_abs=0.25, weight_cap=cap)
    weights = [data.draw(st.integers(0, cap)) for _ in range(n)]
    rows = [np.full(data.draw(st.sampled_from([1, 2, 40])), value, np.float32)] * n
    assert plan.require_possible(summed(plan, rows, weights), n) == sum(weights)


@pytest.mark.parametrize(("lane", "words"), [(1, "more"), (-1, "less")])
def test_no_mean_is_beyond_the_range(lane: int, words: str) -> None:
    """A device that pretends to weigh nothing moves a lane as far as one of full weight does: the weights tell."""
    plan = Quantizer(q=16, max_norm=100.0, max_abs=0.25, weight_cap=1000)
    total = summed(plan, [np.full(3, 0.25 * lane, np.float32)] * 4, [10, 10, 10, 0])
    mean, _ = mean_of_sum(plan, total, 4)
    assert np.abs(mean - 0.25 * lane).max() < 0.002
    total[1] += np.array(lane * 32767, np.int64).astype(total.dtype)
    with pytest.raises(BadVector, match=f"{words} than the survivors of this weight"):
        mean_of_sum(plan, total, 4)


def test_no_mean_is_beyond_the_clip() -> None:
    """A device that is not clipped moves every value a little: none is beyond the range, and all together are."""
    plan = Quantizer(q=16, max_norm=1.0, max_abs=0.25, weight_cap=1000)
    honest = np.full(10_000, 0.01, np.float32)
    total = summed(plan, [honest] * 4, [1000] * 4)
    mean_of_sum(plan, total, 4)
    more = total.copy()
    more[:-2] += 16_000
    with pytest.raises(BadVector, match="norm"):
        mean_of_sum(plan, more, 4)
    less = total.copy()
    less[:-2] -= np.uint32(16_000)
    with pytest.raises(BadVector, match="norm"):
        mean_of_sum(plan, less, 4)


def test_a_few_values_exceed_the_clip_by_no_more_than_rounding_at_its_worst() -> None:
    plan = Quantizer(q=16, max_norm=1e-6, max_abs=1.0, weight_cap=1)
    total = summed(plan, [np.zeros(2, np.float32)], [1])
    total[0] += np.uint32(1)
    assert plan.require_possible(total, 1) == 1
    total[:2] += np.uint32(1)
    with pytest.raises(BadVector, match="norm"):
        plan.require_possible(total, 1)


def test_many_devices_exceed_the_clip_of_one_value_by_no_more_than_chance_makes_likely() -> None:
    """By sqrt(400 (1 + 2 sqrt(100) + 200)) / 2 = 148.7 lanes, and not by 400."""
    plan = Quantizer(q=16, max_norm=1e-6, max_abs=1.0, weight_cap=1)
    total = np.array([400 * 32767 + 148, 400, 400], np.uint32)
    assert plan.require_possible(total, 400) == 400
    total[0] += np.uint32(14)  # clip and rounding together are 148.7 + 13.1 lanes
    with pytest.raises(BadVector, match="norm"):
        plan.require_possible(total, 400)


@pytest.mark.parametrize("weight", [2.5, True, "3", None, math.nan])
def test_a_weight_is_a_whole_number(weight: Any) -> None:
    """Half a unit would be in the values and not in the weights."""
    with pytest.raises(BadVector, match="whole number"):
        lanes([0.1], weight)


def test_what_cannot_be_quantized() -> None:
    for wrong in ([math.nan], [math.inf, 0.0]):
        with pytest.raises(NotFinite):
            lanes(wrong)
    for weight in (-1, 1001):
        with pytest.raises(BadVector, match="weight"):
            lanes([0.1], weight)
    with pytest.raises(BadVector):
        PLAN.lanes(np.zeros((2, 2), np.float32), 1, 25, KEY)
    with pytest.raises(BadVector):
        PLAN.lanes(np.zeros(2, np.float64), 1, 25, KEY)  # type: ignore[arg-type]
    with pytest.raises(BadParameters):
        lanes([0.1], bits=15)


@pytest.mark.parametrize(
    ("q", "cap", "weight", "digits"),
    [
        (16, 65535, 65535, [65535]),
        (16, 65536, 65535, [65535, 0]),
        (4, 15, 15, [15]),
        (4, 10_000, 9_999, [15, 0, 7, 2]),
        (4, 10_000, 5, [5, 0, 0, 0]),
        (1, 6, 5, [1, 0, 1]),
        (24, WEIGHT_LIMIT, WEIGHT_LIMIT, [WEIGHT_LIMIT]),
    ],
)
def test_a_weight_takes_as_many_lanes_as_it_has_digits(q: int, cap: int, weight: int, digits: list[int]) -> None:
    plan = replace(PLAN, q=q, weight_cap=cap)
    assert (plan.weight_lanes, plan.extra_lanes) == (len(digits), len(digits) + 1)
    assert lanes([0.0], weight, plan).tolist()[1:] == [*digits, 1]
    assert plan.require_possible(lanes([0.0], weight, plan), 1) == weight


def test_a_small_q_keeps_the_weights_of_three_hundred_devices() -> None:
    plan = Quantizer(q=4, max_norm=1.0, max_abs=0.25, weight_cap=10_000)
    bits, weights = lane_bits(300, 4), [1 + 33 * place for place in range(300)]
    total = np.zeros(6, lane_dtype(bits))
    for place, weight in enumerate(weights):
        total += plan.lanes(np.full(1, 0.25, np.float32), weight, bits, place.to_bytes(32, "big"))
    cut(total, bits)
    mean, weight = mean_of_sum(plan, total, 300)
    assert (bits, weight) == (13, sum(weights))
    assert mean == pytest.approx([0.25], abs=0.05)


@pytest.mark.parametrize("digit", [0, 1, 2, 3])
def test_a_digit_that_no_weights_have_is_refused(digit: int) -> None:
    """The sum of the weights is within the cap, and its digits are not what devices can put in."""
    plan = replace(PLAN, q=4, weight_cap=WEIGHT_LIMIT)
    total = summed(plan, [np.zeros(1, np.float32)] * 3, [0, 0, 0])
    total[1 + digit] = 3 * 15
    assert plan.require_possible(total, 3) == 45 << 4 * digit
    total[1 + digit] += np.uint32(1)
    with pytest.raises(BadVector, match="a lane of the weights sums to 46, more than 3 survivors"):
        plan.require_possible(total, 3)


def test_weights_beyond_the_cap_are_refused_also_in_several_lanes() -> None:
    plan = replace(PLAN, q=4, weight_cap=100)
    total = summed(plan, [np.zeros(1, np.float32)] * 3, [100, 100, 100])
    assert plan.require_possible(total, 3) == 300
    total[1] += np.uint32(1)
    with pytest.raises(BadVector, match="weights sum to 301"):
        plan.require_possible(total, 3)


@pytest.mark.parametrize("q", range(2, 25))
def test_a_value_of_zero_is_not_rounded(q: int) -> None:
    """Whatever the weight. With lanes that have no middle each zero would add half a step of rounding."""
    plan = replace(PLAN, q=q)
    found = lanes([0.0, -0.0] * 500, 13, plan)
    assert set(found[:1000].tolist()) == {2 ** (q - 1) - 1}
    assert mean_of_sum(plan, found, 1)[0].tolist() == [0.0] * 1000


@pytest.mark.parametrize(("q", "weight"), [(4, 1000), (4, 20), (2, 100), (1, 500), (8, 1)])
def test_rounding_adds_no_more_than_is_said(q: int, weight: int) -> None:
    """The root mean square of 4000 errors, beside both bounds of the module's text, for one device."""
    plan = Quantizer(q=q, max_norm=1e9, max_abs=0.5, weight_cap=1000)
    values = np.random.default_rng(5).uniform(-0.2, 0.2, 4000).astype(np.float32)
    error = mean_of_sum(plan, lanes(values, weight, plan), 1)[0] - values
    step, share = 2 * plan.max_abs / plan.levels, weight / plan.weight_cap
    bounds = [step / 2 / share, math.sqrt(share * float(np.abs(values).mean()) * step) / share]
    assert abs(float(error.mean())) < 5 * min(bounds) / math.sqrt(4000), "unbiased"
    most = bounds[0] if q == 1 else min(bounds)
    assert most / 3 < math.sqrt(float((error**2).mean())) < most * 1.1


def test_few_bits_bound_the_norm_nearly_as_well_as_many() -> None:
    """At q = 4 the worst case of rounding is two thirds of the clip, and by chance it is a twentieth."""
    size, devices = 20_000, 60
    plan = Quantizer(q=4, max_norm=1.0, max_abs=4.5 / math.sqrt(size), weight_cap=1)
    direction = np.random.default_rng(6).standard_normal(size).astype(np.float32)
    direction /= np.linalg.norm(direction)
    total = summed(plan, [direction] * devices, [1] * devices)
    assert plan.require_possible(total, devices) == devices
    wrong = total.copy()
    away = 1.1 * (total[:size].astype(np.float64) - 7 * devices)
    wrong[:size] = 7 * devices + np.clip(np.rint(away), -7 * devices, 7 * devices)
    with pytest.raises(BadVector, match="norm"):
        plan.require_possible(wrong, devices)


def test_huge_values_are_clipped_not_refused() -> None:
    assert lanes([3e38, -3e38])[:-2].tolist() == [65534, 0]
    assert lanes([0.0, 0.0]).tolist()[2:] == [1000, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"q": 0},
        {"q": 25},
        {"max_norm": 0.0},
        {"max_norm": math.inf},
        {"max_abs": -1.0},
        {"max_abs": math.nan},
        {"weight_cap": 0},
        {"weight_cap": 2**24},
        pytest.param({"max_abs": 1e308}, id="twice the range is infinite"),
        pytest.param({"max_abs": 1e-320}, id="levels a unit are infinite"),
        pytest.param({"max_norm": 1e300}, id="a norm that nothing has"),
        {"q": True},
        {"q": 16.0},
        {"weight_cap": 2.5},
        {"max_norm": "1"},
    ],
)
def test_plans_that_make_no_sense(changes: dict[str, Any]) -> None:
    with pytest.raises(BadParameters):
        replace(PLAN, **changes)


def test_lanes_are_frozen() -> None:
    assert lanes(np.linspace(-0.6, 0.6, 7), 700).tolist() == FROZEN


@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-25, 0.9, 0.99, 0.994, 0.996, 1.0, 1.0001, 1.5, 1e15, 1e30])
@pytest.mark.parametrize("size", [1, 70_000])
def test_a_glance_at_the_norm_changes_no_lane(scale: float, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors around the clip, and so small or large that squares vanish or overflow."""
    drawn = np.random.default_rng(size).standard_normal(size)
    values = (drawn / np.linalg.norm(drawn) * PLAN.max_norm * scale).astype(np.float32)

    def found() -> bytes:
        return PLAN.lanes(values, 7, 25, bytes(32)).tobytes()

    within = quantize._surely_within(values, PLAN.max_norm)
    assert within == (scale < 0.995)
    quick = found()
    monkeypatch.setattr(quantize, "_surely_within", lambda values, max_norm: False)
    assert found() == quick
