"""Who is vouched for in a secure round, by real certificates and a real list, at which time."""

from __future__ import annotations

import pytest

from client_sdk.credentials.authority_key import TrustedAuthority
from client_sdk.secagg.errors import BadMessage, Refusal
from client_sdk.secagg.vouching import vouched_by
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
