"""Adds the short messages of secure rounds, while their round lasts.

Messages that an older version has stored stay files until their round has ended. An older version, which would look for
new ones among its files, does not start on this schema.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by code point in every database."""


def upgrade() -> None:
    op.create_table(
        "secure_messages",
        sa.Column("run", _ID, nullable=False),
        sa.Column("digest", _ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_secure_messages_run")),
        sa.PrimaryKeyConstraint("run", "digest", name=op.f("pk_secure_messages")),
    )
