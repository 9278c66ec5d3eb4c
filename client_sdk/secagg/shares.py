"""Exchange 2, ShareKeys: the shares of a device's two secrets, each pair sealed for the peer that holds it, and their
digests.

A holder gets one share of the device's self-mask secret and one of its private mask key, sealed together (AES-256-GCM,
NIST SP 800-38D) with h, sender, receiver and index as associated data: a sealed pair opens only for its receiver, in
its attempt and from its sender. Key and nonce are derived for one direction between two peers in one attempt and seal
one message, so no nonce repeats.

Beside each sealed pair stand the digests of its two shares (``share_digests``), for the dealer's own shares too, where
it holds some. The dealer signs all of them. Errors: BadMessage, BadShare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from struct import Struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from client_sdk.secagg.agreement import derive
from client_sdk.secagg.errors import BadMessage, BadParameters, BadShare
from client_sdk.secagg.shamir import SHARE_BYTES, share_value
from client_sdk.secagg.statement import DIGEST_BYTES, DOMAIN, WireReader, WireWriter, require_ascending

# ------------------------------------------------------------ share digests
# The digests of shares, by which a wrong share is told from a right one, and the one who lied from the others.
#
# A dealer signs the digest of every share that it deals, over h. A holder compares its shares with these digests before
# it masks, and complains otherwise. The coordinator compares every revealed share with the same digests, and counts no
# other one. So, as long as no two inputs of SHA-256 with one digest are known:
#
# - An honest holder is never refused: it masks only with shares that match, and reveals those.
# - t shares that match and do not give the secret that their dealer committed to prove that the dealer lied. All shares
#   that an honest dealer signed are of its secret, and no holder can reveal anything else that matches: so no holders,
#   however many, and no dealers can disprove an honest dealer.
#
# A digest covers h, dealer, holder and kind: it says nothing about a share of another attempt, at another place, or of
# the other secret. Who lacks t shares knows as little of any other share as of the secret, which is 256 random bits: a
# guess can be compared with a digest, and no guess is right. So below t shares a secret is hidden computationally (by
# SHA-256 as a random function), no longer perfectly as by Shamir's polynomial alone.
#
# Feldman's or Pedersen's commitments would show a wrong dealer before vectors are masked, for 120,000 curve
# operations a device of 300 instead of 1,200 hashes. A Reed-Solomon decoder in place of digests could not say who
# lied: with n = 9 and t = 7, two vanished devices and one that revealed random bytes got all nine barred.


SELF_MASK, MASK_KEY = 0, 1
"""The kinds of share: of the dealer's self-mask secret, of its private mask key."""
DIGESTS_BYTES = 2 * DIGEST_BYTES
"""Of a pair of shares: the digest of the self-mask share, then that of the mask-key share."""

_PREFIX = DOMAIN + b"share digest"
_ABOUT = Struct(">IIB").pack


def share_digests(h: bytes, holder: int, shares: Iterable[tuple[int, int, bytes]]) -> list[bytes]:
    """Of each of a holder's shares (dealer, kind, share): SHA-256(domain, "share digest", h, dealer's place (4 bytes),
    holder's place (4 bytes), kind (1 byte), share)."""
    prefix = _PREFIX + h
    return [hashlib.sha256(prefix + _ABOUT(dealer, holder, kind) + share).digest() for dealer, kind, share in shares]


# ------------------------------------------------------------ shares


KIND = 4
TAG_BYTES = 16
NONCE_BYTES = 12
SEALING_BYTES = 32 + NONCE_BYTES
"""Bytes derived for a direction: a key of 32 bytes, then its nonce."""
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
"""82: a bundle for 299 peers is 45 kB, of which the digests are 19 kB."""

Row = tuple[int, bytes, bytes]
"""(place, 82 sealed bytes, 64 bytes of digests)."""
_ROW = f">I{SEALED_BYTES}s{DIGESTS_BYTES}s"


@dataclass(frozen=True, repr=False)
class SharePair:
    """One holder's shares of a device's two secrets, 33 bytes each."""

    self_mask: bytes
    mask_key: bytes

    def digests(self, h: bytes, dealer: int, holder: int) -> bytes:
        """The digests of both shares, 64 bytes: what the dealer signs of this pair. ``dealer``, ``holder``: places."""
        shares = (dealer, SELF_MASK, self.self_mask), (dealer, MASK_KEY, self.mask_key)
        return b"".join(share_digests(h, holder, shares))

    def require_dealt(self, h: bytes, dealer: int, holder: int, digests: bytes) -> None:
        """Raise BadShare unless ``digests``, which the dealer signed for this holder, are those of this pair."""
        if self.digests(h, dealer, holder) != digests:
            raise BadShare("what was sealed are not the shares whose digests the dealer signed")


@dataclass(frozen=True)
class Bundle:
    """Sealed pairs of shares by place, each with its digests. From a device: one row for each holder but itself;
    ``owner`` is the dealer. To a device: one row from each dealer whose shares it holds; ``owner`` is the receiver."""

    owner: int
    rows: tuple[Row, ...]
    """Ascending by place, never the owner's."""
    own: bytes = b""
    """From a dealer that holds shares of its own secrets: their digests, 64 bytes. Else empty."""

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes; a dealer signs them together with h."""
        out = WireWriter(KIND).number(self.owner, 4).number(int(bool(self.own)), 1)
        if self.own:
            out.fixed(self.own, DIGESTS_BYTES)
        return out.number(len(self.rows), 4).rows(_ROW, self.rows).done()

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The places of the receivers, or of the dealers."""
        return tuple(place for place, _, _ in self.rows)

    @classmethod
    def parse(cls, data: bytes, n: int) -> Bundle:
        """Decode a bundle of a roster of ``n``. BadMessage for malformed bytes."""
        read = WireReader(data, KIND, "share bundle")
        owner, has_own = read.number(4), read.number(1)
        if has_own > 1:
            raise BadMessage("share bundle: a flag is neither 0 nor 1")
        own = read.fixed(DIGESTS_BYTES) if has_own else b""
        count = read.count(4, 4 + SEALED_BYTES + DIGESTS_BYTES)
        found = cls(owner, tuple(read.rows(_ROW, count)), own)
        read.end()
        require_ascending(found.places, "share bundle", n)
        if owner >= n or owner in found.places:
            raise BadMessage("share bundle: its owner is not in the roster, or among the others")
        return found

    def require_for(self, holders: tuple[int, ...]) -> None:
        """Raise BadMessage unless the bundle is for exactly these ``holders`` of its owner's shares: with the digests
        of the owner's own shares where the owner is among them, and only there."""
        others = tuple(holder for holder in holders if holder != self.owner)
        if self.places != others:
            raise BadMessage(f"share bundle: it is for {len(self.rows)} peers, not for the {len(others)} holders")
        if bool(self.own) != (self.owner in holders):
            raise BadMessage("share bundle: it has digests of its dealer's own shares only where the dealer holds some")


def seal_pair(agreed: bytes, h: bytes, dealer: tuple[int, str], holder: tuple[int, str], pair: SharePair) -> bytes:
    """Seal a pair for one holder, in 82 bytes. ``agreed``: the secret of the two share keys. ``dealer`` and ``holder``:
    (place, device id)."""
    return seal(_direction(agreed, h, dealer, holder), pair.self_mask + pair.mask_key, _associated(h, dealer, holder))


def unseal_pair(agreed: bytes, h: bytes, dealer: tuple[int, str], holder: tuple[int, str], sealed: bytes) -> SharePair:
    """Open the pair that the dealer sealed for this holder. BadShare where it did not, or sealed no shares."""
    text = unseal(_direction(agreed, h, dealer, holder), sealed, _associated(h, dealer, holder))
    if len(text) != 2 * SHARE_BYTES:
        raise BadShare("what was sealed is no pair of shares")
    pair = SharePair(text[:SHARE_BYTES], text[SHARE_BYTES:])
    share_value(pair.self_mask)
    share_value(pair.mask_key)
    return pair


def _direction(agreed: bytes, h: bytes, dealer: tuple[int, str], holder: tuple[int, str]) -> bytes:
    places = dealer[0].to_bytes(4, "big") + holder[0].to_bytes(4, "big")
    return derive(agreed, salt=h, info=DOMAIN + b"share" + places, length=SEALING_BYTES)


def _associated(h: bytes, dealer: tuple[int, str], holder: tuple[int, str]) -> bytes:
    """The associated data: h, sender, receiver, and the receiver's x."""
    index = holder[0] + 1
    return WireWriter(KIND).fixed(h, 32).text(dealer[1]).text(holder[1]).number(index, 4).done()


def seal(key_and_nonce: bytes, text: bytes, associated: bytes) -> bytes:
    """Encrypt ``text`` and append a tag over it and over ``associated``: 16 bytes longer than the text."""
    key, nonce = _split(key_and_nonce)
    return AESGCM(key).encrypt(nonce, text, associated)


def unseal(key_and_nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Decrypt ``sealed``. BadShare unless it was sealed with this key, nonce and ``associated``."""
    key, nonce = _split(key_and_nonce)
    if len(sealed) < TAG_BYTES:
        raise BadShare("a sealed share is shorter than its tag")
    try:
        return AESGCM(key).decrypt(nonce, sealed, associated)
    except InvalidTag:
        raise BadShare("a sealed share is not what its sender wrote for this receiver") from None


def _split(key_and_nonce: bytes) -> tuple[bytes, bytes]:
    if len(key_and_nonce) != SEALING_BYTES:
        raise BadParameters(f"sealing takes {SEALING_BYTES} bytes of key and nonce, not {len(key_and_nonce)}")
    return key_and_nonce[:32], key_and_nonce[32:]
