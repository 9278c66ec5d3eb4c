"""Chains of hashes over what is only ever appended: a run's log, its refusals, the messages, replies and end of a
Flower run, and the audit of all runs.

::

    link(0) = SHA-256(domain | what the chain belongs to)
    link(n) = SHA-256(domain | link(n - 1) | n | content of row n)

Each row stores its link, so a row that was changed, removed, added or moved does not continue the chain. Who recomputes
all later links hides that from the database itself, and not from anybody who has written down a later link: a device's
receipt names one, and so does each ``quorate verify``. The rows of the audit are signed too.

What is hashed is a format: stored links are never computed anew.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from client_sdk.credentials.canonical import AUDIT_HEAD
from client_sdk.identity import Signer, verify
from coordinator.store.declared import to_text
from coordinator.store.flower_rows import FlowerMessageRow, FlowerRunRow
from coordinator.store.rows import AuditHeadRow, AuditRow, EventRow, RefusalRow, RunRow

_EVENTS = b"quorate run log 1\0"
_AUDIT = b"quorate audit 1\0"
_REFUSALS = b"quorate refusals 1\0"
_FLOWER = b"quorate flower 1\0"
_LINK = struct.Struct(">32sQ")
"""Link before, number of the row."""
_EVENT = struct.Struct(">32sQd")
"""Link before, number of the row, time of an event."""


def log_beginning(row: RunRow) -> str:
    """Link 0 of a run's log: what identifies the run, but for its secret seed."""
    identity = [row.run, row.name, row.plan_digest, row.init, row.origin, float(row.created_at)]
    return _hashed(_EVENTS + _text(identity))


def event_link(before: str, seq: int, at: float, kind: str, body: str) -> str:
    """The link of an event. ``body``: its JSON as ``to_text`` writes it."""
    beginning = _EVENTS + _EVENT.pack(_raw(before), seq, at)
    return _hashed(beginning + f"{kind}\0{body}".encode("utf-8", "surrogatepass"))


def link_of_event(before: str, row: EventRow) -> str:
    """The link of an event whose row is stored."""
    return event_link(before, row.seq, row.at, row.kind, to_text(row.body))


def audit_beginning() -> str:
    """Link 0 of the audit."""
    return _hashed(_AUDIT)


def audit_link(before: str, number: int, row: AuditRow) -> str:
    """The link of the audit's row of this number, from 1."""
    content = _text([row.run, row.at, row.by, row.action, row.detail])
    return _hashed(_AUDIT + _LINK.pack(_raw(before), number) + content)


def refusals_beginning(run: str) -> str:
    """Link 0 of a run's refusals."""
    return _hashed(_REFUSALS + _bytes(run))


def refusal_link(before: str, number: int, row: RefusalRow) -> str:
    """The link of the run's refusal of this number, from 1."""
    content = _text([row.round, row.device, row.digest, row.kind, row.reason, float(row.at)])
    return _hashed(_REFUSALS + _LINK.pack(_raw(before), number) + content)


def chain_refusals(run: str, before: str | None, count: int, rows: Sequence[RefusalRow]) -> list[RefusalRow]:
    """The rows with their links. ``before``: the link of the run's last row; None: these are its first. ``count``: how
    many it has. Numbers of another store are left out."""
    link, chained = refusals_beginning(run) if before is None else before, []
    for number, row in enumerate(rows, count + 1):
        link = refusal_link(link, number, row)
        chained.append(replace(row, link=link, number=0))
    return chained


def flower_beginning(row: FlowerRunRow) -> str:
    """Link 0 of a Flower run: what identifies it."""
    identity = [row.run, row.number, row.app, row.version, row.digest, row.config, row.max_reply, float(row.created_at)]
    return _hashed(_FLOWER + _text(identity))


def flower_message_link(before: str, seq: int, row: FlowerMessageRow) -> str:
    """The link of a message that was pushed. It leaves out what changes until there is its reply: when it was
    delivered, and until when it is offered."""
    of_group = [row.position, row.round, row.group_id, row.grouped]
    content = [*of_group, row.node, row.device, row.kind, row.content, float(row.created_at)]
    return _flower_link(before, seq, ["message", row.message, *content])


def flower_reply_link(before: str, seq: int, row: FlowerMessageRow) -> str:
    """The link of the reply that a message has, and of all that its own leaves out."""
    content = [row.reply, row.reply_bytes, row.code, row.reason, *_floats(row.replied_at)]
    return _flower_link(before, seq, ["reply", row.message, *content, *_floats(row.expires_at, row.delivered_at)])


def flower_end_link(before: str, seq: int, row: FlowerRunRow, unanswered: Iterable[Sequence[Any]]) -> str:
    """The link of a run's end. ``unanswered``: of the messages without a reply, by position, what their links leave
    out: (message, expires_at, delivered_at)."""
    counted = [row.largest, row.messages, row.rounds, row.replies, row.errors, *_floats(row.latest_at, row.ended_at)]
    left = [[message, *_floats(*times)] for message, *times in unanswered]
    return _flower_link(before, seq, ["end", row.status, row.reason, row.state, *counted, left])


def _flower_link(before: str, seq: int, content: list[object]) -> str:
    return _hashed(_FLOWER + _LINK.pack(_raw(before), seq) + _text(content))


def _floats(*times: float | None) -> list[float | None]:
    """Times as a database returns them."""
    return [None if at is None else float(at) for at in times]


def by_run(rows: Iterable[RefusalRow]) -> dict[str, list[RefusalRow]]:
    """The rows of each run, in order."""
    found: dict[str, list[RefusalRow]] = {}
    for row in rows:
        found.setdefault(row.run, []).append(row)
    return found


def _hashed(content: bytes) -> str:
    return sha256(content).hexdigest()


def _raw(link: str) -> bytes:
    """The bytes of a link; of what is none, as of a row that somebody inserted by hand, a hash of it."""
    try:
        raw = bytes.fromhex(link)
    except ValueError:
        raw = b""
    return raw if len(raw) == 32 else sha256(_bytes(link)).digest()


def _text(values: list[object]) -> bytes:
    return _bytes(json.dumps(values, separators=(",", ":"), ensure_ascii=False))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# ------------------------------------------------------------ the audit
# Its one chain is over the rows of all runs and of none, each signed with a key outside the database::
#
#     link(n)       = SHA-256 over link(n - 1), n and the content of row n (``audit_link``)
#     signature(n)  = Ed25519 over domain | public key 32 | n 8 | time 8 | link(n) 32
#
# Row n with its signature is a *head*: it says that the audit had n rows, and which. Whoever writes to the database and
# has no key can delete rows from its end. A head that was written down elsewhere shows that; the signatures show
# everything else.
#
# What is signed is a format, with integers and the time (a double) in big-endian order.


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
