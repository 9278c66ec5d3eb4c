"""Statistics under masks: a range for each tensor, many bits for each value, and no running variance below 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.protocol.devices import Task
from client_sdk.secagg.actions import DeviceContribution
from client_sdk.secagg.consent import SecurePolicy, require_agreed, require_terms
from client_sdk.secagg.device import require_fitting
from client_sdk.secagg.errors import BadMessage, BadParameters, BadVector, Refusal
from client_sdk.secagg.header import AttemptHeader, agreed_digest
from client_sdk.secagg.lanes import Lanes, lane_bits, lane_dtype
from client_sdk.secagg.quantize import WEIGHT_LIMIT, Quantizer, StatisticRange
from client_sdk.tensors.floats import Float32
from client_sdk.tensors.manifest import NotFinite
from tests.client_sdk.secagg.attempt import changed, digest, header
from tests.client_sdk.secagg.fleet import expected

MEAN, VARIANCE = StatisticRange(2, 100.0, False), StatisticRange(3, 65536.0, True)
KEY = digest("rounding")
NO_VALUES = np.zeros(0, np.float32)


def quantizer(q: int = 16, cap: int = 10_000, *tensors: StatisticRange) -> Quantizer:
    return Quantizer(q=q, max_norm=1.0, max_abs=1.0, weight_cap=cap, statistics=tensors or (MEAN, VARIANCE))


def summed(plan: Quantizer, deltas: list[Float32], weights: list[int]) -> Lanes:
    bits = lane_bits(len(deltas), plan.q)
    total = np.zeros(plan.extra_lanes, lane_dtype(bits))
    for delta, weight in zip(deltas, weights, strict=True):
        total += plan.lanes(NO_VALUES, weight, bits, KEY, delta)
    return total


def mean_of(plan: Quantizer, deltas: list[Float32], weights: list[int]) -> np.ndarray[Any, Any]:
    total = summed(plan, deltas, weights)
    assert plan.require_possible(total, len(deltas)) == sum(weights)
    statistics = plan.of_statistics
    return statistics.mean_of(total[: statistics.count], 0, statistics.values, len(deltas), sum(weights))


@pytest.mark.parametrize("q", [1, 2, 4, 9, 16, 22, 24])
def test_their_mean_is_the_weighted_mean_whatever_the_bits_of_parameters(q: int) -> None:
    one = np.array([99.5, -3.25, 0.001, 40_000, -1e-4], np.float32)
    two = np.array([-1.5, 7, 0, -40_000, 2e-4], np.float32)
    found = mean_of(quantizer(q), [one, two], [300, 700])
    wanted = 0.3 * one.astype(np.float64) + 0.7 * two.astype(np.float64)
    assert np.abs(found - wanted)[:2].max() < 1e-10
    assert np.abs(found - wanted)[2:].max() < 1e-7


def test_each_value_is_cut_to_the_range_of_its_tensor() -> None:
    delta = np.array([150, -150, 150, -90_000, 90_000], np.float32)
    assert mean_of(quantizer(), [delta], [10_000]).tolist() == pytest.approx([100, -100, 150, -65536, 65536], abs=1e-8)


def test_a_part_of_them_is_read_alone() -> None:
    plan, delta = quantizer(), np.arange(5, dtype=np.float32)
    total = summed(plan, [delta], [77])
    behind = total[: plan.of_statistics.count]
    whole = plan.of_statistics.mean_of(behind, 0, 5, 1, 77)
    for start in range(5):
        assert plan.of_statistics.mean_of(behind, start, 5 - start, 1, 77).tolist() == whole[start:].tolist()


@given(
    q=st.integers(1, 24),
    cap=st.integers(1, WEIGHT_LIMIT),
    limit=st.sampled_from([1e-6, 0.3, 7.0, 65536.0]),
    parent=st.floats(0, 1000, width=32),
    after=st.lists(st.floats(0, 1000, width=32) | st.just(0.0), min_size=1, max_size=5),
    data=st.data(),
)
def test_no_range_and_no_q_commits_a_variance_below_0(
    q: int, cap: int, limit: float, parent: float, after: list[float], data: st.DataObject
) -> None:
    plan = quantizer(q, cap, StatisticRange(1, limit, True))
    weights = [data.draw(st.integers(1, cap)) for _ in after]
    before = np.float32(parent)
    deltas = [np.array([np.float32(value) - before], np.float32) for value in after]
    found = before + mean_of(plan, deltas, weights).astype(np.float32)
    assert found[0] >= 0


@pytest.mark.parametrize("cap", [10_000, WEIGHT_LIMIT])
@pytest.mark.parametrize("devices", [1, 3, 7])
def test_variances_that_all_devices_have_at_0_do_not_go_below_it(cap: int, devices: int) -> None:
    """Where the step is far from small beside the values: rounded to the nearest, half of them would."""
    plan = quantizer(16, cap, StatisticRange(2000, 65536.0, True))
    before = np.geomspace(1e-4, 10, 2000).astype(np.float32)
    mean = mean_of(plan, [-before] * devices, [1 + at % 3 for at in range(devices)])
    assert (mean >= -before.astype(np.float64)).all()
    assert (before + mean.astype(np.float32) >= 0).all()


def test_many_devices_fit() -> None:
    plan = quantizer(24, WEIGHT_LIMIT, StatisticRange(1, 1.0, True))
    bits = lane_bits(10_000, 24)
    one = plan.lanes(NO_VALUES, WEIGHT_LIMIT, bits, KEY, np.ones(1, np.float32))
    total = one.astype(np.uint64) * np.uint64(10_000)
    weight = plan.require_possible(total, 10_000)
    statistics = plan.of_statistics
    assert statistics.mean_of(total[: statistics.count], 0, 1, 10_000, weight)[0] == pytest.approx(1)


@pytest.mark.parametrize("place", range(15))
def test_a_sum_that_no_survivors_can_have_is_refused(place: int) -> None:
    plan = quantizer()
    total = summed(plan, [np.ones(5, np.float32)] * 3, [5_000] * 3)
    total[place] = 3 * 0xFFFF + 1
    with pytest.raises(BadVector, match="a lane of a statistic sums to more"):
        plan.require_possible(total, 3)


def test_the_highest_digit_of_a_value_has_the_bits_that_are_left() -> None:
    plan = quantizer(22)  # 48 bits: 22, 22 and 4
    total = summed(plan, [np.ones(5, np.float32)] * 3, [5_000] * 3)
    total[2 * 5] = 3 * 15 + 1
    with pytest.raises(BadVector, match="a lane of a statistic sums to more"):
        plan.require_possible(total, 3)


@pytest.mark.parametrize("value", [100, -100])
def test_a_value_beyond_the_range_of_these_weights_is_refused(value: int) -> None:
    plan = quantizer(16, 10_000, MEAN, replace(VARIANCE, range=100.0))
    light = summed(plan, [np.full(5, value, np.float32)] * 3, [5_000] * 3)
    plan.require_possible(light, 3)
    heavy = summed(plan, [np.full(5, value, np.float32)] * 3, [10_000] * 3)
    plan.require_possible(heavy, 3)
    forged = np.concatenate([heavy[: plan.of_statistics.count], light[plan.of_statistics.count :]])
    with pytest.raises(BadVector, match="a statistic is out of the range"):
        plan.require_possible(forged, 3)


def test_what_is_no_vector_of_statistics_is_refused() -> None:
    plan = quantizer()
    with pytest.raises(BadVector, match="4 values of statistics are there, not 5"):
        plan.lanes(NO_VALUES, 1, 25, KEY, np.zeros(4, np.float32))
    with pytest.raises(NotFinite):
        plan.lanes(NO_VALUES, 1, 25, KEY, np.full(5, np.inf, np.float32))


# ---------------------------------------------------------------- in the header


def with_statistics(**more: Any) -> AttemptHeader:
    return changed(header(), roles=digest("roles"), statistics=(MEAN, VARIANCE), **more)


def test_a_header_has_their_ranges_and_the_digest_of_roles() -> None:
    made = with_statistics()
    assert AttemptHeader.parse(made.encoded) == made
    assert made.lanes == header().lanes + 3 * 5
    assert made.terms == replace(header().terms, statistics=(100.0, 65536.0))
    assert made.encoded.startswith(header().encoded), "a header without statistics is as it was"


@pytest.mark.parametrize("cut", [1, 17, 18, 33, 34, 35, 36, 69])
def test_a_header_is_cut_nowhere(cut: int) -> None:
    whole = with_statistics().encoded
    with pytest.raises(BadMessage):
        AttemptHeader.parse(whole[:-cut])


def test_statistics_and_the_digest_of_roles_go_together() -> None:
    for one in ({"roles": digest("roles")}, {"statistics": (MEAN,)}):
        with pytest.raises(BadParameters, match="exactly where the model has statistics"):
            changed(header(), **one)
    with pytest.raises(BadParameters, match="has the range"):
        StatisticRange(1, 0.0, True)


def test_the_owners_largest_range_bounds_statistics_too() -> None:
    terms = replace(with_statistics(minimum_cohort=64).terms, max_abs=1.0)
    require_terms(terms, SecurePolicy())
    require_terms(replace(terms, statistics=(4.0, 4.0)), SecurePolicy(largest_range=4.0))
    with pytest.raises(Refusal, match="allows a range of statistics of at most 4; the plan asks for 65536"):
        require_terms(terms, SecurePolicy(largest_range=4.0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"roles": digest("others")}, "names another digest of tensors and their roles"),
        ({"statistics": (MEAN, replace(VARIANCE, range=1.0))}, "other terms than the plan"),
        ({"roles": b"", "statistics": ()}, "names another digest of tensors and their roles"),
    ],
)
def test_a_device_takes_no_header_with_other_roles_or_ranges(changes: dict[str, Any], words: str) -> None:
    mine = with_statistics(minimum_cohort=64)
    agreed = replace(expected(mine), roles=mine.roles)
    require_agreed(mine, agreed, SecurePolicy())
    with pytest.raises(Refusal, match=words):
        require_agreed(changed(mine, **changes), agreed, SecurePolicy())


def test_a_mark_that_is_neither_0_nor_1_is_no_header() -> None:
    whole = with_statistics().encoded
    with pytest.raises(BadMessage, match="neither non-negative nor not"):
        AttemptHeader.parse(whole[:-1] + b"\2")


def test_what_is_put_in_has_the_statistics_of_the_header() -> None:
    made = with_statistics()
    values, weight = np.zeros(made.dimension, np.float32), 1
    put_in = DeviceContribution(
        values=values, weight=weight, rounding_secret=bytes(32),
        statistics=np.zeros(5, np.float32), tensors=((2, False), (3, True)),
    )  # fmt: skip
    require_fitting(made, put_in)
    for changes, words in (
        ({"tensors": ((3, True), (2, False))}, "other statistics"),
        ({"tensors": ((2, False), (3, False))}, "other statistics"),
        ({"statistics": np.zeros(4, np.float32)}, "another number of values of statistics"),
        ({"statistics": np.array([0, 0, np.inf, 0, 0], np.float32)}, "NaN or infinity"),
    ):
        with pytest.raises(Refusal, match=words):
            require_fitting(made, replace(put_in, **changes))


def test_what_a_device_agreed_to_has_the_digest_of_roles() -> None:
    task = Task(learner="a:b")
    digests = {agreed_digest("ab" * 32, task, "equal", roles) for roles in ("", "cd" * 32, "ef" * 32)}
    assert len(digests) == 3
    assert agreed_digest("ab" * 32, task, "equal") in digests
