"""Chains of hashes over what is only ever appended: a run's log, its refusals, the messages, replies and end of a
Flower run, and the audit of all runs.

::

    link(0) = SHA-256(domain | what the chain belongs to)
    link(n) = SHA-256(domain | link(n - 1) | n | content of row n)

Each row stores its link, so a row that was changed, removed, added or moved does not continue the chain. Who recomputes
all later links hides that from the database itself, and not from anybody who has written down a later link: a device's
receipt names one, and so does each ``quorate verify``. The rows of the audit are signed too (``audit_chain.py``).

What is hashed is a format: stored links are never computed anew.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from coordinator.store.declared import to_text
from coordinator.store.flower_rows import FlowerMessageRow, FlowerRunRow
from coordinator.store.rows import AuditRow, EventRow, RefusalRow, RunRow

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
    """As a database returns them."""
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
