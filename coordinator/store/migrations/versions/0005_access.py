"""Adds the API keys of operators, and lets the audit have actions that belong to no run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by code point in every database."""


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key", _ID, nullable=False),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_api_keys")),
    )
    if op.get_bind().dialect.name == "sqlite":
        _build_audit_again()
    else:
        op.alter_column("audit", "run", existing_type=_ID, nullable=True)


def _build_audit_again() -> None:
    """SQLite cannot change a column: the rows move to a new table of the same name."""
    op.drop_index(op.f("ix_audit_run"), table_name="audit")
    op.rename_table("audit", "audit_before")
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("run", _ID, nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("link", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_audit_run")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit")),
    )
    op.execute(
        "INSERT INTO audit (number, run, at, by, action, detail, link) "
        "SELECT number, run, at, by, action, detail, link FROM audit_before"
    )
    op.drop_table("audit_before")
    op.create_index(op.f("ix_audit_run"), "audit", ["run"], unique=False)
