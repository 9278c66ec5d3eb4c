"""The digest of a share is of this share alone: one attempt, one dealer, one holder, one kind."""

from __future__ import annotations

import hashlib

import pytest

from client_sdk.secagg.errors import BadShare
from client_sdk.secagg.shares import MASK_KEY, SELF_MASK, SharePair, share_digests
from client_sdk.secagg.statement import DOMAIN
from tests.client_sdk.secagg.attempt import digest, opened, share


def share_digest(h: bytes, dealer: int, holder: int, kind: int, share: bytes) -> bytes:
    """Of one share alone."""
    return share_digests(h, holder, ((dealer, kind, share),))[0]


H, SHARE = digest("h"), bytes(range(33))


def test_the_digest_by_its_definition() -> None:
    about = H + bytes([0, 0, 1, 4]) + bytes([0, 0, 0, 7]) + bytes([1])
    wanted = hashlib.sha256(DOMAIN + b"share digest" + about + SHARE).digest()
    assert share_digest(H, 260, 7, MASK_KEY, SHARE) == wanted
    pair = SharePair(SHARE, SHARE[::-1])
    assert pair.digests(H, 3, 4) == share_digest(H, 3, 4, SELF_MASK, SHARE) + share_digest(
        H, 3, 4, MASK_KEY, SHARE[::-1]
    )


def test_whatever_it_covers_changes_it() -> None:
    found = {
        share_digest(h, dealer, holder, kind, piece)
        for h in (H, digest("another h"))
        for dealer in (1, 2)
        for holder in (1, 2)
        for kind in (SELF_MASK, MASK_KEY)
        for piece in (SHARE, SHARE[::-1])
    }
    assert len(found) == 32


def test_a_pair_is_that_of_its_digests_or_refused() -> None:
    pair = SharePair(SHARE, SHARE)
    digests = pair.digests(H, 1, 2)
    pair.require_dealt(H, 1, 2, digests)
    for other in (
        SharePair(SHARE, SHARE[::-1]),
        SharePair(SHARE[::-1], SHARE),
    ):
        with pytest.raises(BadShare, match="whose digests the dealer signed"):
            other.require_dealt(H, 1, 2, digests)
    for h, dealer, holder, given in (
        (digest("another h"), 1, 2, digests),
        (H, 3, 2, digests),
        (H, 1, 3, digests),
        (H, 2, 1, digests),
        (H, 1, 2, digests[32:] + digests[:32]),
        (H, 1, 2, digests[:32]),
        (H, 1, 2, b""),
    ):
        with pytest.raises(BadShare, match="whose digests the dealer signed"):
            pair.require_dealt(h, dealer, holder, given)


def test_every_share_of_an_attempt_has_its_own_digest() -> None:
    attempt = opened(5)
    share(attempt)
    found = [
        digests[part : part + 32]
        for bundle in attempt.bundles.values()
        for digests in (bundle.own, *(digests for _, _, digests in bundle.rows))
        for part in (0, 32)
    ]
    assert len(set(found)) == len(found) == 5 * 5 * 2
