"""Shares follow from the dealing secret and the roster: a storage that is set back deals the same bytes again."""

from __future__ import annotations

import hmac
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from client_sdk.secagg import shares
from client_sdk.secagg.device import coefficients
from client_sdk.secagg.roster import AttemptSecrets
from client_sdk.secagg.shamir import combine
from client_sdk.secagg.shares import Bundle, unseal_pair
from tests.client_sdk.secagg.attempt import changed, digest, entropy
from tests.client_sdk.secagg.cheats import Cheat


@contextmanager
def sealings() -> Iterator[dict[bytes, set[bytes]]]:
    """AES-GCM key and nonce -> the plaintexts that were encrypted under them."""
    found: dict[bytes, set[bytes]] = defaultdict(set)
    seal = shares.seal

    def watched(key_and_nonce: bytes, text: bytes, associated: bytes) -> bytes:
        found[key_and_nonce].add(text)
        return seal(key_and_nonce, text, associated)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "seal", watched)
        yield found


def test_coefficients_are_the_key_stream_of_hkdf() -> None:
    """Computed here by the definitions of RFC 5869 and SP 800-38A."""
    dealing, h = digest("dealing"), digest("h")
    domain = b"quorate secure aggregation 2\0"
    for kind in ("self-mask", "mask-key"):
        extracted = hmac.digest(h, dealing, "sha256")
        key = hmac.digest(extracted, domain + b"dealing " + kind.encode() + b"\1", "sha256")
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(48 * 200))
        assert coefficients(dealing, h, kind)(48 * 200) == stream  # type: ignore[arg-type]
        assert coefficients(dealing, h, kind)(48) == stream[:48]  # type: ignore[arg-type]


def test_kinds_rosters_and_secrets_have_coefficients_of_their_own() -> None:
    drawn = {
        coefficients(dealing, h, kind)(480)
        for dealing in (digest("one"), digest("other"))
        for h in (digest("h"), digest("another h"))
        for kind in ("self-mask", "mask-key")  # type: ignore[arg-type]
    }
    assert len(drawn) == 8


def test_the_dealing_secret_is_one_of_five_draws_and_of_no_message() -> None:
    secrets = AttemptSecrets.draw(entropy("five"))
    drawn = [secrets.share_key.private, secrets.mask_key.private, secrets.self_mask, secrets.nonce, secrets.dealing]
    source = entropy("five")
    assert drawn == [source(32) for _ in range(5)]
    assert secrets.dealing not in secrets.advertisement("device-1").encoded


def test_repro_a_storage_set_back_before_sharing_seals_the_same_bytes_for_the_same_roster() -> None:
    """Drawn anew, the coefficients gave two plaintexts under one AES-GCM key and nonce: their difference is known."""
    with sealings() as sealed:
        cheat = Cheat(5)
        cheat.advertised(cheat.head)
        where = cheat.roster(cheat.head)
        before = cheat.members[0].disk
        cheat.shared(where)
        first = cheat.bundles[where.h][0]
        cheat.members[0].disk = before
        assert cheat.start(0, cheat.head) is not None
        cheat.shared(where, (0,))
        assert [message.stage for message in cheat.members[0].log] == ["advertise", "share", "advertise", "share"]
        assert cheat.bundles[where.h][0].encoded == first.encoded
    assert len(sealed) == 5 * 4
    assert all(len(texts) == 1 for texts in sealed.values())


def test_a_storage_set_back_deals_by_another_polynomial_and_key_for_another_roster() -> None:
    """It counts as colluding then, since two rosters know one advertisement; but no key and nonce are used twice."""
    with sealings() as sealed:
        cheat = Cheat(6)
        cheat.advertised(cheat.head)
        one, other = cheat.roster(cheat.head), cheat.roster(cheat.head, (0, 1, 2, 3, 4))
        before = cheat.members[0].disk
        cheat.shared(one, (0,))
        cheat.members[0].disk = before
        cheat.start(0, cheat.head)
        cheat.shared(other, (0,))
    assert len(sealed) == 5 + 4
    texts = [text for found in sealed.values() for text in found]
    assert len(texts) == len(set(texts)) == 9


def test_no_key_and_nonce_are_used_twice_over_attempts_restarts_and_rosters() -> None:
    with sealings() as sealed:
        cheat = Cheat(4)
        for attempt in range(3):
            head = changed(cheat.head, attempt=attempt)
            where = cheat.until_masked(head)
            for number in range(4):
                cheat.start(number, head)
        assert where.header == head
    assert len(sealed) == 3 * 4 * 3
    assert all(len(texts) == 1 for texts in sealed.values())


def test_what_is_dealt_rebuilds_the_secrets() -> None:
    cheat = Cheat(5)
    cheat.advertised(cheat.head)
    where = cheat.roster(cheat.head)
    secrets = cheat.members[0].live(cheat.head).secrets
    assert secrets is not None
    cheat.shared(where)
    bundle = Bundle.parse(cheat.bundles[where.h][0].encoded, 5)
    found = {}
    for place, sealed, _ in bundle.rows:
        holder = cheat.members[place].live(cheat.head).secrets
        assert holder is not None
        agreed = holder.share_key.agree(secrets.share_key.public)
        ends = (0, "device-0000"), (place, f"device-{place:04d}")
        found[place + 1] = unseal_pair(agreed, where.h, *ends, sealed)
    assert combine({x: pair.self_mask for x, pair in found.items()}, 4) == secrets.self_mask
    assert combine({x: pair.mask_key for x, pair in found.items()}, 4) == secrets.mask_key.private
    other = replace(secrets, dealing=digest("another dealing secret"))
    assert coefficients(other.dealing, where.h, "mask-key")(48) != coefficients(secrets.dealing, where.h, "mask-key")(
        48
    )
