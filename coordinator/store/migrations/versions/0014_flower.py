"""Adds Flower runs, and one table of the names of all runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by code point in every database."""


def _of_run(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["run"], ["flower_runs.run"], name=op.f(f"fk_{table}_run"))


def upgrade() -> None:
    op.create_table(
        "run_names",
        sa.Column("run", _ID, nullable=False),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_run_names")),
    )
    op.execute("INSERT INTO run_names (run) SELECT run FROM runs")
    with op.batch_alter_table("audit") as audit:
        audit.drop_constraint(op.f("fk_audit_run"), type_="foreignkey")
        audit.create_foreign_key(op.f("fk_audit_run"), "run_names", ["run"], ["run"])
        for column in ("link", "signed_by", "signature"):  # the same default; SQLite would write it otherwise
            audit.alter_column(column, server_default="")
    _runs_and_nodes()
    _messages()


def _runs_and_nodes() -> None:
    op.create_table(
        "flower_runs",
        sa.Column("run", _ID, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("app", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("max_reply", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("largest", sa.BigInteger(), nullable=False),
        sa.Column("messages", sa.BigInteger(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("replies", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.BigInteger(), nullable=False),
        sa.Column("latest_at", sa.Double(), nullable=False),
        sa.Column("dropped_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["run_names.run"], name=op.f("fk_flower_runs_run")),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_flower_runs")),
    )
    op.create_table(
        "flower_nodes",
        sa.Column("device", _ID, nullable=False),
        sa.Column("node", sa.BigInteger(), nullable=False),
        sa.Column("apps", sa.Text(), nullable=False),
        sa.Column("secure_only", sa.Boolean(), nullable=False),
        sa.Column("busy", sa.Text(), nullable=True),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.device"], name=op.f("fk_flower_nodes_device")),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_flower_nodes")),
        sa.UniqueConstraint("node", name=op.f("uq_flower_nodes_node")),
    )
    op.create_index(op.f("ix_flower_nodes_seen_at"), "flower_nodes", ["seen_at"])
    op.create_table(
        "flower_contents",
        sa.Column("run", _ID, nullable=False),
        sa.Column("digest", _ID, nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("stored_at", sa.Double(), nullable=False),
        _of_run("flower_contents"),
        sa.PrimaryKeyConstraint("run", "digest", name=op.f("pk_flower_contents")),
    )


def _messages() -> None:
    op.create_table(
        "flower_messages",
        sa.Column("run", _ID, nullable=False),
        sa.Column("message", _ID, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("node", sa.BigInteger(), nullable=False),
        sa.Column("device", _ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("content", _ID, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("delivered_at", sa.Double(), nullable=True),
        sa.Column("answered", sa.Boolean(), nullable=False),
        _of_run("flower_messages"),
        sa.PrimaryKeyConstraint("run", "message", name=op.f("pk_flower_messages")),
        sa.UniqueConstraint("run", "position", name=op.f("uq_flower_messages_run_position")),
    )
    for columns in (["run", "round"], ["run", "answered", "expires_at"], ["device", "answered"], ["run", "content"]):
        op.create_index(op.f(f"ix_flower_messages_{'_'.join(columns)}"), "flower_messages", columns)
    op.create_table(
        "flower_replies",
        sa.Column("run", _ID, nullable=False),
        sa.Column("message", _ID, nullable=False),
        sa.Column("content", _ID, nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "message"], ["flower_messages.run", "flower_messages.message"], name="fk_flower_replies_message"
        ),
        sa.PrimaryKeyConstraint("run", "message", name=op.f("pk_flower_replies")),
    )
    op.create_index(op.f("ix_flower_replies_run_content"), "flower_replies", ["run", "content"])
    op.create_table(
        "flower_rounds",
        sa.Column("run", _ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("messages", sa.BigInteger(), nullable=False),
        sa.Column("delivered", sa.BigInteger(), nullable=False),
        sa.Column("replies", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.BigInteger(), nullable=False),
        sa.Column("expired", sa.BigInteger(), nullable=False),
        sa.Column("bytes_in", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=True),
        _of_run("flower_rounds"),
        sa.PrimaryKeyConstraint("run", "round", name=op.f("pk_flower_rounds")),
    )
