"""Older revocation lists stay beside the newest one, each found by its digest, until they are out of date."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by code point in every database."""
_NEXT_UPDATE = slice(33, 41)
"""Where a list has its next update: after kind (1), authority (16), counter (8) and issue (8)."""


def upgrade() -> None:
    lists = op.create_table(
        "revocation_lists",
        sa.Column("authority", _ID, nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("digest", _ID, nullable=False),
        sa.Column("next_update", sa.BigInteger(), nullable=False),
        sa.Column("encoded", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("authority", "counter", name=op.f("pk_revocation_lists")),
        sa.UniqueConstraint("digest", name=op.f("uq_revocation_lists_digest")),
    )
    for authority, counter, stored in op.get_bind().exec_driver_sql(
        "SELECT authority, counter, encoded FROM revocations"
    ):
        encoded = bytes(stored)
        row = {"authority": authority, "counter": counter, "encoded": encoded}
        row |= {"digest": hashlib.sha256(encoded).hexdigest()}
        row |= {"next_update": int.from_bytes(encoded[_NEXT_UPDATE], "big")}
        op.get_bind().execute(lists.insert().values(row))
    op.drop_table("revocations")
