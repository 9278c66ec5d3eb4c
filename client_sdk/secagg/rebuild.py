"""Rebuilds a device's secret from revealed shares, checks it against the commitment, and excludes wrong shares.

Most shares are right, so the first t are tried alone. Where they do not give the secret, t shares of holders that are
not known to have given wrong shares are tried. Then all m are decoded as a Reed-Solomon code word with up to
floor((m - t) / 2) wrong symbols (McEliece and Sarwate 1981) by Gao's algorithm (2003): interpolate all shares by g_1,
run the extended Euclidean algorithm on g_0 = prod (x - x_i) and g_1 until the remainder's degree is below (m + t) / 2,
divide it by the cofactor of g_1. About 0.1 s for 300 shares. Finally all sets of t shares are tried, where they are few
enough: the commitment shows which is right. Errors: BadShare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

from client_sdk.secagg.advertisement import Advertisement, commitment_to
from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.errors import BadShare
from client_sdk.secagg.shamir import (
    PRIME,
    SECRET_BYTES,
    combine,
    combine_pieces,
    lagrange_at_zero,
    require_shares,
    share_value,
)

Polynomial = list[int]
"""Coefficients from the constant up; the last one is not zero; [] is zero."""


SEARCH = 1 << 25
"""The limit of products in the search of one opening: some seconds."""


@dataclass
class Doubts:
    """The holders suspected from other dealers' secrets, and the remaining budget of the search."""

    suspects: set[int] = field(default_factory=set)
    """The x of holders that gave wrong shares of some secret, or probably did."""
    search: int = 0
    """Products left for trying sets of shares. 0: none is tried."""


@dataclass(frozen=True, repr=False)
class Rebuilt:
    """A secret that fits its commitment."""

    secret: bytes
    wrong: tuple[int, ...]
    """The x of holders whose shares were found to be wrong: empty where nothing had to be decoded, and where they
    cannot be identified."""


def rebuild_self_mask(
    shares: Mapping[int, bytes], threshold: int, advertised: Advertisement, doubts: Doubts | None = None
) -> Rebuilt:
    """The secret behind a survivor's own mask. ``shares``: x -> 33 bytes. BadShare where none fits the commitment.

    ``doubts`` is used and updated; None: a new one, with a search of its own."""
    return _rebuild(shares, threshold, lambda secret: fits_self_mask(secret, advertised), doubts)


def rebuild_mask_key(
    shares: Mapping[int, bytes], threshold: int, advertised: Advertisement, doubts: Doubts | None = None
) -> Rebuilt:
    """The private mask key of a device that dropped out. BadShare where none fits the advertised key. ``doubts``: as
    in ``rebuild_self_mask``."""
    return _rebuild(shares, threshold, lambda secret: fits_mask_key(secret, advertised), doubts)


def fits_self_mask(secret: bytes, advertised: Advertisement) -> bool:
    """Whether the device committed to this secret."""
    return commitment_to(secret) == advertised.commitment


def fits_mask_key(secret: bytes, advertised: Advertisement) -> bool:
    """Whether this is the private half of the key that the device advertised."""
    return AgreementKey(secret).public == advertised.mask_key


def _rebuild(
    shares: Mapping[int, bytes], threshold: int, fits: Callable[[bytes], bool], doubts: Doubts | None
) -> Rebuilt:
    if len(shares) < threshold:
        raise BadShare(f"{len(shares)} shares are too few: it takes {threshold}")
    doubts = Doubts(search=SEARCH) if doubts is None else doubts
    secret = _given(shares, threshold, fits)
    if secret is not None:
        return Rebuilt(secret, ())
    trusted = [x for x in sorted(shares) if x not in doubts.suspects]
    fitting: list[Polynomial] = []
    if threshold <= len(trusted) < len(shares) and _given({x: shares[x] for x in trusted}, threshold, fits) is not None:
        fitting = [_polynomial(shares, trusted[:threshold])]
    fitting = fitting or _fitting(_decoded(shares, threshold), fits) or _searched(shares, threshold, fits, doubts)
    if not fitting:
        raise BadShare(f"no {threshold} of {len(shares)} shares give the secret that the device committed to")
    wrong = tuple(x for x in sorted(shares) if not _holds(fitting[0], x, shares[x])) if len(fitting) == 1 else ()
    doubts.suspects.update(wrong)
    return Rebuilt(fitting[0][0].to_bytes(SECRET_BYTES, "big"), wrong)


def _given(shares: Mapping[int, bytes], threshold: int, fits: Callable[[bytes], bool]) -> bytes | None:
    """The secret from the first ``threshold`` of these shares, where it fits; else None."""
    try:
        secret = combine(shares, threshold)
    except BadShare:
        return None
    return secret if fits(secret) else None


def _fitting(polynomial: Polynomial | None, fits: Callable[[bytes], bool]) -> list[Polynomial]:
    """The polynomial in a list, where its constant is the secret; else an empty list."""
    if not polynomial or polynomial[0] >> (8 * SECRET_BYTES):
        return []
    return [polynomial] if fits(polynomial[0].to_bytes(SECRET_BYTES, "big")) else []


def _searched(
    shares: Mapping[int, bytes], threshold: int, fits: Callable[[bytes], bool], doubts: Doubts
) -> list[Polynomial]:
    """The polynomials through any t shares that give the secret, where the budget allows to try all sets of t.

    There may be two: wrong shares whose errors cancel at 0 give the secret too. Then the wrong ones cannot be
    identified.
    """
    products = threshold * threshold * comb(len(shares), threshold)
    if products > doubts.search:
        return []
    doubts.search -= products
    coefficients = lagrange_at_zero.__wrapped__  # no cache: none of these is needed again
    found: list[Polynomial] = []
    for chosen in combinations(sorted(shares), threshold):
        pieces = [shares[x] for x in chosen]
        try:
            require_shares(pieces)
            secret = combine_pieces(pieces, coefficients(chosen))
        except BadShare:
            continue
        if fits(secret):
            polynomial = _polynomial(shares, chosen)
            found += [] if polynomial in found else [polynomial]
        if len(found) == 2:
            break
    return found


def _polynomial(shares: Mapping[int, bytes], chosen: Sequence[int]) -> Polynomial:
    """The polynomial of degree below t through these t shares."""
    return _through(chosen, [share_value(shares[x]) for x in chosen])[1]


def _holds(polynomial: Polynomial, x: int, share: bytes) -> bool:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value.to_bytes(len(share), "big") == share if len(share) == 33 else False


def _decoded(shares: Mapping[int, bytes], threshold: int) -> Polynomial | None:
    """The polynomial of degree below t through all shares but at most (m - t) / 2; None where there is none."""
    points = sorted(shares)
    if len(points) < threshold + 2:
        return None
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
