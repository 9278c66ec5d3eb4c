"""The tables of Flower runs, and the names of runs of both kinds. Their conventions are those of ``tables.py``.

The keys enforce invariants: a name belongs to one run of either kind, a message has one place and one reply.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    true,
)

from coordinator.store.tables import id_type, metadata


def _of_run() -> Column[str]:
    return Column("run", id_type(), ForeignKey("flower_runs.run"), nullable=False)


run_names = Table("run_names", metadata, Column("run", id_type(), primary_key=True))
"""Every run has a row here, whichever its kind, so two of one name cannot be created at the same moment."""

flower_runs = Table(
    "flower_runs",
    metadata,
    Column("run", id_type(), ForeignKey("run_names.run"), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("app", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("max_reply", BigInteger),
    Column("created_at", Double, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("ended_at", Double),
    Column("state", Text),
    Column("largest", BigInteger, nullable=False),
    Column("messages", BigInteger, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("replies", BigInteger, nullable=False),
    Column("errors", BigInteger, nullable=False),
    Column("latest_at", Double, nullable=False),
    Column("dropped_at", Double),
)

flower_nodes = Table(
    "flower_nodes",
    metadata,
    Column("device", id_type(), ForeignKey("devices.device"), primary_key=True),
    Column("node", BigInteger, nullable=False),
    Column("apps", Text, nullable=False),
    Column("secure_only", Boolean, nullable=False),
    Column("busy", Text),
    Column("seen_at", Double, nullable=False),
    UniqueConstraint("node"),
    Index(None, "seen_at"),
)

flower_contents = Table(
    "flower_contents",
    metadata,
    _of_run(),
    Column("digest", id_type(), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("stored_at", Double, nullable=False),
    PrimaryKeyConstraint("run", "digest"),
)

flower_messages = Table(
    "flower_messages",
    metadata,
    _of_run(),
    Column("message", id_type(), nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("round", Integer, nullable=False),
    Column("group_id", Text, nullable=False),
    Column("node", BigInteger, nullable=False),
    Column("device", id_type(), nullable=False),
    Column("kind", Text, nullable=False),
    Column("content", id_type(), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("delivered_at", Double),
    Column("answered", Boolean, nullable=False),
    Column("grouped", Boolean, nullable=False, server_default=true()),
    PrimaryKeyConstraint("run", "message"),
    UniqueConstraint("run", "position"),
    Index(None, "run", "round"),
    Index(None, "run", "answered", "expires_at"),
    Index(None, "device", "answered"),
    Index(None, "run", "content"),
)

flower_replies = Table(
    "flower_replies",
    metadata,
    Column("run", id_type(), nullable=False),
    Column("message", id_type(), nullable=False),
    Column("content", id_type()),
    Column("bytes", BigInteger, nullable=False),
    Column("code", Integer),
    Column("reason", Text, nullable=False),
    Column("at", Double, nullable=False),
    PrimaryKeyConstraint("run", "message"),
    ForeignKeyConstraint(
        ["run", "message"], ["flower_messages.run", "flower_messages.message"], name="fk_flower_replies_message"
    ),
    Index(None, "run", "content"),
)

flower_rounds = Table(
    "flower_rounds",
    metadata,
    _of_run(),
    Column("round", Integer, nullable=False),
    Column("group_id", Text, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("messages", BigInteger, nullable=False),
    Column("delivered", BigInteger, nullable=False),
    Column("replies", BigInteger, nullable=False),
    Column("errors", BigInteger, nullable=False),
    Column("expired", BigInteger, nullable=False),
    Column("bytes_in", BigInteger, nullable=False),
    Column("last_at", Double),
    PrimaryKeyConstraint("run", "round"),
)
