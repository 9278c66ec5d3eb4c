"""The noise under masks: every sum that can be opened has all of it, whoever vanishes, and each has its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from client_sdk.privacy.accounting import rho_of, rho_under_masks
from client_sdk.secagg import device as secure_device
from client_sdk.secagg.device import noise_key
from client_sdk.secagg.errors import BadParameters, BadVector, Refusal
from client_sdk.secagg.header import AttemptHeader, GraphRule, hidden_among
from client_sdk.secagg.lanes import lane_dtype
from client_sdk.secagg.noise import NO_NOISE, DiscreteGaussian, add_noise, reach, signed
from client_sdk.secagg.quantize import Quantizer
from client_sdk.secagg.roster import AttemptSecrets
from tests.client_sdk.secagg.attempt import entropy, header
from tests.client_sdk.secagg.fleet import Coordinator, expected, finished, fleet, plain_sum, until_signed
from tests.client_sdk.secagg.test_noise import require_close

Integers = NDArray[np.int64]

VALUES, N, GONE = 4000, 5, (3,)
"""Of 5 devices 4 must sign and 2 may collude, so 2 honest ones are surely in a sum; here 4 are."""
NOISE: dict[str, Any] = {"noise": 0.25, "divisor": 4}
FAST = GraphRule(profile="fast", drop=44, corrupt_millionths=100_000, sigma=80, eta=40)


def loud(**changes: Any) -> AttemptHeader:
    return header(**{"dimension": VALUES, "q": 4, "max_norm": 3.0, **NOISE, **changes})


def sum_of_noise(head: AttemptHeader) -> Integers:
    """What devices have added in a whole attempt, of which one vanishes, in each value of the sum."""
    members, authority = fleet(N, VALUES)
    coordinator = Coordinator(head, authority, members)
    survivors = until_signed(coordinator, GONE)
    total = finished(coordinator, survivors)
    bits, spread = coordinator.cohort.roster.lane_bits, head.spread(N)
    found = signed(total, bits, spread)
    assert head.quantizer.require_possible(found, len(survivors), spread) > 0
    added = found - plain_sum(coordinator, survivors).astype(np.int64)
    assert not added[VALUES:].any(), "weight and canary are exact"
    return added[:VALUES]


def chances_of(share: Fraction, shares: int, far: int) -> NDArray[np.float64]:
    """Of the values from -far to far, of a sum of independent shares."""
    values = np.arange(-far, far + 1)
    one = np.exp(-(values.astype(float) ** 2) / (2 * float(share)))
    one, found = one / one.sum(), np.ones(1)
    for _ in range(shares):
        found = np.convolve(found, one)
    middle = found.size // 2
    return found[middle - far : middle + far + 1]


def require_sound(one: Integers, other: Integers) -> None:
    """Of the sums of two headers: each is of 4 shares of sigma^2 / 2, and they have nothing in common."""
    sigma2 = loud().quantizer.variance(VALUES)
    share, far = Fraction(sigma2, hidden_among(loud().rule, N)), reach(Fraction(4 * sigma2))
    chances = chances_of(share, 4, far)
    for found in (one, other):
        counts = np.bincount(found + far, minlength=2 * far + 1)
        inner = np.flatnonzero(chances * found.size >= 10)
        low, high = inner[0], inner[-1]
        classes = np.concatenate([[chances[: low + 1].sum()], chances[low + 1 : high], [chances[high:].sum()]])
        counted = np.concatenate([[counts[: low + 1].sum()], counts[low + 1 : high], [counts[high:].sum()]])
        require_close(counted, classes)
    assert abs(float(np.corrcoef(one, other)[0, 1])) < 6 / math.sqrt(VALUES)


def test_each_sum_is_of_as_many_shares_as_survivors_and_no_two_have_the_same() -> None:
    require_sound(sum_of_noise(loud()), sum_of_noise(loud(attempt=1)))


def of_share(change: Callable[[Fraction], Fraction]) -> Callable[[Any, Fraction, bytes], None]:
    return lambda vector, share, key: add_noise(vector, change(share), key)


BROKEN: dict[str, tuple[str, Any]] = {
    "half of it": ("add_noise", of_share(lambda share: share / 4)),
    "shared among the roster": ("add_noise", of_share(lambda share: share * 2 / N)),
    "as if all of another size were there": ("add_noise", of_share(lambda share: share * 2 / hidden_among(FAST, 300))),
    "one stream": ("noise_key", lambda secrets, h: secure_device.derive(secrets.dealing, salt=b"", info=b"")),
    "of the public header": ("noise_key", lambda secrets, h: bytes(32)),
    "on a part of the values": ("add_noise", lambda vector, share, key: add_noise(vector[:3000], share, key)),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_wrong_noise_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_device, *BROKEN[broken])
    with pytest.raises((AssertionError, BadVector)):
        require_sound(sum_of_noise(loud()), sum_of_noise(loud(attempt=1)))


def test_the_key_of_noise_hangs_on_the_devices_secret_and_on_h() -> None:
    mine, other = AttemptSecrets.draw(entropy(1)), AttemptSecrets.draw(entropy(2))
    keys = {noise_key(secrets, h) for secrets in (mine, other) for h in (bytes(32), bytes(31) + b"1")}
    assert len(keys) == 4
    assert noise_key(mine, bytes(32)) == noise_key(mine, bytes(32))


@pytest.mark.parametrize(
    ("rule", "n", "honest"),
    [(GraphRule(profile="strict"), 300, 100), (GraphRule(profile="strict"), 64, 22), (FAST, 300, 226)],
)
def test_a_share_is_by_the_roster_that_is_there_and_no_list_has_fewer(rule: GraphRule, n: int, honest: int) -> None:
    head = loud(rule=rule, q=16, noise=2.0)
    assert head.share(n) == Fraction(head.quantizer.variance(VALUES), honest)
    signers, colluding = rule.parameters(n).signers, rule.parameters(n).signers - honest
    assert head.fewest_survivors(n) >= signers
    assert (signers - colluding) * head.share(n) == head.quantizer.variance(VALUES)
    assert head.spread(n) == n * head.share(n)
    assert loud(noise=0.0, divisor=0).share(n) == NO_NOISE


def test_a_share_that_is_too_small_is_refused() -> None:
    with pytest.raises(BadParameters, match="would add noise of deviation"):
        loud(noise=0.01).lane_bits(N)
    with pytest.raises(BadParameters, match="bits a lane; at most 48 fit"):
        loud(q=24, max_norm=1e6, max_abs=1e3, dimension=1 << 20, noise=2000.0).lane_bits(N)


def test_lanes_hold_the_noise_and_others_stay_as_wide() -> None:
    head, quiet = loud(), loud(noise=0.0, divisor=0)
    bits, far = head.lane_bits(N), reach(head.spread(N))
    assert quiet.lane_bits(N) == 7 < bits
    assert N * 15 + 2 * far < 2**bits <= 2 * (N * 15 + 2 * far + 1)
    ends = np.array([-far, -1, 0, N * 14 + far], np.int64)
    wrapped = (ends & ((1 << bits) - 1)).astype(lane_dtype(bits))
    assert signed(wrapped, bits, head.spread(N)).tolist() == ends.tolist()
    assert signed(wrapped, bits, NO_NOISE) is wrapped


def test_noise_is_hardly_ever_beyond_its_bound_and_garbage_is() -> None:
    head, cap = loud(), 1000
    spread, far = head.spread(N), reach(head.spread(N))
    for tail in (far - 1, far):
        chance = 2 * math.exp(-(tail**2) / (2 * float(spread)))
        assert chance * 2**40 < 2**-39.9
    noise = DiscreteGaussian(spread).draw(bytes(32), VALUES)
    total = np.concatenate([7 * N + noise, [N * cap & 15, N * cap >> 4 & 15, N * cap >> 8 & 15, N]])
    middle = np.concatenate([np.full(VALUES, 7 * N), total[VALUES:]])
    total[VALUES:-1] = N * np.array([cap & 15, cap >> 4 & 15, cap >> 8])
    assert head.quantizer.require_possible(total, N, spread) == N * cap
    for wrong, sentence in (
        (np.where(np.arange(total.size) == 5, 14 * N + far + N + 9, total), "a lane sums to"),
        (np.concatenate([7 * N + 3 * noise, total[VALUES:]]), "norm is more than"),
        (np.concatenate([middle[:-1], [N + 1]]), "the canary lane"),
    ):
        with pytest.raises(BadVector, match=sentence):
            head.quantizer.require_possible(wrong, N, spread)


# ------------------------------------------------------------ the norm of the integers


EXTREME = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, -0.0, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 0.5, 0.49999997, 1.0]
)


def quantizer(q: int, max_norm: float, max_abs: float, noise: float = 1.0) -> Quantizer:
    return Quantizer(q=q, max_norm=max_norm, max_abs=max_abs, weight_cap=1, noise=noise, divisor=1)


def squares(used: Quantizer, values: NDArray[np.float32], key: bytes) -> int:
    lanes = used.lanes(values, 1, 32, key)[: values.size].astype(np.int64) - used.levels // 2
    return int(sum(int(lane) ** 2 for lane in lanes))


@given(
    values=arrays(np.float32, st.integers(1, 60), elements=EXTREME),
    q=st.integers(2, 24),
    max_norm=st.floats(1e-3, 1e3),
    max_abs=st.floats(1e-3, 1e3),
    key=st.binary(min_size=32, max_size=32),
)
@example(np.full(60, 0.01, np.float32), 2, 0.1, 1.0, bytes(32))
def test_the_norm_of_the_integers_is_within_the_bound(
    values: NDArray[np.float32], q: int, max_norm: float, max_abs: float, key: bytes
) -> None:
    used = quantizer(q, max_norm, max_abs)
    assert squares(used, values, key) <= used.squared_norm(values.size)


@pytest.mark.parametrize("size", [1, 3, 1 << 17])
@pytest.mark.parametrize("q", [2, 4, 16, 24])
def test_long_vectors_at_the_clip_keep_to_it_and_it_is_no_wider_than_it_must_be(size: int, q: int) -> None:
    values = np.random.default_rng(q).standard_normal(size).astype(np.float32)
    used = quantizer(q, 1.0, min(1.0, 4 / math.sqrt(size)))
    c = used.levels / 2 / used.max_abs
    assert squares(used, values, bytes(32)) <= used.squared_norm(size)
    assert used.squared_norm(size) <= 1.00001 * (c * c + size / 4 + 8 * (c + math.sqrt(size) / 2) + 14)


def test_what_rounding_makes_too_long_is_rounded_towards_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    values, used = np.full(500, 0.05, np.float32), quantizer(4, 1.0, 1.0)
    usual = used.lanes(values, 1, 20, bytes(32))[:500].astype(int) - 7
    assert set(usual.tolist()) == {0, 1}
    monkeypatch.setattr(Quantizer, "squared_norm", lambda self, dimension: 40)
    assert not (used.lanes(values, 1, 20, bytes(32))[:500].astype(int) - 7).any()
    monkeypatch.setattr(Quantizer, "squared_norm", lambda self, dimension: -1)
    with pytest.raises(BadVector, match="cannot be rounded within their clip"):
        used.lanes(values, 1, 20, bytes(32))


# ------------------------------------------------------------ a device that crashes, and what it costs


def test_a_device_that_is_killed_at_any_step_sends_the_same_noise() -> None:
    def sent(crashes: int) -> list[bytes]:
        members, authority = fleet(3)
        coordinator = Coordinator(loud(dimension=5, q=16, expires_at=1000), authority, members)
        member = members[1]
        roster = coordinator.open()
        for place, one in enumerate(members):
            if one is member and crashes & 1:
                one.crash = True
                assert one.tell(roster) is None
                one.start(coordinator.header)
            else:
                one.tell(roster)
            coordinator.hear_share(place)
        for place, one in enumerate(members):
            if one is member and crashes & 2:
                one.crash = True
                assert one.tell(coordinator.delivery(place)) is None
                one.start(coordinator.header)
            else:
                one.tell(coordinator.delivery(place))
            coordinator.hear_mask(place)
        return [coordinator.vectors[place] for place in range(3)]

    whole = sent(0)
    assert all(sent(crashes) == whole for crashes in (1, 2, 3))


@pytest.mark.parametrize("noise", [0.25, 1.0, 4.0, 10_000.0])
def test_a_sum_costs_what_one_discrete_gaussian_of_its_noise_does(noise: float) -> None:
    assert rho_under_masks(noise) == pytest.approx(rho_of(noise, 1), rel=1e-12)
    assert rho_under_masks(0.0) == math.inf


def test_a_device_takes_no_header_of_other_noise_than_it_agreed_to() -> None:
    head = loud(dimension=5, q=16)
    for other in ({"noise": 0.24}, {"divisor": 5}, {"noise": 0.0, "divisor": 0}):
        (member, *_), _ = fleet(3)
        with pytest.raises(Refusal, match="other terms than the plan"):
            member.start(replace(head, **other), wants=expected(head))
        assert not member.log
