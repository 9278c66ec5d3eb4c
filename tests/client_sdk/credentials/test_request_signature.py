"""Signed requests: one form, every part of the request counts, and times and nonces bound how long one is accepted."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from client_sdk.credentials.errors import BadCredential, OutsideTime, ReplayedRequest, TooManyRequests
from client_sdk.credentials.request_signature import AHEAD_S, NonceWindow, RequestSignature, sign_request
from tests.client_sdk.credentials.world import BODY, DEVICE, NOW, STRANGER, URI, public, refused

SHA256 = hashlib.sha256(BODY).digest()
RESULT = "lease=4; digest=abc"


def signed(**changes: Any) -> dict[str, str]:
    given = {"method": "POST", "uri": URI, "sha256": SHA256, "at": NOW, "nonce": bytes(range(16)), **changes}
    return sign_request(DEVICE, **given)


def raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"train.example"), *((name.lower().encode(), value.encode()) for name, value in headers.items())]


def parsed(**changes: Any) -> RequestSignature:
    return RequestSignature.parse(raw(signed(**changes)))


def test_a_signed_request_is_accepted() -> None:
    found = parsed()
    found.require_current(NOW)
    found.require_signed(public(DEVICE), method="POST", uri=URI)
    found.require_body(SHA256)
    assert (found.created, found.expires) == (NOW, NOW + 60)


def test_the_header_of_a_workers_result_is_signed_too() -> None:
    found = parsed(result=RESULT)
    found.require_signed(public(DEVICE), method="POST", uri=URI, result=RESULT)
    for other in (RESULT + "x", None):
        with pytest.raises(BadCredential):
            found.require_signed(public(DEVICE), method="POST", uri=URI, result=other)
    with pytest.raises(BadCredential, match="does not cover"):
        parsed().require_signed(public(DEVICE), method="POST", uri=URI, result=RESULT)


@pytest.mark.parametrize(
    "changes",
    [{"method": "PUT"}, {"uri": URI + "0"}, {"uri": URI.replace("https", "http")}, {"uri": URI.replace(":8470", "")}],
)
def test_another_request_is_refused(changes: dict[str, str]) -> None:
    asked = {"method": "POST", "uri": URI, **changes}
    with pytest.raises(BadCredential):
        parsed().require_signed(public(DEVICE), **asked)


def test_another_key_is_refused() -> None:
    with pytest.raises(BadCredential, match="another key"):
        parsed().require_signed(public(STRANGER), method="POST", uri=URI)


def test_another_body_is_refused() -> None:
    with pytest.raises(BadCredential, match="body"):
        parsed().require_body(hashlib.sha256(b"").digest())


@pytest.mark.parametrize("name", ["Content-Digest", "Signature-Input", "Signature"])
@pytest.mark.parametrize("result", [None, RESULT])
def test_every_damaged_header_is_refused(name: str, result: str | None) -> None:
    whole = signed(result=result)

    def check(value: bytes) -> None:
        headers = [(key, value if key == name.lower().encode() else given) for key, given in raw(whole)]
        found = RequestSignature.parse(headers)
        found.require_signed(public(DEVICE), method="POST", uri=URI, result=result)
        found.require_body(SHA256)

    refused(check, whole[name].encode(), BadCredential)


@pytest.mark.parametrize("name", ["Content-Digest", "Signature-Input", "Signature"])
def test_a_header_that_is_missing_or_there_twice_is_refused(name: str) -> None:
    headers = raw(signed())
    mine = [pair for pair in headers if pair[0] == name.lower().encode()]
    with pytest.raises(BadCredential, match="not signed"):
        RequestSignature.parse([pair for pair in headers if pair not in mine])
    with pytest.raises(BadCredential, match="two headers"):
        RequestSignature.parse([*headers, *mine])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"@method" "@target-uri"', '"@target-uri" "@method"'),
        ('"@method" ', ""),
        (' "content-digest")', ")"),
        ('"content-digest")', '"content-digest" "host")'),
        ('"@method" ', '"@method"  '),
        ("quorate=", "sig1="),
        ("quorate=", "Quorate="),
        (f"created={NOW}", f"created=0{NOW}"),
        (f"created={NOW}", f"created={NOW}.0"),
        (f"expires={NOW + 60}", f"expires={NOW + 61}"),
        (f"expires={NOW + 60}", f"expires={NOW}"),
        (f";expires={NOW + 60}", ""),
        (f"created={NOW};expires={NOW + 60}", f"expires={NOW + 60};created={NOW}"),
        ('alg="ed25519"', 'alg="hmac-sha256"'),
        (';alg="ed25519"', ""),
        ('tag="quorate-request-1"', 'tag="another"'),
        ('tag="quorate-request-1"', 'tag="quorate-request-1";extra'),
        ('tag="quorate-request-1"', 'tag="quorate-request-1", other=()'),
        ('nonce="0', 'nonce="A'),
    ],
)
def test_another_form_that_the_standard_allows_is_refused(old: str, new: str) -> None:
    headers = signed()
    assert old in headers["Signature-Input"]
    changed = {**headers, "Signature-Input": headers["Signature-Input"].replace(old, new)}
    with pytest.raises(BadCredential):
        RequestSignature.parse(raw(changed))


@pytest.mark.parametrize(
    "changes",
    [{"method": "post"}, {"method": "POST\nX: 1"}, {"uri": "https://a/\n"}, {"uri": "https://a/ä"}, {"result": "a\n"},
     {"result": " a"}, {"lifetime_s": 61}],
)  # fmt: skip
def test_what_could_be_read_in_two_ways_is_not_signed(changes: dict[str, Any]) -> None:
    with pytest.raises(BadCredential):
        signed(**changes)


def test_a_request_is_accepted_around_its_time_only() -> None:
    found = parsed()
    for now in (NOW - AHEAD_S, NOW + 60):
        found.require_current(now)
    with pytest.raises(OutsideTime) as early:
        found.require_current(NOW - AHEAD_S - 1)
    assert early.value.ahead_s == AHEAD_S + 1
    with pytest.raises(OutsideTime, match="61 s behind") as late:
        found.require_current(NOW + 61)
    assert late.value.ahead_s == -61


def numbered(number: int, at: int = NOW) -> RequestSignature:
    return parsed(nonce=number.to_bytes(16, "big"), at=at)


def test_a_nonce_is_accepted_once_until_its_request_expires() -> None:
    window, found = NonceWindow(), numbered(1)
    window.take(found, NOW)
    window.take(numbered(2), NOW)
    for now in (NOW, NOW + 30, found.expires):
        found.require_current(now)
        with pytest.raises(ReplayedRequest):
            window.take(found, now)
    with pytest.raises(OutsideTime):
        found.require_current(found.expires + 0.5)
    window.take(numbered(3, NOW + 100), NOW + 100)
    assert len(window) == 1, "what has expired is forgotten"


def test_a_window_that_is_full_forgets_nothing_and_says_when_it_has_room() -> None:
    window = NonceWindow(most=2)
    window.take(numbered(1), NOW)
    window.take(numbered(2, NOW + 5), NOW + 5)
    with pytest.raises(TooManyRequests) as full:
        window.take(numbered(3, NOW + 6), NOW + 6)
    assert full.value.retry_s == NOW + 60 + 1 - (NOW + 6)
    with pytest.raises(ReplayedRequest):
        window.take(numbered(1), NOW + 6)
    window.take(numbered(3, NOW + 30), NOW + 61)


def test_one_key_cannot_take_the_room_of_the_others() -> None:
    window = NonceWindow(most=10, most_of_a_key=2)
    window.take(numbered(1), NOW)
    window.take(numbered(2), NOW)
    with pytest.raises(TooManyRequests):
        window.take(numbered(3), NOW)
    other = sign_request(STRANGER, method="POST", uri=URI, sha256=SHA256, at=NOW, nonce=bytes(16))
    window.take(RequestSignature.parse(raw(other)), NOW)
    window.take(numbered(4, NOW + 61), NOW + 61)
