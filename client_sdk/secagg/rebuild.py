"""A device's secret out of revealed shares, checked against what it committed to, with wrong shares set aside.

Knows shares and commitments. Has never heard of messages. Right shares are the rule, so the first t are tried alone.
Where they do not give the secret, all m of them are read as a Reed-Solomon code word of which up to floor((m - t) / 2)
symbols are wrong (McEliece and Sarwate 1981), decoded by Gao's algorithm (2003): interpolate all shares by g_1, run the
extended Euclidean algorithm on g_0 = prod (x - x_i) and g_1 until the remainder's degree is below (m + t) / 2, divide
it by the cofactor of g_1. About 0.1 s for 300 shares. Errors: BadShare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from client_sdk.secagg.advertisement import Advertisement, commitment_to
from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.errors import BadShare
from client_sdk.secagg.shamir import PRIME, SECRET_BYTES, combine, share_value

Polynomial = list[int]
"""Coefficients from the constant up; no zero on top; [] is zero."""


@dataclass(frozen=True, repr=False)
class Rebuilt:
    """A secret that fits its commitment."""

    secret: bytes
    wrong: tuple[int, ...]
    """The x of holders whose shares were seen to be wrong: empty where nothing had to be decoded."""


def rebuild_self_mask(shares: Mapping[int, bytes], threshold: int, advertised: Advertisement) -> Rebuilt:
    """The secret behind a survivor's own mask. ``shares``: x -> 33 bytes. BadShare where none fits the commitment."""
    return _rebuild(shares, threshold, lambda secret: fits_self_mask(secret, advertised))


def rebuild_mask_key(shares: Mapping[int, bytes], threshold: int, advertised: Advertisement) -> Rebuilt:
    """The private mask key of a device that vanished. BadShare where none fits the advertised key."""
    return _rebuild(shares, threshold, lambda secret: fits_mask_key(secret, advertised))


def fits_self_mask(secret: bytes, advertised: Advertisement) -> bool:
    """Whether the device committed to this secret."""
    return commitment_to(secret) == advertised.commitment


def fits_mask_key(secret: bytes, advertised: Advertisement) -> bool:
    """Whether this is the private half of the key that the device advertised."""
    return AgreementKey(secret).public == advertised.mask_key


def _rebuild(shares: Mapping[int, bytes], threshold: int, fits: Callable[[bytes], bool]) -> Rebuilt:
    try:
        secret = combine(shares, threshold)
    except BadShare:
        if len(shares) < threshold:
            raise
    else:
        if fits(secret):
            return Rebuilt(secret, ())
    found = _decoded(shares, threshold)
    if found is not None and not found[0] >> (8 * SECRET_BYTES):
        secret = found[0].to_bytes(SECRET_BYTES, "big")
        if fits(secret):
            return Rebuilt(secret, tuple(x for x in sorted(shares) if not _holds(found, x, shares[x])))
    raise BadShare(f"no {threshold} of {len(shares)} shares give the secret that the device committed to")


def _holds(polynomial: Polynomial, x: int, share: bytes) -> bool:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value.to_bytes(len(share), "big") == share if len(share) == 33 else False


def _decoded(shares: Mapping[int, bytes], threshold: int) -> Polynomial | None:
    """The polynomial of degree below t on which all shares lie but at most (m - t) / 2; None where there is none."""
    points = sorted(shares)
    values = []
    for x in points:
        try:
            values.append(share_value(shares[x]))
        except BadShare:
            values.append(0)
    remainder, rest = _through(points, values)
    cofactor: Polynomial = []
    next_cofactor: Polynomial = [1]
    while 2 * len(rest) > len(points) + threshold + 1:  # deg(rest) >= (m + t) / 2
        quotient, left = _divided(remainder, rest)
        remainder, rest = rest, left
        cofactor, next_cofactor = next_cofactor, _minus(cofactor, _times(quotient, next_cofactor))
    polynomial, left = _divided(rest, next_cofactor)
    return polynomial if polynomial and not left and len(polynomial) <= threshold else None


def _through(points: Sequence[int], values: Sequence[int]) -> tuple[Polynomial, Polynomial]:
    """prod (x - x_i), and the polynomial that takes the values at the points (Lagrange)."""
    whole: Polynomial = [1]
    for x in points:
        whole = [(low - x * high) % PRIME for low, high in zip([0, *whole], [*whole, 0], strict=True)]
    total = [0] * len(points)
    for x, value in zip(points, values, strict=True):
        part, carry = [0] * len(points), 0
        for place in range(len(points), 0, -1):  # whole / (X - x), by Horner
            carry = (whole[place] + carry * x) % PRIME
            part[place - 1] = carry
        slope = 0
        for coefficient in reversed(part):
            slope = (slope * x + coefficient) % PRIME
        factor = value * pow(slope, -1, PRIME) % PRIME
        total = [(have + factor * more) % PRIME for have, more in zip(total, part, strict=True)]
    return whole, _trimmed(total)


def _divided(dividend: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and remainder; ``divisor`` is not zero."""
    rest = list(dividend)
    quotient = [0] * max(0, len(rest) - len(divisor) + 1)
    inverse = pow(divisor[-1], -1, PRIME)
    for shift in range(len(quotient) - 1, -1, -1):
        factor = rest[shift + len(divisor) - 1] * inverse % PRIME
        quotient[shift] = factor
        if factor:
            for place, coefficient in enumerate(divisor, shift):
                rest[place] = (rest[place] - factor * coefficient) % PRIME
    return _trimmed(quotient), _trimmed(rest)


def _times(one: Polynomial, other: Polynomial) -> Polynomial:
    product = [0] * max(0, len(one) + len(other) - 1)
    for place, coefficient in enumerate(one):
        for shift, factor in enumerate(other, place):
            product[shift] = (product[shift] + coefficient * factor) % PRIME
    return _trimmed(product) if one and other else []


def _minus(one: Polynomial, other: Polynomial) -> Polynomial:
    size = max(len(one), len(other))
    padded = zip(one + [0] * (size - len(one)), other + [0] * (size - len(other)), strict=True)
    return _trimmed([(a - b) % PRIME for a, b in padded])


def _trimmed(polynomial: Polynomial) -> Polynomial:
    while polynomial and not polynomial[-1]:
        polynomial.pop()
    return polynomial
