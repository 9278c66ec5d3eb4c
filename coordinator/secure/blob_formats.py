"""The blob formats of a message, a sum and a roster's entry: each ends in bytes that no other attempt has.

A blob's name is its content's digest, and the blobs of a round are deleted when it has ended. So a device that sends
the same bytes in two rounds, or the bytes of a checkpoint, must not cause the deletion of another file. A message is
therefore stored with its device's signature appended, which covers h and is checked before anything is written; a sum
with h appended. Bytes that are a signature, or end in one, need nothing more.
"""

from __future__ import annotations

from client_sdk.secagg.errors import BadMessage
from client_sdk.secagg.roster import Advertisement, RosterEntry
from client_sdk.secagg.statement import DIGEST_BYTES, SIGNATURE_BYTES, WireReader, WireWriter

_KIND = 96


def entry_bytes(advertisement: bytes, signature: bytes, certificate: bytes) -> bytes:
    """The blob of a device's roster entry, before the roster is made."""
    return WireWriter(_KIND).blob(advertisement).blob(certificate).fixed(signature, SIGNATURE_BYTES).done()


def parse_entry(data: bytes) -> RosterEntry:
    """Decode the bytes of ``entry_bytes``. BadMessage otherwise."""
    read = WireReader(data, _KIND, "stored advertisement")
    shown, certificate = Advertisement.parse(read.blob()), read.blob()
    entry = RosterEntry(shown, read.fixed(SIGNATURE_BYTES), certificate)
    read.end()
    return entry


def message_bytes(body: bytes, signature: bytes) -> bytes:
    """The blob of a message: its body and its checked signature."""
    return body + signature


def body_of(data: bytes) -> bytes:
    """The body of the blob of a message, or the vector of the blob of a masked vector."""
    return data[:-SIGNATURE_BYTES]


def sum_bytes(packed: bytes, h: bytes) -> bytes:
    """The blob of an unmasked sum."""
    return packed + h


def sum_of(data: bytes) -> bytes:
    """The packed lanes of the blob of a sum. BadMessage where it is too short."""
    if len(data) < DIGEST_BYTES:
        raise BadMessage("this is no stored sum")
    return data[:-DIGEST_BYTES]
