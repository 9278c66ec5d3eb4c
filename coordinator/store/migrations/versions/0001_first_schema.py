"""The first schema: runs with their logs and checkpoints, devices, the pool and the claims."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by code point in every database."""


def upgrade() -> None:
    op.create_table(
        "devices",
        sa.Column("device", _ID, nullable=False),
        sa.Column("public_key", _ID, nullable=False),
        sa.Column("token_hash", _ID, nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("examples_cap", sa.BigInteger(), nullable=False),
        sa.Column("enrolled_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_devices")),
        sa.UniqueConstraint("public_key", name=op.f("uq_devices_public_key")),
    )
    op.create_index(op.f("ix_devices_token_hash"), "devices", ["token_hash"], unique=False)
    op.create_table(
        "runs",
        sa.Column("run", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("plan_digest", sa.Text(), nullable=False),
        sa.Column("selection_seed", sa.BigInteger(), nullable=False),
        sa.Column("init", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("snapshot_seq", sa.BigInteger(), nullable=False),
        sa.Column("snapshot", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_runs")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("run", _ID, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", _ID, nullable=False),
        sa.Column("parent_version", sa.Integer(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("optimizer", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "parent_version"], ["checkpoints.run", "checkpoints.version"], name="fk_checkpoints_parent"
        ),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_checkpoints_run")),
        sa.PrimaryKeyConstraint("run", "version", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("run", "parent_version", name=op.f("uq_checkpoints_run_parent_version")),
    )
    op.create_index(op.f("ix_checkpoints_digest"), "checkpoints", ["digest"], unique=False)
    op.create_index(
        "uq_checkpoints_first",
        "checkpoints",
        ["run"],
        unique=True,
        sqlite_where=sa.text("parent_version IS NULL"),
        postgresql_where=sa.text("parent_version IS NULL"),
    )
    op.create_table(
        "claims",
        sa.Column("device", _ID, nullable=False),
        sa.Column("run", _ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.device"], name=op.f("fk_claims_device")),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_claims_run")),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_claims")),
    )
    op.create_index(op.f("ix_claims_run_round"), "claims", ["run", "round"], unique=False)
    op.create_table(
        "contributions",
        sa.Column("run", _ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("device", _ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("weight", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_contributions_run")),
        sa.PrimaryKeyConstraint("run", "round", "device", name=op.f("pk_contributions")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "events",
        sa.Column("run", _ID, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_events_run")),
        sa.PrimaryKeyConstraint("run", "seq", name=op.f("pk_events")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metrics",
        sa.Column("run", _ID, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("source", _ID, nullable=False),
        sa.Column("name", _ID, nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("examples", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_metrics_run")),
        sa.PrimaryKeyConstraint("run", "version", "source", "name", name=op.f("pk_metrics")),
    )
    op.create_table(
        "refusals",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run", _ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("device", _ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_refusals_run")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_refusals")),
    )
    op.create_index(op.f("ix_refusals_run_round"), "refusals", ["run", "round"], unique=False)
    op.create_table(
        "rounds",
        sa.Column("run", _ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("collecting_at", sa.Double(), nullable=True),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_rounds_run")),
        sa.PrimaryKeyConstraint("run", "round", name=op.f("pk_rounds")),
    )
    op.create_table(
        "waiting",
        sa.Column("device", _ID, nullable=False),
        sa.Column("examples", sa.BigInteger(), nullable=False),
        sa.Column("offer", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.device"], name=op.f("fk_waiting_device")),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_waiting")),
    )
    op.create_index(op.f("ix_waiting_expires"), "waiting", ["expires"], unique=False)
