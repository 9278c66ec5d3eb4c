"""Adds datacenter workers. Their leases are in the states and logs of the runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by code point in every database."""


def upgrade() -> None:
    op.create_table(
        "workers",
        sa.Column("worker", _ID, nullable=False),
        sa.Column("token_hash", _ID, nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("worker", name=op.f("pk_workers")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_workers_token_hash")),
    )
