"""Who is vouched for in a secure round, by real certificates and a real list, at which time."""

from __future__ import annotations

import pytest

from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.secagg.errors import BadMessage, Refusal
from client_sdk.secagg.roster import certified, vouched_by, vouched_by_list
from tests.client_sdk.credentials.world import (
    DAY,
    DEVICE,
    NOW,
    OTHER,
    STRANGER,
    TRUSTED,
    certificate,
    public,
    revocations,
)

DEVICE_ID = certificate().id


def test_a_certified_device_is_vouched_for_by_its_key() -> None:
    vouch = vouched_by(TRUSTED, revocations(7, STRANGER), NOW)
    assert vouch(DEVICE_ID, certificate().encoded) == DEVICE.public_hex


def test_nobody_else_is() -> None:
    vouch = vouched_by(TRUSTED, revocations(7, STRANGER), NOW)
    other = certificate(key=STRANGER)
    for device, shown, why in [
        ("d2", certificate().encoded, "of another one"),
        (DEVICE_ID, certificate(holder="worker").encoded, "of another one"),
        (DEVICE_ID, other.encoded, "revoked this key"),
        (DEVICE_ID, certificate().encoded[:-1] + b"\0", "signature"),
        (DEVICE_ID, b"", "too early"),
    ]:
        with pytest.raises(BadMessage, match=f"does not vouch for device {device}: .*{why}"):
            vouch(device, shown)


def test_a_certificate_must_last_as_long_as_the_attempt_where_that_is_given() -> None:
    made = certificate()
    late = revocations(8, issued=made.not_after - 1000)
    vouched_by(TRUSTED, late, made.not_after - 1)(made.id, made.encoded)
    for at, until in [(made.not_after, None), (made.not_after - 500, made.not_after + 100)]:
        with pytest.raises(BadMessage, match="expired"):
            vouched_by(TRUSTED, late, at, until=until)(made.id, made.encoded)


def test_a_list_out_of_date_stops_secure_rounds_with_that_reason() -> None:
    with pytest.raises(Refusal, match=r"out of date: a newer one was due\. Secure rounds wait"):
        vouched_by(TRUSTED, revocations(), NOW + DAY)


def test_a_list_of_another_authority_vouches_for_nobody() -> None:
    with pytest.raises(BadMessage, match="another authority"):
        vouched_by(TrustedAuthority(public(OTHER)), revocations(), NOW)


def test_an_accepted_list_vouches_also_when_a_newer_one_is_due() -> None:
    late = revocations()
    vouch = vouched_by_list(TRUSTED, late, NOW + DAY)
    assert vouch(DEVICE_ID, certificate().encoded) == DEVICE.public_hex
    with pytest.raises(BadMessage, match="revoked this key"):
        vouched_by_list(TRUSTED, revocations(7, DEVICE), NOW + DAY)(DEVICE_ID, certificate().encoded)


def test_a_signature_is_checked_once_and_validity_and_revocation_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that was good under one list is refused under the next, though its signature is known."""
    checked: list[bytes] = []
    genuine = Certificate.require_signed

    def watched(self: Certificate, authority: TrustedAuthority) -> None:
        checked.append(self.encoded)
        genuine(self, authority)

    monkeypatch.setattr(Certificate, "require_signed", watched)
    made = certificate(id="seen-nowhere-else")
    for at in (NOW, NOW + 1):
        vouched_by(TRUSTED, revocations(), at)(made.id, made.encoded)
    with pytest.raises(BadMessage, match="revoked this key"):
        vouched_by(TRUSTED, revocations(8, DEVICE), NOW + 2)(made.id, made.encoded)
    with pytest.raises(BadMessage, match="expired"):
        vouched_by_list(TRUSTED, revocations(), made.not_after)(made.id, made.encoded)
    assert checked == [made.encoded]


def test_a_stored_certificate_gives_its_key_and_is_of_its_device() -> None:
    assert certified(DEVICE_ID, certificate().encoded) == DEVICE.public_hex
    with pytest.raises(BadMessage, match="of another one"):
        certified("d2", certificate().encoded)
    with pytest.raises(BadMessage, match="of another one"):
        certified(DEVICE_ID, certificate(holder="worker").encoded)
    with pytest.raises(BadMessage, match="cannot be read"):
        certified(DEVICE_ID, b"")
