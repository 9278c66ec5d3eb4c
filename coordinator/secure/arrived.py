"""A message of a secure round as it arrived, and as it is stored.

Nothing of a secure round is stored as it came: behind a message stands its device's signature, which covers h, stage
and body; behind a sum stands h. Devices choose what they send, and one could else send the bytes of another round's
vector, or of a checkpoint: deleting the blobs of one round would delete the other's.

A message of at most ``SHORT_BYTES`` is a row of ``messages``, written in the transaction of the event that
accepts it: it needs no sync of its own and is there exactly if the log names it. *Discarded* deletes the rows of its
round, and SQLite overwrites them (``secure_delete``). It is not part of the event's body: the log is for ever, and
shares are not. 1,200 messages as files cost 1.4 of 15 CPU seconds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from client_sdk.protocol.problems import problem
from client_sdk.protocol.secure import Stage
from client_sdk.secagg.errors import SecaggError
from coordinator.blobs import Spool
from coordinator.secure.blob_formats import entry_bytes, message_bytes

SHORT_BYTES = 64 * 1024
"""Up to this length a message is stored beside its event, in the same transaction; a longer one, as every vector, is a
blob. To make, sync and delete a file costs more than all else that a short message needs."""


class ShortMessage(NamedTuple):
    """A message that is stored in the transaction of its event."""

    round: int
    digest: str
    content: bytes


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ArrivedMessage:
    """One message, from a device whose request was authenticated. Its ``repr`` shows nothing: it may hold shares."""

    device: str
    round: int
    attempt: int
    stage: Stage
    body: bytes
    signature: bytes
    certificate: bytes = b""
    """With *advertise*."""
    vector: Spool | None = None
    """With *mask*: the spool of the packed lanes and nothing else, with room for 64 more bytes. Committed here if they
    are accepted."""


@dataclass(frozen=True, kw_only=True, repr=False)
class StoredMessage:
    """A message as it is stored, see ``blob_formats``."""

    digest: str
    size: int
    data: bytes = b""
    """Empty for a vector, which is in its spool."""
    vector: str = ""
    """For a vector only: its digest, its length, and its last byte."""
    length: int = 0
    last: int = 0

    def short(self, round: int) -> ShortMessage | None:
        """The message of this round, where it is stored beside its event; None: it is a blob."""
        is_short = not self.vector and self.size <= SHORT_BYTES
        return ShortMessage(round, self.digest, self.data) if is_short else None

    @classmethod
    def of(cls, arrived: ArrivedMessage) -> StoredMessage:
        """The stored form of a message. Appends a vector's signature to its spool."""
        if arrived.stage == "mask":
            return cls._with_vector(arrived.vector, arrived.signature)
        try:
            match arrived.stage:
                case "advertise":
                    data = entry_bytes(arrived.body, arrived.signature, arrived.certificate)
                case "survivors":
                    data = arrived.signature
                case "share" | "unmask" | "complain" | "open":
                    data = message_bytes(arrived.body, arrived.signature)
                case _:
                    assert_never(arrived.stage)
        except SecaggError as error:
            raise problem("invalid-update", str(error)) from None
        return cls(digest=hashlib.sha256(data).hexdigest(), size=len(data), data=data)

    @classmethod
    def _with_vector(cls, spool: Spool | None, signature: bytes) -> StoredMessage:
        if spool is None or not spool.size:
            raise problem("invalid-request", "a masked input comes with its vector")
        vector, length = spool.digest, spool.size
        spool.handle.seek(length - 1)
        last = spool.handle.read(1)[0]
        spool.write(signature)
        return cls(digest=spool.digest, size=spool.size, vector=vector, length=length, last=last)
