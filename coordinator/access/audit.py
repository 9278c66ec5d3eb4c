"""The audit: what operators asked for, who they were, and who was refused. Never a secret.

The store chains the rows of all runs and of none, and signs each (``coordinator.store.audit_chain``).

A request is recorded before it is carried out, so nothing that an operator changed is missing. A request that then is
refused has a second row, which says so, and one that created something has a second row with its id.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from coordinator.store.port import AuditRow, Store

LIMIT = 500
"""Longest text of a row, in characters."""
_QUIET_S = 60.0
"""Seconds in which further refusals of the same kind are only counted: whoever reaches the port can be refused, and
must not fill the database."""
_MOST = 1024
"""Kinds of refusals that are counted at a time."""


class Audit:
    """Writes rows of the audit. ``now``: Unix seconds."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._lock = threading.Lock()
        self._quiet: dict[tuple[str, str], tuple[float, int]] = {}

    def record(self, by: str, action: str, detail: str = "", *, run: str | None = None) -> None:
        """Makes one row durable. A run that the store does not have is named in the detail."""
        if run is not None and self._store.run(run) is None:
            run, detail = None, f"run={run} {detail}".strip()
        row = AuditRow(run=run, at=self._now(), by=_line(by), action=_line(action), detail=_line(detail))
        with self._store.transaction(run) as tx:
            tx.insert_audit([row])

    def begin(self, key: str) -> None:
        """Records the public key with which this process signs, unless the newest row is signed by it. So the audit
        says since when a key signs, and rows of an older version are signed over at once."""
        head = self._store.audit_head()
        newest = self._store.audit_of_all(head.count - 1, 1) if head is not None else []
        if not newest or newest[0][1].signed_by != key:
            self.record("quorate serve", "audit.key", f"key={key}")

    def refused(self, by: str, kind: str, detail: str) -> None:
        """Records a request that was refused for who asked: the first of its kind at once, then one row a minute with
        the number of those in between."""
        now, key = self._now(), (by, kind)
        with self._lock:
            since, more = self._quiet.get(key, (-_QUIET_S, 0))
            if 0 <= now - since < _QUIET_S:
                self._quiet[key] = since, more + 1
                return
            if len(self._quiet) >= _MOST:
                self._quiet.clear()
            self._quiet[key] = now, 0
        self.record(by, f"refused.{kind}", f"{detail} (and {more} more)" if more else detail)


def _line(text: str) -> str:
    """The text on one line, without control characters: subjects are texts of an issuer."""
    text = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text[:LIMIT])
    return text[:LIMIT]
