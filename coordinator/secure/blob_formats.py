"""How a message, a sum and a roster's entry are kept as blobs: each ends in something that no other attempt has.

Knows bytes. Blobs have the name of their content, and those of a round are deleted when it has ended; so a device
that sends the same bytes into two rounds, or bytes that are a checkpoint, must not have another's file deleted with
its own. A message is kept with its device's signature behind it, which stands over h and is checked before anything
is written; a sum with h behind it. What is a signature, or ends in one, needs nothing more.
"""

from __future__ import annotations

from client_sdk.secagg.advertisement import Advertisement
from client_sdk.secagg.errors import BadMessage
from client_sdk.secagg.roster import RosterEntry
from client_sdk.secagg.statement import DIGEST_BYTES, SIGNATURE_BYTES
from client_sdk.secagg.wire import WireReader, WireWriter

_KIND = 96


def entry_bytes(advertisement: bytes, signature: bytes, certificate: bytes) -> bytes:
    """A device's entry until the roster is made."""
    return WireWriter(_KIND).blob(advertisement).blob(certificate).fixed(signature, SIGNATURE_BYTES).done()


def parse_entry(data: bytes) -> RosterEntry:
    """What ``entry_bytes`` gave. BadMessage otherwise."""
    read = WireReader(data, _KIND, "kept advertisement")
    shown, certificate = Advertisement.parse(read.blob()), read.blob()
    entry = RosterEntry(shown, read.fixed(SIGNATURE_BYTES), certificate)
    read.end()
    return entry


def message_bytes(body: bytes, signature: bytes) -> bytes:
    """A body, and the signature that was checked."""
    return body + signature


def body_of(data: bytes) -> bytes:
    """The body of what ``message_bytes`` gave, and of a vector behind which its signature was written."""
    return data[:-SIGNATURE_BYTES]


def sum_bytes(packed: bytes, h: bytes) -> bytes:
    """An unmasked sum."""
    return packed + h


def sum_of(data: bytes) -> bytes:
    """The packed lanes of what ``sum_bytes`` gave. BadMessage where it is too short for that."""
    if len(data) < DIGEST_BYTES:
        raise BadMessage("this is no kept sum")
    return data[:-DIGEST_BYTES]
