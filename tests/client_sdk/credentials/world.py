"""What tests of credentials share: an authority, a device and a worker, each the same in every run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from client_sdk.credentials.certificate import Certificate, HolderClass, RevocationList, certify, sign_revocations
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.credentials.identity_keys import TrustedAuthority, key_id
from client_sdk.identity import DeviceKey

NOW = 1_790_000_000
DAY = 86_400
BODY = b'{"hold_s": 30}'
URI = "https://train.example:8470/quorate/v1/checkins?since=4"


def key_of(name: str) -> DeviceKey:
    return DeviceKey(hashlib.sha256(name.encode()).digest())


def public(key: DeviceKey) -> bytes:
    return bytes.fromhex(key.public_hex)


AUTHORITY, OTHER = key_of("authority"), key_of("another authority")
TRUSTED = TrustedAuthority(public(AUTHORITY))
DEVICE, STRANGER = key_of("device"), key_of("stranger")


def certificate(id: str = "d0123456789abcdef", holder: HolderClass = "device", key: DeviceKey = DEVICE) -> Certificate:
    return certify(
        AUTHORITY, id=id, holder=holder, public_key=public(key), not_before=NOW - 600, not_after=NOW + 90 * DAY
    )


def revocations(counter: int = 7, *revoked: DeviceKey, issued: int = NOW) -> RevocationList:
    ids = [key_id(public(key)) for key in revoked]
    return sign_revocations(AUTHORITY, counter=counter, issued=issued, next_update=issued + DAY, revoked=ids)


def token(url: str = "https://authority.example:8471/quorate") -> EnrolmentToken:
    return EnrolmentToken(url, TRUSTED.digest, bytes(range(16)))


def damaged(whole: bytes) -> list[bytes]:
    """Every prefix, some longer forms, and every form with one flipped bit."""
    shorter = [whole[:length] for length in range(len(whole))]
    longer = [whole + bytes([value]) for value in (0, 10, 32, 59, 61, 65, 255)] + [b" " + whole, whole + whole]
    flipped = []
    for place in range(len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            flipped.append(bytes(changed))
    return shorter + longer + flipped


def refused(check: Callable[[bytes], object], whole: bytes, error: type[Exception]) -> None:
    """Every damaged form of ``whole`` is refused with this error, ``whole`` itself is not."""
    check(whole)
    for form in damaged(whole):
        try:
            check(form)
        except error:
            continue
        raise AssertionError(f"{form!r} was accepted")
