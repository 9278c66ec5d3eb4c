"""The device's key: known answers, and who can verify what."""

from __future__ import annotations

import pytest

from client_sdk.identity import DeviceKey, verify

# RFC 8032, section 7.1, test 2.
SEED = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
PUBLIC = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_the_known_answer_of_rfc_8032() -> None:
    key = DeviceKey(SEED)
    assert key.public_hex == PUBLIC
    assert key.sign(b"\x72") == SIGNATURE
    assert verify(PUBLIC, b"\x72", SIGNATURE)


def test_the_key_is_the_entropy_that_was_given() -> None:
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return SEED

    assert DeviceKey.create(entropy).public_hex == PUBLIC
    assert asked == [32]
    assert DeviceKey.create().public_hex != DeviceKey.create().public_hex


def test_what_does_not_verify() -> None:
    assert not verify(PUBLIC, b"other", SIGNATURE)
    assert not verify(PUBLIC, b"\x72", SIGNATURE[:-1] + b"\x01")
    assert not verify(PUBLIC, b"\x72", b"")
    assert not verify("zz" * 32, b"\x72", SIGNATURE)
    assert not verify("00", b"\x72", SIGNATURE)


def test_the_secret_half_is_not_shown() -> None:
    key = DeviceKey(SEED)
    assert SEED.hex() not in repr(key)
    assert PUBLIC[:16] in repr(key)


def test_a_seed_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        DeviceKey(SEED[:31])
