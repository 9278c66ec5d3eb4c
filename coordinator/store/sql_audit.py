"""Writes rows of the audit in a transaction of the SQL store.

Locks are taken in this order, so that no two transactions wait for each other::

    runs that the rows name -> the row of ``audit_head`` -> (insert) -> commit

The first is the lock that the foreign key would take at the insert, when the audit's is held already. On SQLite the one
writing transaction excludes all others. On PostgreSQL whoever inserts waits for the commit of whoever inserted before,
also on another replica. Only requests that are audited insert; check-ins and updates are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from client_sdk.identity import Signer
from coordinator.store import statements as sql
from coordinator.store.audit_chain import chain_audit
from coordinator.store.flower_statements import HOLD_RUN
from coordinator.store.port import StoreError
from coordinator.store.rows import AuditHeadRow, AuditRow
from coordinator.store.sqlite_connection import SqliteConnection

_COLUMNS = tuple(AuditRow.__dataclass_fields__)


def write_audit(connection: Connection | SqliteConnection, rows: Sequence[AuditRow], signer: Signer | None) -> None:
    """Numbers, chains, signs and inserts the rows. StoreError where a run that they name is missing, or the head."""
    if not rows:
        return
    for run in sorted({row.run for row in rows if row.run is not None}):
        if connection.execute(HOLD_RUN, {"run": run}).fetchone() is None:
            raise StoreError(f"The store has no run {run}.")
    found: Sequence[Any] | None = connection.execute(sql.LOCK_AUDIT, {}).fetchone()
    if found is None:
        raise StoreError("The store has no head of the audit: somebody has deleted it.")
    count, link = found
    chained, head = chain_audit(AuditHeadRow(count=count, link=link), rows, signer)
    values = [{"number": number, **{name: getattr(row, name) for name in _COLUMNS}} for number, row in chained]
    connection.execute(sql.INSERT_AUDIT, values)
    connection.execute(sql.SET_AUDIT_HEAD, {"count": head.count, "link": head.link})
