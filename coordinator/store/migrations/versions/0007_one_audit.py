"""Makes one chain of the audit, over the rows of all runs and of none, with a place for signatures.

The rows that are there are numbered again from 1 without a gap, and chained again: until now each run had a chain of
its own, and rows of no run had none. ``chained_from`` marks the last of them: their links show what was changed since.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from coordinator.store import chain
from coordinator.store.rows import AuditRow

revision = "0007"
down_revision = "0006"

_PAGE = 5000


def upgrade() -> None:
    for column in ("signed_by", "signature"):
        op.add_column("audit", sa.Column(column, sa.Text(), server_default="", nullable=False))
    op.drop_column("runs", "audits")
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("link", sa.Text(), nullable=False),
        sa.Column("chained_from", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name="one_row"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    connection = op.get_bind()
    count = connection.execute(sa.text("SELECT count(*) FROM audit")).scalar_one()
    link = _chain_again(connection, chain.audit_beginning(count))
    connection.execute(head.insert(), {"id": 1, "count": count, "link": link, "chained_from": count})


def _chain_again(connection: sa.Connection, link: str) -> str:
    """Numbers and chains all rows in their order. Returns the last link."""
    query = sa.text(
        "SELECT number, run, at, by, action, detail FROM audit WHERE number > :after ORDER BY number LIMIT :limit"
    )
    change = sa.text("UPDATE audit SET number = :place, link = :link WHERE number = :number")
    after = place = 0
    while page := connection.execute(query, {"after": after, "limit": _PAGE}).all():
        changes: list[dict[str, Any]] = []
        for after, run, at, by, action, detail in page:
            place += 1
            row = AuditRow(run=run, at=at, by=by, action=action, detail=detail)
            link = chain.audit_link(link, place, row)
            # No other row has this number: all before it were given lower ones.
            changes.append({"number": after, "place": place, "link": link})
        connection.execute(change, changes)
    return link
