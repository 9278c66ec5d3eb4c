"""The digests of shares, by which a wrong share is told from a right one, and the one who lied from the others.

A dealer signs the digest of every share that it deals, over h. A holder compares its shares with these digests before
it masks, and complains otherwise. The coordinator compares every revealed share with the same digests, and counts no
other one. So, as long as no two inputs of SHA-256 with one digest are known:

- An honest holder is never refused: it masks only with shares that match, and reveals those.
- t shares that match and do not give the secret that their dealer committed to prove that the dealer lied. All shares
  that an honest dealer signed are of its secret, and no holder can reveal anything else that matches: so no holders,
  however many, and no dealers can disprove an honest dealer.

A digest covers h, dealer, holder and kind: it says nothing about a share of another attempt, at another place, or of
the other secret. Who lacks t shares knows as little of any other share as of the secret, which is 256 random bits: a
guess can be compared with a digest, and no guess is right. So below t shares a secret is hidden computationally (by
SHA-256 as a random function), no longer perfectly as by Shamir's polynomial alone.

Feldman's or Pedersen's commitments would show a wrong dealer before vectors are masked, for 120,000 curve operations a
device of 300 instead of 1,200 hashes. A Reed-Solomon decoder in place of digests could not say who lied: with n = 9
and t = 7, two vanished devices and one that revealed random bytes got all nine barred.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from struct import Struct

from client_sdk.secagg.statement import DIGEST_BYTES, DOMAIN

SELF_MASK, MASK_KEY = 0, 1
"""The kinds of share: of the dealer's self-mask secret, of its private mask key."""
DIGESTS_BYTES = 2 * DIGEST_BYTES
"""Of a pair of shares: the digest of the self-mask share, then that of the mask-key share."""

_PREFIX = DOMAIN + b"share digest"
_ABOUT = Struct(">IIB").pack


def share_digest(h: bytes, dealer: int, holder: int, kind: int, share: bytes) -> bytes:
    """SHA-256(domain, "share digest", h, dealer's place (4 bytes), holder's place (4 bytes), kind (1 byte), share)."""
    return share_digests(h, holder, ((dealer, kind, share),))[0]


def share_digests(h: bytes, holder: int, shares: Iterable[tuple[int, int, bytes]]) -> list[bytes]:
    """``share_digest`` of each of a holder's shares (dealer, kind, share)."""
    prefix = _PREFIX + h
    return [hashlib.sha256(prefix + _ABOUT(dealer, holder, kind) + share).digest() for dealer, kind, share in shares]
