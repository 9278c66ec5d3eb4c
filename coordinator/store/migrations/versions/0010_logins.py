"""Adds the sessions of browsers, and the links that are exchanged for one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by code point in every database."""


def upgrade() -> None:
    op.create_table(
        "logins",
        sa.Column("login", _ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("key", _ID, nullable=True),
        sa.Column("claims", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("login", name=op.f("pk_logins")),
    )
