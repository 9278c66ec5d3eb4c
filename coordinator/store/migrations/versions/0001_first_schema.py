"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.store import chain

revision = "0001"
down_revision = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by code point in every database."""
_COUNTED = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""A key that the database counts up."""


def upgrade() -> None:
    _devices_and_operators()
    _runs()
    _audit()
    _flower()


def _devices_and_operators() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key", _TEXT, nullable=False),
        sa.Column("secret_hash", _TEXT, nullable=False),
        sa.Column("role", _TEXT, nullable=False),
        sa.Column("scope", _TEXT, nullable=False),
        sa.Column("label", _TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", _TEXT, nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_api_keys")),
    )
    op.create_table(
        "authorities",
        sa.Column("number", _COUNTED, nullable=False),
        sa.Column("authority", _TEXT, nullable=False),
        sa.Column("inside", sa.Boolean(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_authorities")),
    )
    op.create_table(
        "devices",
        sa.Column("device", _TEXT, nullable=False),
        sa.Column("key_id", _TEXT, nullable=True),
        sa.Column("certificate", _TEXT, nullable=False),
        sa.Column("label", _TEXT, nullable=False),
        sa.Column("examples_cap", sa.BigInteger(), nullable=False),
        sa.Column("enrolled_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=True),
        sa.Column("left_at", sa.Double(), nullable=True),
        sa.Column("facts", _TEXT, server_default="{}", nullable=False),
        sa.Column("node", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_devices")),
        sa.UniqueConstraint("key_id", name=op.f("uq_devices_key_id")),
        sa.UniqueConstraint("node", name=op.f("uq_devices_node")),
    )
    op.create_table(
        "privacy_ledgers",
        sa.Column("ledger", _TEXT, nullable=False),
        sa.Column("epsilon", sa.Double(), nullable=False),
        sa.Column("delta", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("ledger", name=op.f("pk_privacy_ledgers")),
    )
    op.create_table(
        "privacy_allowances",
        sa.Column("ledger", _TEXT, nullable=False),
        sa.Column("other", _TEXT, nullable=False),
        sa.Column("because", _TEXT, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("ledger", "other", name=op.f("pk_privacy_allowances")),
    )
    op.create_table(
        "hours",
        sa.Column("hour", _COUNTED, autoincrement=False, nullable=False),
        sa.Column("devices", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hour", name=op.f("pk_hours")),
    )
    op.create_table(
        "logins",
        sa.Column("login", _TEXT, nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("secret_hash", _TEXT, nullable=False),
        sa.Column("who", _TEXT, nullable=False),
        sa.Column("by", _TEXT, nullable=False),
        sa.Column("key", _TEXT, nullable=True),
        sa.Column("claims", _TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("login", name=op.f("pk_logins")),
    )
    op.create_table(
        "replicas",
        sa.Column("replica", _TEXT, nullable=False),
        sa.Column("version", _TEXT, nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("replica", name=op.f("pk_replicas")),
    )
    op.create_table(
        "revocation_lists",
        sa.Column("authority", _TEXT, nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("digest", _TEXT, nullable=False),
        sa.Column("next_update", sa.BigInteger(), nullable=False),
        sa.Column("encoded", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("authority", "counter", name=op.f("pk_revocation_lists")),
        sa.UniqueConstraint("digest", name=op.f("uq_revocation_lists_digest")),
    )
    op.create_table(
        "workers",
        sa.Column("worker", _TEXT, nullable=False),
        sa.Column("key_id", _TEXT, nullable=True),
        sa.Column("certificate", _TEXT, nullable=False),
        sa.Column("label", _TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("worker", name=op.f("pk_workers")),
        sa.UniqueConstraint("key_id", name=op.f("uq_workers_key_id")),
    )
    op.create_table(
        "device_hours",
        sa.Column("device", _TEXT, nullable=False),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.device"], name=op.f("fk_device_hours_device")),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_device_hours")),
    )


def _runs() -> None:
    op.create_table(
        "run_names", sa.Column("run", _TEXT, nullable=False), sa.PrimaryKeyConstraint("run", name=op.f("pk_run_names"))
    )
    op.create_table(
        "runs",
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("plan", _TEXT, nullable=False),
        sa.Column("plan_digest", _TEXT, nullable=False),
        sa.Column("selection_seed", sa.BigInteger(), nullable=False),
        sa.Column("init", _TEXT, nullable=False),
        sa.Column("origin", _TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("snapshot_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("snapshot", _TEXT, nullable=True),
        sa.Column("refusals", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("roles", _TEXT, server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_runs")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("digest", _TEXT, nullable=False),
        sa.Column("parent_version", sa.BigInteger(), nullable=True),
        sa.Column("round", sa.BigInteger(), nullable=True),
        sa.Column("origin", _TEXT, nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("named_tensors", _TEXT, server_default="{}", nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "parent_version"], ["checkpoints.run", "checkpoints.version"], name="fk_checkpoints_parent_version"
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
        sa.Column("device", _TEXT, nullable=False),
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.device"], name=op.f("fk_claims_device")),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_claims_run")),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_claims")),
    )
    op.create_index(op.f("ix_claims_run_round"), "claims", ["run", "round"], unique=False)
    op.create_table(
        "contributions",
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("device", _TEXT, nullable=False),
        sa.Column("digest", _TEXT, nullable=False),
        sa.Column("weight", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_contributions_run")),
        sa.PrimaryKeyConstraint("run", "round", "device", name=op.f("pk_contributions")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_contributions_device"), "contributions", ["device"], unique=False)
    op.create_table(
        "events",
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("body", _TEXT, nullable=False),
        sa.Column("link", _TEXT, server_default="", nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_events_run")),
        sa.PrimaryKeyConstraint("run", "seq", name=op.f("pk_events")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metrics",
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("source", _TEXT, nullable=False),
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("examples", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_metrics_run")),
        sa.PrimaryKeyConstraint("run", "version", "source", "name", name=op.f("pk_metrics")),
    )
    op.create_table(
        "refusals",
        sa.Column("number", _COUNTED, nullable=False),
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("device", _TEXT, nullable=False),
        sa.Column("digest", _TEXT, nullable=True),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("reason", _TEXT, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("link", _TEXT, server_default="", nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_refusals_run")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_refusals")),
    )
    op.create_index(op.f("ix_refusals_device"), "refusals", ["device"], unique=False)
    op.create_index(op.f("ix_refusals_run_number"), "refusals", ["run", "number"], unique=False)
    op.create_index(op.f("ix_refusals_run_round"), "refusals", ["run", "round"], unique=False)
    op.create_table(
        "rounds",
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("status", _TEXT, nullable=False),
        sa.Column("reason", _TEXT, nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("collecting_at", sa.Double(), nullable=True),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("body", _TEXT, server_default="{}", nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_rounds_run")),
        sa.PrimaryKeyConstraint("run", "round", name=op.f("pk_rounds")),
    )
    op.create_table(
        "privacy_debits",
        sa.Column("ledger", _TEXT, nullable=False),
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("counted", _TEXT, nullable=False),
        sa.Column("rho", sa.Double(), nullable=False),
        sa.Column("devices", sa.BigInteger(), nullable=False),
        sa.Column("most", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_privacy_debits_run")),
        sa.PrimaryKeyConstraint("ledger", "run", "round", "counted", name=op.f("pk_privacy_debits")),
    )
    op.create_index(op.f("ix_privacy_debits_run"), "privacy_debits", ["run"], unique=False)
    op.create_table(
        "privacy_spending",
        sa.Column("ledger", _TEXT, nullable=False),
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("device", _TEXT, nullable=False),
        sa.Column("rho", sa.Double(), nullable=False),
        sa.Column("times", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_privacy_spending_run")),
        sa.PrimaryKeyConstraint("ledger", "run", "device", name=op.f("pk_privacy_spending")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_privacy_spending_device"), "privacy_spending", ["device"], unique=False)
    op.create_index(op.f("ix_privacy_spending_run"), "privacy_spending", ["run"], unique=False)
    op.create_table(
        "secure_marks",
        sa.Column("tensors", _TEXT, nullable=False),
        sa.Column("device", _TEXT, nullable=False),
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_secure_marks_run")),
        sa.PrimaryKeyConstraint("tensors", "device", "run", name=op.f("pk_secure_marks")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_secure_marks_run"), "secure_marks", ["run"], unique=False)
    op.create_table(
        "messages",
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("digest", _TEXT, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_messages_run")),
        sa.PrimaryKeyConstraint("run", "digest", name=op.f("pk_messages")),
    )
    op.create_index(op.f("ix_messages_run_round"), "messages", ["run", "round"], unique=False)
    op.create_table(
        "waiting",
        sa.Column("device", _TEXT, nullable=False),
        sa.Column("examples", sa.BigInteger(), nullable=False),
        sa.Column("offer", _TEXT, nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.device"], name=op.f("fk_waiting_device")),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_waiting")),
    )
    op.create_index(op.f("ix_waiting_expires"), "waiting", ["expires"], unique=False)
    op.create_table(
        "pool_changes",
        sa.Column("number", _COUNTED, nullable=False),
        sa.Column("device", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_pool_changes")),
    )


def _audit() -> None:
    head = op.create_table(
        "audit_head",
        sa.Column("id", _COUNTED, autoincrement=False, nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("link", _TEXT, nullable=False),
        sa.CheckConstraint("id = 1", name="one_row"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    op.create_table(
        "audit",
        sa.Column("number", _COUNTED, nullable=False),
        sa.Column("run", _TEXT, nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", _TEXT, nullable=False),
        sa.Column("action", _TEXT, nullable=False),
        sa.Column("detail", _TEXT, nullable=False),
        sa.Column("link", _TEXT, server_default="", nullable=False),
        sa.Column("signed_by", _TEXT, server_default="", nullable=False),
        sa.Column("signature", _TEXT, server_default="", nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run_names.run"], name=op.f("fk_audit_run")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_run"), "audit", ["run"], unique=False)
    op.bulk_insert(head, [{"id": 1, "count": 0, "link": chain.audit_beginning()}])


def _flower() -> None:
    op.create_table(
        "flower_runs",
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("app", _TEXT, nullable=False),
        sa.Column("version", _TEXT, nullable=False),
        sa.Column("digest", _TEXT, nullable=False),
        sa.Column("config", _TEXT, nullable=False),
        sa.Column("max_reply", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("status", _TEXT, server_default="running", nullable=False),
        sa.Column("reason", _TEXT, server_default="", nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("state", _TEXT, nullable=True),
        sa.Column("largest", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("messages", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("rounds", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("replies", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("errors", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("latest_at", sa.Double(), nullable=False),
        sa.Column("dropped_at", sa.Double(), nullable=True),
        sa.Column("seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("link", _TEXT, server_default="", nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run_names.run"], name=op.f("fk_flower_runs_run")),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_flower_runs")),
    )
    op.create_index(op.f("ix_flower_runs_status"), "flower_runs", ["status"], unique=False)
    op.create_table(
        "flower_contents",
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("digest", _TEXT, nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("stored_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["flower_runs.run"], name=op.f("fk_flower_contents_run")),
        sa.PrimaryKeyConstraint("run", "digest", name=op.f("pk_flower_contents")),
    )
    op.create_table(
        "flower_messages",
        sa.Column("run", _TEXT, nullable=False),
        sa.Column("message", _TEXT, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("group_id", _TEXT, nullable=False),
        sa.Column("node", sa.BigInteger(), nullable=False),
        sa.Column("device", _TEXT, nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("content", _TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("delivered_at", sa.Double(), nullable=True),
        sa.Column("grouped", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("link", _TEXT, server_default="", nullable=False),
        sa.Column("replied_at", sa.Double(), nullable=True),
        sa.Column("reply", _TEXT, nullable=True),
        sa.Column("reply_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("code", sa.BigInteger(), nullable=True),
        sa.Column("reason", _TEXT, server_default="", nullable=False),
        sa.Column("reply_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("reply_link", _TEXT, server_default="", nullable=False),
        sa.ForeignKeyConstraint(["run"], ["flower_runs.run"], name=op.f("fk_flower_messages_run")),
        sa.PrimaryKeyConstraint("run", "message", name=op.f("pk_flower_messages")),
        sa.UniqueConstraint("run", "position", name=op.f("uq_flower_messages_run_position")),
    )
    op.create_index(op.f("ix_flower_messages_run_content"), "flower_messages", ["run", "content"], unique=False)
    op.create_index(
        op.f("ix_flower_messages_run_device_replied_at"),
        "flower_messages",
        ["run", "device", "replied_at"],
        unique=False,
    )
    op.create_index(
        op.f("ix_flower_messages_run_replied_at_expires_at"),
        "flower_messages",
        ["run", "replied_at", "expires_at"],
        unique=False,
    )
    op.create_index(op.f("ix_flower_messages_run_reply"), "flower_messages", ["run", "reply"], unique=False)
    op.create_index(
        op.f("ix_flower_messages_run_round_group_id"), "flower_messages", ["run", "round", "group_id"], unique=False
    )
