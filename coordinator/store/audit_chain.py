"""The chain of the audit: one over the rows of all runs and of none, each signed with a key outside the database.

::

    link(n)       = SHA-256 over link(n - 1), n and the content of row n (``chain.py``)
    signature(n)  = Ed25519 over domain | public key 32 | n 8 | time 8 | link(n) 32

Row n with its signature is a *head*: it says that the audit had n rows, and which. Whoever writes to the database and
has no key can delete rows from its end. A head that was written down elsewhere shows that; the signatures show
everything else.

What is signed is a format, with integers and the time (a double) in big-endian order.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from client_sdk.credentials.canonical import AUDIT_HEAD
from client_sdk.identity import Signer, verify
from coordinator.store.chain import audit_link
from coordinator.store.rows import AuditHeadRow, AuditRow

_STATEMENT = struct.Struct(">32sQd32s")
_NAME = "audit"
_TEXT = re.compile(r"audit:([1-9][0-9]{0,18}):([0-9a-f]{64}):([-+.e0-9]{1,32}):([0-9a-f]{64}):([0-9a-f]{128})")


class BadAuditHead(ValueError):
    """A text that is no head of an audit, or one that was altered. One sentence."""


@dataclass(frozen=True, slots=True)
class AuditHead:
    """Where the audit ended once. As text, on one line: ``audit:COUNT:LINK:TIME:KEY:SIGNATURE``."""

    count: int
    """How many rows it had."""
    link: str
    """Of the last one."""
    at: float
    """Time of the last row, Unix seconds."""
    key: str
    """The public key that signed it, 64 hexadecimal digits."""
    signature: str

    @classmethod
    def of(cls, number: int, row: AuditRow) -> AuditHead:
        """The head that a stored row is."""
        return cls(number, row.link, row.at, row.signed_by, row.signature)

    @classmethod
    def parse(cls, text: str) -> AuditHead:
        """The head in a text. BadAuditHead, also where its signature is not valid: it was altered."""
        parts = _TEXT.fullmatch(text.strip())
        try:
            found = None if parts is None else cls(int(parts[1]), parts[2], float(parts[3]), parts[4], parts[5])
        except ValueError:
            found = None
        if found is None or str(found) != text.strip():
            raise BadAuditHead(
                f"{text[:200]!r} is not audit:COUNT:LINK:TIME:KEY:SIGNATURE, as 'quorate audit --head' prints it."
            )
        if not found.is_signed():
            raise BadAuditHead(f"The head of the audit's row {found.count} was altered: its signature is not valid.")
        return found

    def statement(self) -> bytes:
        """What is signed. ValueError, TypeError, OverflowError or struct.error where a value is not of its form."""
        return AUDIT_HEAD + _STATEMENT.pack(_bytes_32(self.key), self.count, self.at, _bytes_32(self.link))

    def is_signed(self) -> bool:
        """Whether the signature is that of the key that the head names, and each value in its one form."""
        if _TEXT.fullmatch(str(self)) is None:
            return False
        try:
            return verify(self.key, self.statement(), bytes.fromhex(self.signature))
        except (TypeError, OverflowError, struct.error):
            return False

    def __str__(self) -> str:
        return f"{_NAME}:{self.count}:{self.link}:{self.at!r}:{self.key}:{self.signature}"


def is_audit_head(text: str) -> bool:
    """Whether the text has the form of a head of the audit, and not of a head of a run whose name is *audit*."""
    return text.startswith(f"{_NAME}:") and text.count(":") > 2


def chain_audit(
    head: AuditHeadRow, rows: Sequence[AuditRow], signer: Signer | None
) -> tuple[list[tuple[int, AuditRow]], AuditHeadRow]:
    """(number, row) of the rows with their links and signatures, and where the audit ends with them."""
    link, chained = head.link, []
    for number, row in enumerate(rows, head.count + 1):
        stored = replace(row, at=float(row.at))  # as a database returns it
        link = audit_link(link, number, stored)
        chained.append((number, signed(number, replace(stored, link=link), signer)))
    return chained, replace(head, count=head.count + len(chained), link=link)


def signed(number: int, row: AuditRow, signer: Signer | None) -> AuditRow:
    """The row with its signature; without a signer with none, also where another store had signed it."""
    if signer is None:
        return replace(row, signed_by="", signature="")
    row = replace(row, signed_by=signer.public_hex)
    return replace(row, signature=signer.sign(AuditHead.of(number, row).statement()).hex())


def _bytes_32(text: str) -> bytes:
    raw = bytes.fromhex(text)
    if len(raw) != 32:
        raise ValueError(f"{len(raw)} bytes, not 32")
    return raw
