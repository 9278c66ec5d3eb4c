"""The bit of a clip that adapts: one vector with the values, of one norm, with one noise; the clip is bound by the
header."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from client_sdk.protocol.secure import SecureBounds
from client_sdk.secagg import quantize
from client_sdk.secagg.clip_bit import beta_of, kappa_of, next_clip, part_within
from client_sdk.secagg.consent import refused_terms
from client_sdk.secagg.errors import BadParameters, BadVector, Refusal
from client_sdk.secagg.header import AttemptHeader, hidden_among, task_of, terms_of
from client_sdk.secagg.lanes import lane_dtype
from client_sdk.secagg.noise import reach, signed
from client_sdk.secagg.quantize import Quantizer
from tests.client_sdk.secagg.attempt import header
from tests.client_sdk.secagg.fleet import Coordinator, expected, finished, fleet, plain_sum, until_signed

VALUES, N = 300, 5
ADAPTS: dict[str, Any] = {"noise": 2.0, "divisor": 4, "lowest": 0.1, "highest": 100.0, "clip": 1.5}
VECTORS = st.integers(1, 40).flatmap(
    lambda size: arrays(np.float32, size, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
)


def quantizer(clip: float, q: int = 16, max_norm: float = 1.0, max_abs: float = 0.25, noise: float = 2.0) -> Quantizer:
    return Quantizer(q=q, max_norm=max_norm, max_abs=max_abs, weight_cap=1, noise=noise, divisor=4, clip=clip)


def adaptive(**changes: Any) -> AttemptHeader:
    return header(**{"dimension": VALUES, "q": 10, "max_norm": 3.0, **ADAPTS, **changes})


def squares(used: Quantizer, values: NDArray[np.float32], key: bytes = bytes(32)) -> int:
    """Of all integers of the vector, the bit's too."""
    lanes = used.lanes(values, 1, 40, key)
    centred = [int(lane) - used.levels // 2 for lane in lanes[: values.size]] + [int(lanes[values.size]) - used.bit]
    return sum(one * one for one in centred)


# ------------------------------------------------------------ one mechanism


@pytest.mark.parametrize(("noise", "goal"), [(0.5, 1000), (4.0, 256), (2.0, 4), (1000.0, 10), (1e-9, 3)])
def test_the_noise_of_values_and_bit_is_that_of_theorem_1(noise: float, goal: int) -> None:
    beta = beta_of(noise, goal)
    of_values, of_bit = noise / kappa_of(beta), noise / (2 * beta)
    assert of_values**-2 == pytest.approx(noise**-2 - (2 * of_bit) ** -2, rel=1e-9)
    assert of_values <= 1.155 * noise
    if beta < 0.5:
        assert of_bit / goal <= 1 / 20 + 1e-12, "the part within the clip is off by a twentieth at most"


@given(
    values=VECTORS,
    clip=st.floats(1e-3, 1e3),
    q=st.integers(8, 24),
    max_norm=st.floats(0.5, 100.0),
    max_abs=st.floats(1e-3, 0.5),
    key=st.binary(min_size=32, max_size=32),
)
def test_the_norm_of_values_and_bit_together_is_within_the_bound_of_a_vector_without(
    values: NDArray[np.float32], clip: float, q: int, max_norm: float, max_abs: float, key: bytes
) -> None:
    used = quantizer(clip, q, max_norm, max_abs)
    assert squares(used, values, key) <= used.squared_norm(values.size)
    cut = replace(used, clip=0.0).squared_norm(values.size)
    assert used.squared_norm(values.size) <= cut + used.bit**2
    if max_norm * used.levels / 2 / max_abs < math.sqrt(values.size) * (used.levels // 2) / 2:
        assert used.squared_norm(values.size) == cut, "the bit is within the norm that there was"


@pytest.mark.parametrize("size", [3, 1 << 16])
def test_a_vector_at_the_clip_uses_its_norm_and_so_does_its_bit(size: int) -> None:
    values = np.random.default_rng(1).standard_normal(size).astype(np.float32) * np.float32(3)
    used = quantizer(1.0, max_abs=min(1.0, 5 / math.sqrt(size)))
    whole = (used.max_norm * used.levels / (2 * used.max_abs)) ** 2
    assert 0.999 * whole < squares(used, values) <= used.squared_norm(size)
    assert used.bit**2 == pytest.approx(beta_of(2.0, 4) ** 2 * whole, rel=1e-3)


@pytest.mark.parametrize("broken", ["kappa", "bit"])
def test_a_bit_outside_of_the_norm_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded bugs: values that leave no room for the bit, and a bit that the norm is not held with."""
    if broken == "kappa":
        monkeypatch.setattr(quantize, "kappa_of", lambda beta: 1.0)
    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    used = quantizer(1.0, max_abs=5 / math.sqrt(1000))
    if broken == "bit":
        monkeypatch.setattr(Quantizer, "bit", property(lambda self: 3 * 10**5))
        with pytest.raises(BadVector, match="cannot be rounded within their clip"):
            used.lanes(values, 1, 40, bytes(32))
    else:
        with pytest.raises(BadVector, match="cannot be rounded within their clip"):
            used.lanes(values, 1, 40, bytes(32))


@pytest.mark.parametrize("clip", [0.02, 1.0, 70.0])
def test_lanes_are_of_the_update_over_the_clip_and_a_mean_is_in_units_of_the_model(clip: float) -> None:
    values = np.random.default_rng(2).standard_normal(VALUES).astype(np.float32)
    values *= np.float32(1 / np.linalg.norm(values))
    first = quantizer(1.0).lanes(values, 1, 40, bytes(32))
    used = quantizer(clip)
    for length, inside in ((0.5, True), (1.0 - 1e-5, True), (1.00001, False), (8.0, False)):
        lanes = used.lanes((values * np.float32(length * clip)).astype(np.float32), 1, 40, bytes(32))
        assert int(lanes[VALUES]) == (2 * used.bit if inside else 0)
        found = used.mean_of(lanes[:VALUES], 1, 1)
        assert float(np.linalg.norm(found)) == pytest.approx(min(1.0, length) * clip, rel=0.01)
    assert np.abs(lanes[:VALUES].astype(int) - first[:VALUES].astype(int)).max() <= 1, "as of any other clip"


def test_partial_weight_counts_values_and_bit_alike() -> None:
    used = replace(quantizer(1.0), weight_cap=4)
    lanes = used.lanes(np.zeros(3, np.float32), 1, 40, bytes(32))
    assert int(lanes[3]) == used.bit + used.bit // 4
    nothing = used.lanes(np.ones(3, np.float32), 0, 40, bytes(32))
    assert nothing[:4].tolist() == [used.levels // 2] * 3 + [used.bit]


def test_lanes_hold_the_bits_of_all_with_their_noise() -> None:
    used, n = replace(quantizer(1.0, max_abs=0.001), noise=0.4, divisor=4), 5
    assert 2 * used.bit > 1 << 16
    spread = Fraction(used.variance(VALUES))
    bits, far = used.lane_bits(n, spread), reach(spread)
    assert 2**bits > 2 * n * used.bit + 2 * far
    ends = np.array([-far, 2 * n * used.bit + far], np.int64)
    assert signed((ends & ((1 << bits) - 1)).astype(lane_dtype(bits)), bits, spread).tolist() == ends.tolist()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"noise": 0.0, "divisor": 0}, "goes with noise"),
        ({"clip": -1.0}, "is a positive number"),
        ({"clip": math.inf}, "is a positive number"),
        ({"q": 2, "noise": 1e-6, "divisor": 4}, "less than 1 unit of a lane of 2 bits"),
    ],
)
def test_numbers_that_make_no_bit_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadParameters, match=sentence):
        replace(quantizer(1.0), **changes)


# ------------------------------------------------------------ the next clip


def test_the_part_within_the_clip_is_that_of_the_bits() -> None:
    assert part_within(0, 10, 4) == 0.5
    assert part_within(40, 10, 4) == 1.0
    assert part_within(-40, 10, 4) == 0.0
    assert part_within(1, 3, 7) == round(0.5 + 1 / 42, 6)
    assert part_within(100, 10, 4) == 1.75, "noise may lead beyond"


def test_the_clip_moves_towards_the_quantile_within_its_bounds() -> None:
    numbers = {"quantile": 0.5, "rate": 0.2, "lowest": 0.01, "highest": 10.0}
    assert next_clip(1.0, 0.5, **numbers) == 1.0
    assert next_clip(1.0, 1.0, **numbers) == float(f"{math.exp(-0.1):.9g}")
    assert next_clip(1.0, 0.0, **numbers) == float(f"{math.exp(0.1):.9g}")
    assert next_clip(0.0101, 1.5, **numbers) == 0.01
    assert next_clip(9.9, -3000.0, **numbers) == 10.0
    with localcontext() as context:
        context.prec = 3
        assert next_clip(1.0, 1.0, **numbers) == float(f"{math.exp(-0.1):.9g}"), "whatever a program has set"


def test_repeated_steps_end_at_the_quantile_of_the_norms() -> None:
    norms = np.random.default_rng(3).lognormal(0.0, 1.0, 2000)
    for first in (0.01, 100.0):
        clip = first
        for _ in range(150):
            clip = next_clip(clip, float((norms <= clip).mean()), quantile=0.8, rate=0.4, lowest=1e-3, highest=1e3)
        assert (norms <= clip).mean() == pytest.approx(0.8, abs=0.01)


# ------------------------------------------------------------ under masks


def test_the_bit_has_the_noise_of_the_values_and_is_in_no_sum_without() -> None:
    """What devices added in whole attempts beyond their bits: a chance test of its deviation."""
    found, inside = [], []
    for attempt in range(24):
        head = adaptive(attempt=attempt)
        members, authority = fleet(N, VALUES)
        coordinator = Coordinator(head, authority, members)
        survivors = until_signed(coordinator, (3,))
        spread = head.spread(N)
        total = signed(finished(coordinator, survivors), coordinator.cohort.roster.lane_bits, spread)
        assert head.quantizer.require_possible(total, len(survivors), spread) > 0
        added = total - plain_sum(coordinator, survivors).astype(np.int64)
        assert not added[VALUES + 1 :].any(), "weight and canary are exact"
        found.append(int(added[VALUES]))
        inside.append(head.quantizer.within(total, len(survivors)))
    assert len(set(found)) == 24
    head = adaptive()
    deviation = math.sqrt(4 * head.quantizer.variance(VALUES) / hidden_among(head.rule, N))
    assert 0.6 < float(np.std(found)) / deviation < 1.5
    assert float(np.std(inside)) > 0.2


def test_a_lane_of_bits_that_cannot_be_is_refused() -> None:
    head = adaptive()
    used, spread = head.quantizer, head.spread(N)
    cap = used.weight_cap
    behind = [N * (cap >> used.q * j & (1 << used.q) - 1) for j in range(used.weight_lanes)] + [N]
    total = np.array([N * used.levels // 2] * VALUES + [2 * N * used.bit] + behind, np.int64)
    assert used.require_possible(total, N, spread) == N * cap
    assert used.within(total, N) == part_within(N * used.bit, used.bit, 4)
    for wrong in (2 * N * used.bit + reach(spread) + 1, -reach(spread) - 1):
        total[VALUES] = wrong
        with pytest.raises(BadVector, match="the lane of the bits"):
            used.require_possible(total, N, spread)


def test_a_device_takes_no_header_with_a_clip_outside_of_the_terms() -> None:
    head = adaptive(dimension=5)
    for wrong in ({"clip": 100.5}, {"clip": 0.09}, {"clip": 0.0}, {"clip": math.nan}):
        with pytest.raises(BadParameters, match=r"is not from 0\.1 to 100"):
            replace(head, **wrong)
    for other in ({"highest": 1000.0, "clip": 500.0}, {"lowest": 1e-5}, {"lowest": 0.0, "highest": 0.0, "clip": 0.0}):
        (member, *_), _ = fleet(3)
        with pytest.raises(Refusal, match="other terms than the plan"):
            member.start(replace(head, **other), wants=expected(head))
        assert not member.log


def test_a_header_names_its_clip() -> None:
    head = adaptive()
    assert AttemptHeader.parse(head.encoded) == head
    assert head.digest != adaptive(clip=1.6).digest
    assert terms_of(task_of(head.terms)) == head.terms
    quiet = adaptive(lowest=0.0, highest=0.0, clip=0.0)
    assert head.lanes == quiet.lanes + 1
    assert set(task_of(head.terms).model_dump()) - set(task_of(quiet.terms).model_dump()) == {"lowest", "highest"}


def test_an_owner_bounds_the_clip_wherever_it_goes() -> None:
    terms = replace(adaptive().terms, minimum_cohort=64, weight_cap=1, max_abs=0.1)

    def reasons(**bounds: Any) -> list[str]:
        return list(refused_terms(terms, SecureBounds(**{"smallest_norm": 0.0, **bounds})))

    assert reasons(largest_norm=100.0) == []
    assert reasons(largest_norm=99.0) == ["This device's owner allows an L2 clip of at most 99; the plan asks for 100."]
    assert reasons(smallest_norm=0.2) == [
        "This device's owner allows an L2 clip of at least 0.2; the plan asks for 0.1."
    ]
