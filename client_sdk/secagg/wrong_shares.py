"""Finds the holders that revealed wrong shares, from the shares of many dealers at once.

One dealer's m shares are a Reed-Solomon code word; alone it shows at most (m - t) / 2 wrong symbols. A holder that
cheats usually does so for most dealers, and then the wrong symbols of many words are at the same places: up to
m - t - 1 of them can be found (Metzner and Kapturowski 1990, IEEE Transactions on Information Theory 36(4)).

All *syndromes* of a right word are 0: S_j = sum over i of v_i x_i^j y_i, j < m - t, with y_i the share at x_i and
v_i = 1 / prod over k != i of (x_i - x_k). Those of a wrong word are the syndromes of its errors: a combination of the
vectors (1, x, x^2, ...) of the wrong places x. Where the errors of several words are linearly independent, all these
vectors are combinations of the syndromes, and no other place's is. So a place x is wrong where every polynomial whose
coefficients are orthogonal to all syndromes is 0 at x.

The result is only a hint: linearly dependent errors hide places, and a dealer that cheated adds a random vector. A
secret that is rebuilt without these holders is checked against its commitment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from client_sdk.secagg.errors import BadShare
from client_sdk.secagg.shamir import PRIME, share_value

_MOST = 128
"""Syndromes of a word that are computed: up to 127 wrong holders are found. Some seconds, for hundreds of holders."""

_SPARE = 8
"""Words used beyond the number of syndromes, in case some are linearly dependent."""

Row = list[int]


def wrong_holders(words: Sequence[Mapping[int, bytes]], threshold: int) -> frozenset[int]:
    """The x of holders whose shares are wrong in these ``words`` (for each dealer x -> 33 bytes), all of the same
    holders. Empty where they cannot be found: few words, too many wrong shares, or different holders."""
    if not words or any(word.keys() != words[0].keys() for word in words):
        return frozenset()
    points = sorted(words[0])
    checks = min(len(points) - threshold, _MOST)
    if checks < 2:
        return frozenset()
    parity = _parity(points, checks)
    syndromes = [_syndrome(parity, [_value(word[x]) for x in points]) for word in words[: checks + _SPARE]]
    orthogonal = _orthogonal(syndromes, checks)
    if not orthogonal or len(orthogonal) == checks:
        return frozenset()
    return frozenset(x for x in points if not any(_at(polynomial, x) for polynomial in orthogonal))


def _parity(points: Sequence[int], checks: int) -> list[Row]:
    """v_i x_i^j: a row for each j."""
    row = []
    for x in points:
        product = 1
        for other in points:
            if other != x:
                product = product * (x - other) % PRIME
        row.append(pow(product, -1, PRIME))
    rows = []
    for _ in range(checks):
        rows.append(row)
        row = [value * x % PRIME for value, x in zip(row, points, strict=True)]
    return rows


def _syndrome(parity: Sequence[Row], values: Row) -> Row:
    return [sum(one * other for one, other in zip(row, values, strict=True)) % PRIME for row in parity]


def _orthogonal(rows: Sequence[Row], width: int) -> list[Row]:
    """A basis of the vectors that are orthogonal to all rows, by Gauss-Jordan elimination."""
    pivots: dict[int, Row] = {}
    for row in rows:
        left = list(row)
        for column, pivot in pivots.items():
            left = _minus(left, left[column], pivot)
        lead = next((column for column, value in enumerate(left) if value), None)
        if lead is None:
            continue
        inverse = pow(left[lead], -1, PRIME)
        left = [value * inverse % PRIME for value in left]
        pivots = {column: _minus(pivot, pivot[lead], left) for column, pivot in pivots.items()}
        pivots[lead] = left
    basis = []
    for free in range(width):
        if free not in pivots:
            vector = [0] * width
            vector[free] = 1
            for column, pivot in pivots.items():
                vector[column] = -pivot[free] % PRIME
            basis.append(vector)
    return basis


def _minus(row: Row, factor: int, other: Row) -> Row:
    if not factor:
        return row
    return [(value - factor * more) % PRIME for value, more in zip(row, other, strict=True)]


def _at(polynomial: Row, x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def _value(share: bytes) -> int:
    """A share as a field element; a malformed share is wrong in any case, and counts as 0."""
    try:
        return share_value(share)
    except BadShare:
        return 0
