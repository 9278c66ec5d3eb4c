"""Secret sharing (Shamir 1979) of 32 bytes over the field of p = 2^256 + 297: any t shares rebuild the secret, and
fewer reveal nothing. A secret of a device is also bound by a commitment or a public key, and each of its shares by a
digest (``shares``): together with these, fewer than t shares hide the secret computationally.

p is a prime above every 32-byte number, so a secret is itself a field element and is not reduced. A share is the value
at x of a polynomial of degree t - 1 whose constant is the secret; its holder's x is its place in the roster, counted
from 1. Errors: BadShare, BadParameters.

Speed. A share is one dot product of coefficients with the powers of x, and a secret is one of shares with the Lagrange
coefficients at 0: products are added as plain integers and reduced once. Powers and coefficients depend on the holders,
not on the secret, and are cached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from operator import mul

from client_sdk.secagg.errors import BadParameters, BadShare

PRIME = 2**256 + 297
"""The smallest prime above 2^256."""
SECRET_BYTES = 32
SHARE_BYTES = 33
"""A share is a number below ``PRIME``, big-endian."""
HOLDERS_LIMIT = 2**20

_COEFFICIENT_BYTES = 48
"""Bytes drawn for each coefficient and reduced modulo p: within 2^-127 of uniform."""


def split(secret: bytes, holders: Sequence[int], threshold: int, source: Callable[[int], bytes]) -> list[bytes]:
    """The shares of ``secret``, 33 bytes each, in the order of ``holders`` (their x, different numbers from 1 up).

    ``source`` is called once, with a number of bytes, for the coefficients, which are as secret as the secret itself: a
    device gives a key stream of the attempt's dealing secret (``dealing.coefficients``). BadParameters.
    """
    if len(secret) != SECRET_BYTES:
        raise BadParameters(f"a shared secret is {SECRET_BYTES} bytes, not {len(secret)}")
    if len(set(holders)) != len(holders) or not all(0 < x <= HOLDERS_LIMIT for x in holders):
        raise BadParameters(f"share holders are different numbers from 1 to {HOLDERS_LIMIT}")
    if not 1 < threshold <= len(holders):
        raise BadParameters(f"{threshold} of {len(holders)} shares is no threshold: it is from 2 to all of them")
    drawn = source(_COEFFICIENT_BYTES * (threshold - 1))
    if len(drawn) != _COEFFICIENT_BYTES * (threshold - 1):
        raise BadParameters("the source of coefficients gave another number of bytes than was asked")
    pieces = (drawn[start : start + _COEFFICIENT_BYTES] for start in range(0, len(drawn), _COEFFICIENT_BYTES))
    coefficients = [int.from_bytes(secret, "big"), *(int.from_bytes(piece, "big") % PRIME for piece in pieces)]
    return [_value(coefficients, x).to_bytes(SHARE_BYTES, "big") for x in holders]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret of which ``shares`` (x -> 33 bytes) are shares; the first ``threshold`` of them, by x, are used.

    BadShare where there are too few, where one is malformed, or where they visibly do not belong to one 32-byte secret.
    This does not detect every wrong share: compare the result with a commitment.
    """
    if threshold < 2 or len(shares) < threshold:
        raise BadShare(f"{len(shares)} shares are too few: it takes {threshold}")
    chosen = tuple(sorted(shares)[:threshold])
    pieces = [shares[x] for x in chosen]
    require_shares(pieces)
    return combine_pieces(pieces, lagrange_at_zero(chosen))


def combine_pieces(pieces: Sequence[bytes], coefficients: Sequence[int]) -> bytes:
    """The secret (32 bytes) of exactly t well-formed shares, with their holders' Lagrange coefficients at 0."""
    values = [int.from_bytes(piece, "big") for piece in pieces]
    secret: int = sum(map(mul, values, coefficients)) % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise BadShare("the shares do not belong to one secret")
    return secret.to_bytes(SECRET_BYTES, "big")


def require_shares(shares: Sequence[bytes]) -> None:
    """Raise BadShare unless each is well formed. Nearly all begin with a zero byte: those are below ``PRIME``."""
    if {len(share) for share in shares} == {SHARE_BYTES} and not any(b"".join(shares)[::SHARE_BYTES]):
        return
    for share in shares:
        share_value(share)


def share_value(share: bytes) -> int:
    """A share as a field element. BadShare where it is malformed."""
    if len(share) != SHARE_BYTES:
        raise BadShare(f"a share is {SHARE_BYTES} bytes, not {len(share)}")
    value = int.from_bytes(share, "big")
    if value >= PRIME:
        raise BadShare("a share is a number that the field does not have")
    return value


@lru_cache(maxsize=1024)
def lagrange_at_zero(holders: tuple[int, ...]) -> tuple[int, ...]:
    """The Lagrange coefficients at 0 for these x: l_i = prod over j != i of x_j / (x_j - x_i), modulo p.

    The divisors are inverted together (Montgomery's trick): one inversion, three products for each.
    """
    whole = prod(holders)
    if len(set(holders)) != len(holders) or not whole % PRIME:
        raise BadParameters("share holders are different numbers, none of them 0")
    divisors = [x * prod(other - x for other in holders if other != x) % PRIME for x in holders]
    before = [1]
    for divisor in divisors:
        before.append(before[-1] * divisor % PRIME)
    inverse = pow(before[-1], -1, PRIME)
    coefficients = []
    for place in range(len(divisors) - 1, -1, -1):
        coefficients.append(whole * inverse % PRIME * before[place] % PRIME)
        inverse = inverse * divisors[place] % PRIME
    return tuple(reversed(coefficients))


def _value(coefficients: Sequence[int], x: int) -> int:
    value: int = sum(map(mul, coefficients, _powers(x, len(coefficients)))) % PRIME
    return value


@lru_cache(maxsize=1024)
def _powers(x: int, count: int) -> tuple[int, ...]:
    powers = [1]
    for _ in range(count - 1):
        powers.append(powers[-1] * x % PRIME)
    return tuple(powers)
