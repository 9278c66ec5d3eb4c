"""What people see of the fleet: how often each device took part, devices seen by hour, and the processes that serve."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by code point in every database."""


def upgrade() -> None:
    op.create_index(op.f("ix_contributions_device"), "contributions", ["device"])
    op.create_index(op.f("ix_refusals_device"), "refusals", ["device"])
    op.create_table(
        "hours",
        sa.Column("hour", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("devices", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hour", name=op.f("pk_hours")),
    )
    op.create_table(
        "replicas",
        sa.Column("replica", _ID, nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("replica", name=op.f("pk_replicas")),
    )
