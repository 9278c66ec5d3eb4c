"""The audit: what operators asked for, who they were, and who was refused. Never a secret.

The store chains the rows of all runs and of none, and signs each (``coordinator.store.chain``).

A request is recorded before it is carried out, so nothing that an operator changed is missing. A request that then is
refused has a second row, which says so, and one that created something has a second row with its id. A device's
registration has that row alone, in the transaction that registers it.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.access.quiet import QuietCounter, with_more
from coordinator.store.port import AuditRow, Store

LIMIT = 500
"""Longest text of a row, in characters."""


class Audit:
    """Writes rows of the audit. ``now``: Unix seconds."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._refusals = QuietCounter()

    def record(self, by: str, action: str, detail: str = "", *, run: str | None = None) -> None:
        """Makes one row durable. A run that the store does not have is named in the detail."""
        if run is not None and self._store.run(run) is None and self._store.flower_run(run) is None:
            run, detail = None, f"run={run} {detail}".strip()
        with self._store.transaction(run) as tx:
            tx.insert_audit([self.row(by, action, detail, run=run)])

    def row(self, by: str, action: str, detail: str, *, run: str | None = None) -> AuditRow:
        """A row for a transaction that also makes what the row is about."""
        return AuditRow(run=run, at=self._now(), by=_line(by), action=_line(action), detail=_line(detail))

    def begin(self, key: str) -> None:
        """Records the public key with which this process signs, unless the newest row is signed by it. So the audit
        says since when a key signs, and this row's signature covers those of other keys before it."""
        head = self._store.audit_head()
        newest = self._store.audit_of_all(head.count - 1, 1) if head is not None else []
        if not newest or newest[0][1].signed_by != key:
            self.record("quorate serve", "audit.key", f"key={key}")

    def refused(self, by: str, kind: str, detail: str) -> None:
        """Records a request that was refused for who asked: the first of its kind at once, then one row a minute with
        the number of those in between. Whoever reaches the port can be refused, and must not fill the database."""
        more = self._refusals.more((by, kind), self._now())
        if more is not None:
            self.record(by, f"refused.{kind}", with_more(detail, more))


def _line(text: str) -> str:
    """The text on one line, without control characters: subjects are texts of an issuer."""
    text = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text[:LIMIT])
    return text[:LIMIT]
