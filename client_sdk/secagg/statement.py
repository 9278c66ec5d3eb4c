"""The statement that a device signs: the protocol's domain, a digest that it is bound to, the stage, and a body.

``bound`` is the header's digest for an advertisement, and h, the digest of header and roster, for all later messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from client_sdk.identity import Signer, verify
from client_sdk.protocol.secure import Stage
from client_sdk.protocol.wire import CanonicalReader, CanonicalWriter
from client_sdk.secagg.errors import BadMessage, BadSignature

DOMAIN = b"quorate secure aggregation 2\x00"
"""The prefix of everything that is signed, hashed or derived here: it separates this protocol and version from
others."""

_STAGES: dict[Stage, int] = {
    "advertise": 1,
    "share": 2,
    "mask": 3,
    "survivors": 4,
    "unmask": 5,
    "complain": 6,
    "open": 7,
}

DIGEST_BYTES = 32
SIGNATURE_BYTES = 64


def statement(bound: bytes, stage: Stage, body: bytes) -> bytes:
    """The bytes that are signed: domain, ``bound`` (32 bytes), the stage's number (1 byte), the body's length (8 bytes,
    big-endian), the body."""
    if len(bound) != DIGEST_BYTES:
        raise BadMessage(f"a signature is bound to a digest of {DIGEST_BYTES} bytes, not {len(bound)}")
    return DOMAIN + bound + bytes([_STAGES[stage]]) + len(body).to_bytes(8, "big") + body


def signed(signer: Signer, bound: bytes, stage: Stage, body: bytes) -> bytes:
    """The device's signature over the statement, 64 bytes."""
    return signer.sign(statement(bound, stage, body))


def require_signed(public_hex: str, signature: bytes, bound: bytes, stage: Stage, body: bytes, whose: str) -> None:
    """Raise BadSignature unless ``signature`` is that of ``public_hex`` over the statement; ``whose`` names the
    device in the error."""
    if len(signature) != SIGNATURE_BYTES or not verify(public_hex, statement(bound, stage, body), signature):
        raise BadSignature(f"the signature of {whose} does not stand under what it sent")


# ------------------------------------------------------------ wire
# The canonical encoding (``client_sdk.protocol.wire``) of the messages of secure rounds. Errors: BadMessage.


class WireWriter(CanonicalWriter):
    """Writes a message of secure rounds. BadMessage."""

    error = BadMessage


class WireReader(CanonicalReader):
    """Reads a message of secure rounds. BadMessage."""

    error = BadMessage


def require_ascending(places: Sequence[int], what: str, below: int | None = None) -> None:
    """Raise BadMessage unless every number is above the one before (and under ``below``): no duplicates, one order."""
    if list(places) != sorted(set(places)):
        raise BadMessage(f"{what}: places are not in ascending order, each once")
    if places and (places[0] < 0 or (below is not None and places[-1] >= below)):
        raise BadMessage(f"{what}: a place is not in the roster")
