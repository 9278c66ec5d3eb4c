"""Secrets in shares: p is prime, any t shares give the secret, t - 1 tell nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.secagg.errors import BadParameters, BadShare
from client_sdk.secagg.opening import rebuild_mask_key, rebuild_self_mask
from client_sdk.secagg.roster import AttemptSecrets
from client_sdk.secagg.shamir import PRIME, combine, lagrange_at_zero, share_value, split
from tests.client_sdk.secagg.attempt import digest, entropy


def is_probable_prime(number: int, bases: int) -> bool:
    """Miller and Rabin: wrong with a chance below 4^-bases."""
    if number % 2 == 0:
        return number == 2
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for draw in range(bases):
        base = int.from_bytes(digest(f"base {draw}"), "big") % (number - 3) + 2
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def test_p_is_the_smallest_prime_above_all_secrets() -> None:
    assert PRIME == 2**256 + 297
    assert is_probable_prime(PRIME, 100)
    assert not any(is_probable_prime(number, 2) for number in range(2**256, PRIME))


@given(
    secret=st.binary(min_size=32, max_size=32),
    seed=st.integers(),
    holders=st.lists(st.integers(1, 400), min_size=2, max_size=12, unique=True),
    data=st.data(),
)
def test_any_t_shares_give_the_secret(secret: bytes, seed: int, holders: list[int], data: st.DataObject) -> None:
    threshold = data.draw(st.integers(2, len(holders)))
    shares = dict(zip(holders, split(secret, holders, threshold, entropy(seed)), strict=True))
    chosen = data.draw(st.lists(st.sampled_from(holders), min_size=threshold, unique=True))
    assert combine({x: shares[x] for x in chosen}, threshold) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(31) + b"\1"])
def test_the_ends_of_the_range_are_secrets_too(secret: bytes) -> None:
    shares = dict(enumerate(split(secret, range(1, 6), 3, entropy(0)), 1))
    for chosen in itertools.combinations(shares, 3):
        assert combine({x: shares[x] for x in chosen}, 3) == secret


def test_fewer_than_t_shares_fit_every_secret() -> None:
    """For t - 1 shares and any secret there is a polynomial through all of them: here it is, by one more share."""
    shares = dict(enumerate(split(digest("secret"), range(1, 4), 3, entropy(1)), 1))
    two = {1: share_value(shares[1]), 2: share_value(shares[2])}
    for other in (digest("another"), bytes(32)):
        # l_1 s_1 + l_2 s_2 + l_3 y = other has one solution y, whatever `other` is.
        one, second, third = lagrange_at_zero((1, 2, 3))
        value = (int.from_bytes(other, "big") - one * two[1] - second * two[2]) * pow(third, -1, PRIME) % PRIME
        assert combine({1: shares[1], 2: shares[2], 3: value.to_bytes(33, "big")}, 3) == other


def test_coefficients_are_drawn_once_and_all_count() -> None:
    asked: list[int] = []

    def draw(length: int) -> bytes:
        asked.append(length)
        return b"\1" * length

    shares = split(bytes(32), [1, 2, 3], 3, draw)
    assert asked == [96]
    coefficient = int.from_bytes(b"\1" * 48, "big") % PRIME
    assert [share_value(share) for share in shares] == [
        (coefficient * x + coefficient * x * x) % PRIME for x in (1, 2, 3)
    ]
    with pytest.raises(BadParameters, match="source of coefficients"):
        split(bytes(32), [1, 2, 3], 3, lambda length: bytes(length - 1))


def slow_split(secret: bytes, holders: Sequence[int], threshold: int, drawn: bytes) -> list[int]:
    """A second implementation, by Horner's rule on the coefficients as they were drawn."""
    size = len(drawn) // (threshold - 1)
    coefficients = [int.from_bytes(drawn[i * size : (i + 1) * size], "big") for i in range(threshold - 1)]
    values = []
    for holder in holders:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value + coefficient) * holder % PRIME
        values.append((value + int.from_bytes(secret, "big")) % PRIME)
    return values


def slow_combine(shares: dict[int, int]) -> int:
    """A second implementation: the coefficients as the unknowns of Vandermonde's equations, solved by Gauss."""
    rows = [[pow(x, power, PRIME) for power in range(len(shares))] + [value] for x, value in shares.items()]
    for place in range(len(rows)):
        pivot = next(row for row in range(place, len(rows)) if rows[row][place])
        rows[place], rows[pivot] = rows[pivot], rows[place]
        inverse = pow(rows[place][place], PRIME - 2, PRIME)  # Fermat
        rows[place] = [value * inverse % PRIME for value in rows[place]]
        for other in range(len(rows)):
            if other != place and rows[other][place]:
                factor = rows[other][place]
                rows[other] = [(a - factor * b) % PRIME for a, b in zip(rows[other], rows[place], strict=True)]
    return rows[0][-1]


@given(
    secret=st.binary(min_size=32, max_size=32),
    seed=st.integers(),
    holders=st.lists(st.integers(1, 2**20), min_size=2, max_size=9, unique=True),
    data=st.data(),
)
def test_against_a_second_implementation(secret: bytes, seed: int, holders: list[int], data: st.DataObject) -> None:
    threshold = data.draw(st.integers(2, len(holders)))
    shares = [share_value(share) for share in split(secret, holders, threshold, entropy(seed))]
    assert shares == slow_split(secret, holders, threshold, entropy(seed)(48 * (threshold - 1)))
    chosen = dict(list(zip(holders, shares, strict=True))[:threshold])
    assert slow_combine(chosen) == int.from_bytes(secret, "big")
    assert combine({x: y.to_bytes(33, "big") for x, y in chosen.items()}, threshold) == secret


def test_at_full_size_against_a_second_implementation() -> None:
    holders = range(1, 301)
    shares = split(digest("secret"), holders, 201, entropy("full"))
    assert [share_value(share) for share in shares] == slow_split(
        digest("secret"), holders, 201, entropy("full")(48 * 200)
    )


def test_lagrange_coefficients_by_their_definition() -> None:
    for holders in ((1, 2), (1, 2, 3), (7, 300, 12, 55)):
        for x, found in zip(holders, lagrange_at_zero(holders), strict=True):
            wanted = 1
            for other in holders:
                if other != x:
                    wanted = wanted * other * pow(other - x, -1, PRIME) % PRIME
            assert found == wanted
    assert lagrange_at_zero((7, 300, 12, 55)) is lagrange_at_zero((7, 300, 12, 55))  # kept, not computed again
    for wrong in ((1, 1), (0, 1), (3, PRIME)):
        with pytest.raises(BadParameters):
            lagrange_at_zero(wrong)


@pytest.mark.parametrize(
    ("holders", "threshold"), [([1, 2, 2], 2), ([0, 1, 2], 2), ([1, 2, 3], 1), ([1, 2, 3], 4), ([1, 2, 2**20 + 1], 2)]
)
def test_what_cannot_be_split(holders: list[int], threshold: int) -> None:
    with pytest.raises(BadParameters):
        split(bytes(32), holders, threshold, entropy(0))


def test_what_is_no_share() -> None:
    shares = dict(enumerate(split(digest("s"), range(1, 4), 2, entropy(0)), 1))
    with pytest.raises(BadShare, match="too few"):
        combine({1: shares[1]}, 2)
    with pytest.raises(BadShare, match="33 bytes"):
        combine({1: shares[1], 2: shares[2][1:]}, 2)
    with pytest.raises(BadShare, match="field"):
        combine({1: shares[1], 2: PRIME.to_bytes(33, "big")}, 2)
    with pytest.raises(BadParameters):
        split(bytes(31), [1, 2], 2, entropy(0))


def test_shares_of_no_32_byte_secret_are_seen() -> None:
    """A constant of 2^256: a field element that no secret is."""
    line = {x: ((2**256 + 5 * x) % PRIME).to_bytes(33, "big") for x in (1, 2)}
    with pytest.raises(BadShare, match="one secret"):
        combine(line, 2)


@pytest.mark.parametrize("kind", ["seed", "key"])
def test_a_secret_is_rebuilt_from_any_t_shares_and_checked(kind: str) -> None:
    secrets = AttemptSecrets.draw(entropy(5))
    shown = secrets.advertisement("d")
    secret, rebuild = (
        (secrets.self_mask, rebuild_self_mask) if kind == "seed" else (secrets.mask_key.private, rebuild_mask_key)
    )
    shares = dict(enumerate(split(secret, range(1, 7), 4, entropy(6)), 1))
    for chosen in itertools.combinations(shares, 4):
        assert rebuild({x: shares[x] for x in chosen}, 4, shown) == secret
    for x in (1, 4):
        wrong = shares | {x: ((share_value(shares[x]) + 1) % PRIME).to_bytes(33, "big")}
        with pytest.raises(BadShare):
            rebuild(wrong, 4, shown)


def test_a_dealer_that_lied_cannot_be_rebuilt() -> None:
    secrets, other = AttemptSecrets.draw(entropy(3)), AttemptSecrets.draw(entropy(4))
    shares = dict(enumerate(split(other.self_mask, range(1, 8), 4, entropy(4)), 1))
    with pytest.raises(BadShare, match="committed"):
        rebuild_self_mask(shares, 4, secrets.advertisement("d"))
    with pytest.raises(BadShare, match="advertised"):
        rebuild_mask_key(shares, 4, secrets.advertisement("d"))
    scattered = {x: digest(str(x)).rjust(33, b"\0") for x in range(1, 8)}
    with pytest.raises(BadShare):
        rebuild_self_mask(scattered, 4, secrets.advertisement("d"))
    with pytest.raises(BadShare, match="too few"):
        rebuild_self_mask({1: shares[1]}, 4, secrets.advertisement("d"))
