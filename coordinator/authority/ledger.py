"""What an authority stores: its rows, and transactions over them in one SQLite file.

What ``Ledger.writing`` has ended is on the disk before anybody is told of it: each commit is synced, and a killed
process loses nothing acknowledged. Nothing here is secret but a device's label and who it is: secrets of tokens are
stored as SHA-256 of 128 random bits, keys are public. The authority's server and the commands on its machine open the
file at the same time: writers take turns.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from client_sdk.credentials.certificate import HolderClass
from client_sdk.protocol.problems import problem

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


FORMAT = 1
_BUSY_S = 5.0

_TABLES = """
CREATE TABLE tokens (
    secret_digest BLOB PRIMARY KEY, holder TEXT NOT NULL, uses_left INTEGER NOT NULL CHECK (uses_left >= 0),
    made_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, label TEXT NOT NULL
) STRICT;
CREATE TABLE uses (
    secret_digest BLOB NOT NULL REFERENCES tokens ON DELETE CASCADE, key_id BLOB NOT NULL,
    PRIMARY KEY (secret_digest, key_id)
) STRICT;
CREATE TABLE holders (
    id TEXT PRIMARY KEY, holder TEXT NOT NULL, state TEXT NOT NULL, enrolled_at INTEGER NOT NULL,
    label TEXT NOT NULL, subject TEXT NOT NULL
) STRICT;
CREATE TABLE keys (
    key_id BLOB PRIMARY KEY, id TEXT REFERENCES holders, public_key BLOB, certificate BLOB,
    expires_at INTEGER NOT NULL, revoked_at INTEGER, replaced_by BLOB
) STRICT;
CREATE UNIQUE INDEX one_valid_key ON keys (id) WHERE revoked_at IS NULL;
CREATE TABLE lists (one INTEGER PRIMARY KEY CHECK (one = 1), encoded BLOB NOT NULL) STRICT;
CREATE TABLE audit (
    entry INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, who TEXT NOT NULL, event TEXT NOT NULL,
    what TEXT NOT NULL
) STRICT;
"""

Row = TypeVar("Row", TokenRow, HolderRow, KeyRow, AuditEntry)


class Ledger:
    """What is stored, for several threads and processes: in ``path``, which is made where it is missing. OSError where
    it cannot be opened."""

    def __init__(self, path: Path | str) -> None:
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
                self._connection.execute(f"PRAGMA {setting}")
            with self.writing():
                (found,) = self._connection.execute("PRAGMA user_version").fetchone()
                if found == 0:
                    for statement in filter(str.strip, _TABLES.split(";")):
                        self._connection.execute(statement)
                    self._connection.execute(f"PRAGMA user_version = {FORMAT}")
        except sqlite3.Error as error:
            raise OSError(f"The authority's ledger {path} cannot be opened: {error}") from error
        if found > FORMAT:
            self.close()
            raise OSError(f"The authority's ledger {path} is of a newer version of Quorate: upgrade this one.")

    @contextmanager
    def writing(self) -> Iterator[LedgerRows]:
        """One transaction, alone: durable when the block has ended, undone where it raises. ProblemError *busy* or
        *disk-full*."""
        with self._transaction("IMMEDIATE") as rows:
            yield rows

    @contextmanager
    def reading(self) -> Iterator[LedgerRows]:
        """The rows of one moment, to read."""
        with self._transaction("DEFERRED") as rows:
            yield rows

    @contextmanager
    def _transaction(self, mode: str) -> Iterator[LedgerRows]:
        with self._lock:
            try:
                self._connection.execute(f"BEGIN {mode}")
                try:
                    yield LedgerRows(self._connection)
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:  # SQLite has undone it already where the disk is full
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
                    raise problem(
                        "disk-full", "The authority has no room left; nothing was stored.", retry_after_s=30
                    ) from error
                raise problem(
                    "busy", "The authority's ledger cannot be used now; nothing happened.", retry_after_s=2
                ) from error

    def close(self) -> None:
        self._connection.close()


class LedgerRows:
    """What is stored, inside one transaction: the open one of a connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._run = connection.execute

    def token(self, secret_digest: bytes) -> TokenRow | None:
        return self._one(TokenRow, "tokens WHERE secret_digest = ?", secret_digest)

    def add_token(self, row: TokenRow) -> None:
        self._put("tokens", row)

    def tokens(self) -> list[TokenRow]:
        """The tokens that are not forgotten, newest first."""
        return self._all(TokenRow, "tokens ORDER BY made_at DESC, secret_digest")

    def enrolled_by(self, secret_digest: bytes, key_id: bytes) -> bool:
        """Whether this token has enrolled this key."""
        asked = self._run("SELECT 1 FROM uses WHERE secret_digest = ? AND key_id = ?", (secret_digest, key_id))
        return asked.fetchone() is not None

    def use_token(self, secret_digest: bytes, key_id: bytes) -> None:
        """Takes one use of the token, for this key."""
        self._run("UPDATE tokens SET uses_left = uses_left - 1 WHERE secret_digest = ?", (secret_digest,))
        self._run("INSERT INTO uses VALUES (?, ?)", (secret_digest, key_id))

    def holder(self, id: str) -> HolderRow | None:
        return self._one(HolderRow, "holders WHERE id = ?", id)

    def put_holder(self, row: HolderRow) -> None:
        self._put("holders", row)

    def holders(self) -> list[HolderRow]:
        """All, in the sequence of their enrolment."""
        return self._all(HolderRow, "holders ORDER BY enrolled_at, id")

    def key(self, key_id: bytes) -> KeyRow | None:
        return self._one(KeyRow, "keys WHERE key_id = ?", key_id)

    def key_of(self, id: str) -> KeyRow | None:
        """The one key of this id that is not revoked."""
        return self._one(KeyRow, "keys WHERE id = ? AND revoked_at IS NULL", id)

    def put_key(self, row: KeyRow) -> None:
        self._put("keys", row)

    def forget_keys(self, id: str, at: int) -> None:
        """Revokes all keys of this id at ``at``, and takes everything out of their rows but key id and times."""
        self._run(
            "UPDATE keys SET id = NULL, public_key = NULL, certificate = NULL, replaced_by = NULL, "
            "revoked_at = COALESCE(revoked_at, ?) WHERE id = ?",
            (at, id),
        )

    def revoked_of(self, id: str) -> int:
        """How many revoked keys of this id are stored."""
        (count,) = self._run("SELECT COUNT(*) FROM keys WHERE id = ? AND revoked_at IS NOT NULL", (id,)).fetchone()
        return int(count)

    def revoked_keys(self) -> list[bytes]:
        """Ids of all keys that are revoked."""
        return [key for (key,) in self._run("SELECT key_id FROM keys WHERE revoked_at IS NOT NULL")]

    def forget(self, *, keys_before: int, tokens_before: int) -> None:
        """Deletes revoked keys whose certificates had expired at ``keys_before``, and tokens that had at
        ``tokens_before``."""
        self._run("DELETE FROM tokens WHERE expires_at <= ?", (tokens_before,))
        self._run("DELETE FROM keys WHERE revoked_at IS NOT NULL AND expires_at <= ?", (keys_before,))

    def last_list(self) -> bytes | None:
        """The newest revocation list."""
        found = self._run("SELECT encoded FROM lists").fetchone()
        return found[0] if found else None

    def put_list(self, encoded: bytes) -> None:
        self._run("INSERT INTO lists VALUES (1, ?) ON CONFLICT DO UPDATE SET encoded = excluded.encoded", (encoded,))

    def note(self, entry: AuditEntry) -> None:
        self._run(
            "INSERT INTO audit (at, who, event, what) VALUES (?, ?, ?, ?)",
            (entry.at, entry.who, entry.event, entry.what),
        )

    def audit(self, most: int) -> list[AuditEntry]:
        """The newest entries, oldest first."""
        return self._all(AuditEntry, "audit ORDER BY entry DESC LIMIT ?", most)[::-1]

    def _one(self, kind: type[Row], rest: str, *given: Any) -> Row | None:
        found = self._all(kind, rest, *given)
        return found[0] if found else None

    def _all(self, kind: type[Row], rest: str, *given: Any) -> list[Row]:
        """The rows of ``SELECT ... FROM rest``. Table and condition are written in this file."""
        names = [field.name for field in fields(kind)]
        asked = self._run(f"SELECT {', '.join(names)} FROM {rest}", given)  # noqa: S608
        return [kind(**dict(zip(names, row, strict=True))) for row in asked]

    def _put(self, table: str, row: TokenRow | HolderRow | KeyRow) -> None:
        """Inserts the row, or changes the one with the same first column."""
        names = [field.name for field in fields(row)]
        changed = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
        self._run(
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "  # noqa: S608
            f"ON CONFLICT ({names[0]}) DO UPDATE SET {changed}",
            [getattr(row, name) for name in names],
        )
