"""Adds the marks of devices that contribute to a model's tensors no more, in no run.

An older version of the coordinator, which would draw such devices again, does not start on this schema.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by code point in every database."""


def upgrade() -> None:
    op.create_table(
        "secure_marks",
        sa.Column("tensors", _ID, nullable=False),
        sa.Column("device", _ID, nullable=False),
        sa.Column("run", _ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_secure_marks_run")),
        sa.PrimaryKeyConstraint("tensors", "device", "run", name=op.f("pk_secure_marks")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_secure_marks_run"), "secure_marks", ["run"])
