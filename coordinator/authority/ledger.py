"""The port to what an authority stores: its rows, and a transaction over them.

What ``Ledger.writing`` has ended is on the disk before anybody is told of it. Nothing here is secret but a device's
label and who it is: secrets of tokens are stored as SHA-256 of 128 random bits, keys are public.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from client_sdk.credentials.certificate import HolderClass

HolderState = Literal["valid", "revoked", "left"]
AuditEvent = Literal["token", "enrolled", "renewed", "rotated", "left", "revoked", "refused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRow:
    """An enrolment token, without its secret."""

    secret_digest: bytes
    """SHA-256 of the secret."""
    holder: HolderClass
    uses_left: int
    made_at: int
    expires_at: int
    """Unix seconds, as all times here."""
    label: str = ""
    """What the operator calls it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HolderRow:
    """Whom an id was given to. It stays when the holder has left, so that no id is given twice."""

    id: str
    holder: HolderClass
    state: HolderState = "valid"
    enrolled_at: int = 0
    label: str = ""
    """What the device calls itself; empty when it has left."""
    subject: str = ""
    """Who it is, where that was proven at enrolment; empty when it has left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRow:
    """A key that was certified and whose last certificate has not expired, or that is not revoked."""

    key_id: bytes
    id: str | None
    """The holder's id; None when it has left."""
    public_key: bytes | None
    """None when its holder has left."""
    certificate: bytes | None
    """The newest; None when its holder has left."""
    expires_at: int
    """When the last of its certificates expires."""
    revoked_at: int | None = None
    replaced_by: bytes | None = None
    """The id of the key that a rotation put in its place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """Who did what, when."""

    at: int
    who: str
    """``device d1...``, ``worker w1...``, ``operator`` and the user's id on the authority's machine, or ``somebody``,
    who was refused."""
    event: AuditEvent
    what: str
    """Whom it concerns: an id, or the label of a token; or why an enrolment was refused. Never a secret."""


class LedgerRows(Protocol):
    """What is stored, inside one transaction."""

    def token(self, secret_digest: bytes) -> TokenRow | None: ...

    def add_token(self, row: TokenRow) -> None: ...

    def tokens(self) -> list[TokenRow]:
        """Those that are not forgotten, newest first."""

    def enrolled_by(self, secret_digest: bytes, key_id: bytes) -> bool:
        """Whether this token has enrolled this key."""

    def use_token(self, secret_digest: bytes, key_id: bytes) -> None:
        """Takes one use of the token, for this key."""

    def holder(self, id: str) -> HolderRow | None: ...

    def put_holder(self, row: HolderRow) -> None: ...

    def holders(self) -> list[HolderRow]:
        """All, in the sequence of their enrolment."""

    def key(self, key_id: bytes) -> KeyRow | None: ...

    def key_of(self, id: str) -> KeyRow | None:
        """The one key of this id that is not revoked."""

    def put_key(self, row: KeyRow) -> None: ...

    def forget_keys(self, id: str, at: int) -> None:
        """Revokes all keys of this id at ``at``, and takes everything out of their rows but key id and times."""

    def revoked_of(self, id: str) -> int:
        """How many revoked keys of this id are stored."""

    def revoked_keys(self) -> list[bytes]:
        """Ids of all keys that are revoked."""

    def forget(self, *, keys_before: int, tokens_before: int) -> None:
        """Deletes revoked keys whose certificates had expired at ``keys_before``, and tokens that had at
        ``tokens_before``."""

    def last_list(self) -> bytes | None:
        """The newest revocation list."""

    def put_list(self, encoded: bytes) -> None: ...

    def note(self, entry: AuditEntry) -> None: ...

    def audit(self, most: int) -> list[AuditEntry]:
        """The newest entries, oldest first."""


class Ledger(Protocol):
    """What is stored, for several threads and processes."""

    def writing(self) -> AbstractContextManager[LedgerRows]:
        """One transaction, alone: durable when the block has ended, undone where it raises. ProblemError *busy* or
        *disk-full*."""

    def reading(self) -> AbstractContextManager[LedgerRows]:
        """The rows of one moment, to read."""

    def close(self) -> None: ...
