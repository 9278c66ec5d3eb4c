"""The first schema: the tables as the row classes declare them. It begins to stand still with the first release, which
writes it out here as alembic renders it: no migration may change after that (``docs/compatibility.md``)."""

from __future__ import annotations

from alembic import op

from coordinator.store import chain
from coordinator.store.tables import metadata, tables

revision = "0001"
down_revision = None


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
    op.bulk_insert(tables["audit_head"], [{"id": 1, "count": 0, "link": chain.audit_beginning()}])
