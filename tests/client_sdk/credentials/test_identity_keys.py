"""Public keys in every encoding that must be refused, computed here by the curve's own arithmetic (RFC 8032, 5.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.credentials.errors import BadCredential, BadIdentityKey
from client_sdk.credentials.identity_keys import TrustedAuthority, key_id, require_identity_key, require_signed
from client_sdk.identity import DeviceKey
from tests.client_sdk.credentials.world import AUTHORITY, DEVICE, OTHER, TRUSTED, certificate, public

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]


def add(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    k = D * x1 * x2 * y1 * y2 % P
    return (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P


def times(scalar: int, point: Point) -> Point:
    found: Point = (0, 1)
    while scalar:
        if scalar & 1:
            found = add(found, point)
        point, scalar = add(point, point), scalar >> 1
    return found


def on_curve(y: int) -> list[Point]:
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * pow(2, (P - 1) // 4, P) % P
    return [(x, y), (P - x, y)] if x * x % P == square else []


def torsion() -> set[Point]:
    """The eight points whose order divides 8: the multiples of one of order 8, which is L times some point."""
    y = 2
    while True:
        for point in on_curve(y):
            multiples = [(0, 1)]
            generator = times(L, point)
            while (following := add(multiples[-1], generator)) != (0, 1):
                multiples.append(following)
            if len(multiples) == 8:
                return set(multiples)
        y += 1


def encodings(point: Point) -> set[bytes]:
    """Every 32 bytes that a lenient reader takes for this point: y or y + p, and for x = 0 either sign."""
    x, y = point
    signs = (0, 1) if x == 0 else (x & 1,)
    return {(value | sign << 255).to_bytes(32, "little") for value in (y, y + P) if value < 1 << 255 for sign in signs}


def test_all_eight_points_of_low_order_are_refused_in_every_encoding() -> None:
    points = torsion()
    assert len(points) == 8
    forms = set().union(*(encodings(point) for point in points))
    assert len(forms) == 14
    for form in forms:
        with pytest.raises(BadIdentityKey, match=r"low order|canonical"):
            require_identity_key(form)


def test_a_y_that_is_not_below_the_fields_prime_is_refused() -> None:
    for extra in range(19):
        for sign in (0, 1):
            form = (P + extra | sign << 255).to_bytes(32, "little")
            with pytest.raises(BadIdentityKey, match="canonical"):
                require_identity_key(form)


@given(y=st.integers(2, P - 2))
def test_a_y_off_the_curve_is_refused_and_one_on_it_is_not(y: int) -> None:
    form = y.to_bytes(32, "little")
    if on_curve(y):
        require_identity_key(form)
    else:
        with pytest.raises(BadIdentityKey, match="no point"):
            require_identity_key(form)


@given(seed=st.binary(min_size=32, max_size=32))
def test_drawn_keys_are_accepted(seed: bytes) -> None:
    require_identity_key(public(DeviceKey(seed)))


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_another_length_is_refused(length: int) -> None:
    with pytest.raises(BadIdentityKey, match="32 bytes"):
        require_identity_key(b"\x07" * length)


def test_bytes_are_certified_not_text() -> None:
    """Upper and lower case of one hexadecimal text would be two keys to a reader of texts."""
    with pytest.raises(BadIdentityKey):
        require_identity_key(DEVICE.public_hex.encode())
    assert certificate().public_key == bytes.fromhex(DEVICE.public_hex.upper())


def test_a_second_form_of_a_signature_is_refused() -> None:
    """S + L satisfies the same equation as S (RFC 8032, 5.1.7): each signature has one form."""
    message = b"message"
    signature = DEVICE.sign(message)
    require_signed(public(DEVICE), message, signature, "it")
    other = (int.from_bytes(signature[32:], "little") + L).to_bytes(32, "little")
    with pytest.raises(BadCredential):
        require_signed(public(DEVICE), message, signature[:32] + other, "it")


def test_an_authority_is_pinned_by_the_digest_of_its_key() -> None:
    assert TrustedAuthority.pinned(public(AUTHORITY), TRUSTED.digest) == TRUSTED
    assert TRUSTED.id == TRUSTED.digest[:16] == key_id(public(AUTHORITY))
    with pytest.raises(BadCredential, match="another authority"):
        TrustedAuthority.pinned(public(OTHER), TRUSTED.digest)
    with pytest.raises(BadIdentityKey):
        TrustedAuthority(bytes(32))
