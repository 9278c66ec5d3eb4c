"""In which of the last 24 hours each device was seen."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by code point in every database."""


def upgrade() -> None:
    op.create_table(
        "device_hours",
        sa.Column("device", _ID, nullable=False),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.device"], name=op.f("fk_device_hours_device")),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_device_hours")),
    )
