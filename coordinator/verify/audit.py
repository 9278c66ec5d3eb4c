"""The audit of all runs and of none: one chain, each row signed by a key that is not in the database."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from coordinator.store.chain import AuditHead, audit_beginning, audit_link
from coordinator.store.port import AuditHeadRow, AuditRow, Reader
from coordinator.verify.kinds import fields_of_wrong_kind, shown
from coordinator.verify.violation import Violation, printable

_PAGE = 5000
_MOST = 20
"""Findings that are named. Of a chain that was computed anew each row is wrong."""
_SHOWN = 12
_UNREADABLE = (TypeError, ValueError, struct.error, OverflowError)


@dataclass(frozen=True, slots=True)
class AuditWitness:
    """What is known of the audit outside of the database."""

    keys: Collection[str] | None = None
    """The public keys that may have signed, in lower-case hexadecimal. None: signatures are only held against the key
    that each row names."""
    heads: Sequence[AuditHead] = ()
    """Heads that were written down, with valid signatures."""


@dataclass(slots=True)
class AuditChecks:
    """``findings`` reads the whole audit; then ``head`` and ``notes`` say where it ends, and what was not checked."""

    witness: AuditWitness
    head: AuditHead | None = None
    """The last row, where it is signed."""
    _notes: list[str] = field(default_factory=list)

    def findings(self, reader: Reader) -> Iterator[Violation]:
        """What speaks against the audit, at most some twenty findings and their number."""
        count = 0
        try:
            for wrong in self._all(reader):
                count += 1
                if count <= _MOST:
                    yield wrong
        except _UNREADABLE:
            yield _violation(
                None, "a row's number, or where it ends, is no number: the rows after it cannot be checked"
            )
        if count > _MOST:
            yield _violation(None, f"and {count - _MOST} more of its rows or heads are wrong")

    def notes(self) -> Iterator[str]:
        """What could not be checked, for people."""
        yield from self._notes

    def _all(self, reader: Reader) -> Iterator[Violation]:
        stored = reader.audit_head()
        if stored is None:
            yield _violation(None, "where it ends was deleted")
        elif any(fields_of_wrong_kind(stored)):
            wrong = "; ".join(f"audit_head.{name} holds {shown(value)}" for name, value in fields_of_wrong_kind(stored))
            yield _violation(None, wrong)
            stored = None
        signatures = _Signatures(self.witness.keys)
        heads: dict[int, list[AuditHead]] = {}
        for known in self.witness.heads:
            heads.setdefault(known.count, []).append(known)
        link, number = audit_beginning(), 0
        row: AuditRow | None = None
        for at, row in audit_rows(reader):
            if at != number + 1:
                yield _violation(row, _misplaced(number + 1, at))
            elif row.link != _link(link, at, row):
                what = f"row {at}, {row.action!r} by {row.by!r}, does not follow the row before"
                yield _violation(row, f"{what}: it was changed, or a row was removed, added or put elsewhere")
            yield from signatures.findings(at, row)
            yield from _against_heads(heads.pop(at, []), self.witness, at, row)
            link, number = row.link, max(at, number)
        yield from self._end(stored, number, link)
        for later in (head for left in heads.values() for head in left):
            yield _violation(None, f"it ends with row {number}, before {_named(later)}: it was cut")
        head = None if row is None else AuditHead.of(number, row)
        self.head = head if head is not None and head.is_signed() else None
        self._notes += signatures.notes()

    def _end(self, stored: AuditHeadRow | None, number: int, link: str) -> Iterator[Violation]:
        if stored is None:
            return
        if stored.count != number:
            yield _violation(None, f"its last row is {number}, and {stored.count} were recorded")
        elif stored.link != link:
            yield _violation(None, f"it recorded another link than that of its last row, {number}")


class _Signatures:
    """Whether each row is signed as it should be."""

    def __init__(self, keys: Collection[str] | None) -> None:
        self._keys = keys
        self._signed = self._unsigned = 0

    def findings(self, number: int, row: AuditRow) -> Iterator[Violation]:
        if not row.signed_by and not row.signature:
            self._unsigned += 1
            if self._keys is not None or self._signed:
                yield _violation(row, f"row {number} is not signed")
            return
        self._signed += 1
        if not AuditHead.of(number, row).is_signed():
            yield _violation(row, f"the signature of row {number} is not valid")
        elif self._keys is not None and row.signed_by not in self._keys:
            yield _violation(row, f"row {number} is signed by {row.signed_by[:_SHOWN]}, a key that was not given")

    def notes(self) -> Iterator[str]:
        if self._keys is None and self._signed:
            yield "the audit: no key was given, so anybody may have signed its rows (give the keys by --audit-key)"
        if self._keys is None and self._unsigned and not self._signed:
            yield "the audit: its rows are not signed, so whoever writes to the database can compute its links anew"


def audit_rows(reader: Reader) -> Iterator[tuple[int, AuditRow]]:
    """All rows of the audit with their numbers, in pages."""
    after = 0
    while page := reader.audit_of_all(after, _PAGE):
        yield from page
        after = max(number for number, _ in page)


def _misplaced(expected: int, found: int) -> str:
    if found < expected:
        return f"row {found} is stored twice"
    return f"row {expected} is missing" if found == expected + 1 else f"rows {expected} to {found - 1} are missing"


def _link(before: str, number: int, row: AuditRow) -> str:
    """The link that the row should have; empty where a value of it cannot be hashed."""
    try:
        return audit_link(before, number, row)
    except _UNREADABLE:
        return ""


def _against_heads(heads: list[AuditHead], witness: AuditWitness, number: int, row: AuditRow) -> Iterator[Violation]:
    for head in heads:
        if head.link != row.link:
            yield _violation(row, f"row {number} has another link than {_named(head)}: it was computed anew")
        if witness.keys is not None and head.key not in witness.keys:
            yield _violation(None, f"{_named(head)} is signed by {head.key[:_SHOWN]}, a key that was not given")


def _named(head: AuditHead) -> str:
    return f"the head of row {head.count} that was written down"


def _violation(row: AuditRow | None, what: str) -> Violation:
    """A violation in this row, or in the audit as a whole."""
    run = row.run if row is not None and isinstance(row.run, str) else ""
    return Violation("audit", printable(run), 0, printable(what))
