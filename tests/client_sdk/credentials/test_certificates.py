"""Certificates and revocation lists: one form each, whose word they are, when they hold, and which list may follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client_sdk.credentials.certificate import (
    CLOCKS_APART_S,
    MOST_BYTES,
    Certificate,
    RevocationList,
    certify,
    following,
)
from client_sdk.credentials.errors import BadCredential, BadIdentityKey, NotValidNow, RevokedKey, RolledBackList
from client_sdk.credentials.identity_keys import key_id
from tests.client_sdk.credentials.world import (
    AUTHORITY,
    DAY,
    DEVICE,
    NOW,
    OTHER,
    STRANGER,
    TRUSTED,
    certificate,
    public,
    refused,
    revocations,
)


def test_a_certificate_is_read_back_and_is_short() -> None:
    for holder in ("device", "worker"):
        made = certificate("x" * 40, holder)
        assert Certificate.parse(made.encoded) == made
        assert len(made.encoded) == 171 <= MOST_BYTES
        made.require(TRUSTED, NOW)


def test_every_damaged_certificate_is_refused() -> None:
    refused(lambda data: Certificate.parse(data).require(TRUSTED, NOW), certificate().encoded, BadCredential)


def test_every_damaged_list_is_refused() -> None:
    whole = revocations(7, DEVICE, STRANGER).encoded
    refused(lambda data: RevocationList.parse(data).require_signed(TRUSTED), whole, BadCredential)


def test_a_certificate_of_another_authority_is_refused() -> None:
    made = certify(OTHER, id="d1", holder="device", public_key=public(DEVICE), not_before=NOW - 1, not_after=NOW + DAY)
    with pytest.raises(BadCredential, match="another authority"):
        made.require(TRUSTED, NOW)
    with pytest.raises(BadCredential, match="not valid"):
        replace(made, authority=TRUSTED.id).require(TRUSTED, NOW)


def test_a_certificate_holds_from_its_first_second_until_its_last() -> None:
    made = certificate()
    made.require(TRUSTED, made.not_before)
    made.require(TRUSTED, made.not_after - 1)
    with pytest.raises(NotValidNow, match="not valid yet"):
        made.require(TRUSTED, made.not_before - 1)
    with pytest.raises(NotValidNow, match="expired"):
        made.require(TRUSTED, made.not_after)


def test_a_key_of_low_order_gets_no_certificate() -> None:
    with pytest.raises(BadIdentityKey, match="low order"):
        certify(AUTHORITY, id="d1", holder="device", public_key=bytes(32), not_before=0, not_after=1)


@pytest.mark.parametrize("id", ["", "x" * 41, "D1", "-d", "d 1", "d\n", "é"])
def test_an_id_of_another_form_gets_no_certificate(id: str) -> None:
    with pytest.raises(BadCredential):
        certificate(id)


def test_a_certificate_without_time_is_none() -> None:
    with pytest.raises(BadCredential, match="no time"):
        certify(AUTHORITY, id="d1", holder="device", public_key=public(DEVICE), not_before=5, not_after=5)


def test_a_revoked_key_is_on_the_list() -> None:
    made = revocations(7, DEVICE, AUTHORITY)
    with pytest.raises(RevokedKey):
        made.require_good(public(DEVICE))
    made.require_good(public(STRANGER))
    assert list(made.revoked) == sorted(key_id(public(key)) for key in (DEVICE, AUTHORITY))


def test_ids_in_another_sequence_or_twice_are_refused() -> None:
    made = revocations(7, DEVICE, STRANGER)
    for ids in (made.revoked[::-1], made.revoked[:1] * 2):
        with pytest.raises(BadCredential, match="ascending"):
            replace(made, revoked=ids)


def test_a_list_is_current_until_its_next_update() -> None:
    made = revocations()
    made.require_current(NOW)
    made.require_current(NOW + DAY - 1)
    made.require_current(NOW - CLOCKS_APART_S)
    with pytest.raises(NotValidNow, match="out of date"):
        made.require_current(NOW + DAY)
    with pytest.raises(NotValidNow, match="this clock is behind"):
        made.require_current(NOW - CLOCKS_APART_S - 1)


def test_a_list_is_followed_by_a_higher_counter_only() -> None:
    held = revocations(7)
    assert following(None, held.encoded, TRUSTED) == held
    assert following(held, held.encoded, TRUSTED) is held
    newer = revocations(8, DEVICE)
    assert following(held, newer.encoded, TRUSTED) == newer
    with pytest.raises(RolledBackList, match="older than 8"):
        following(newer, held.encoded, TRUSTED)
    with pytest.raises(RolledBackList, match="two revocation lists with number 7"):
        following(held, revocations(7, DEVICE).encoded, TRUSTED)
    with pytest.raises(BadCredential):
        following(held, newer.encoded[:-1] + b"\0", TRUSTED)
