"""The tables of the SQL store: names, types, keys. The migrations build them; a test compares the two.

The keys enforce invariants: the line of checkpoints has no fork and no gap, a device counts once in a round and has one
live claim. The run's row assigns ``events.seq``, under its lock. Bodies are JSON as text (``bodies.py``), times are
Unix seconds in double precision, and ids sort by code point in every database.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeEngine

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def id_type() -> TypeEngine[str]:
    """Text compared byte by byte: the default of SQLite, the collation C of PostgreSQL."""
    return Text().with_variant(Text(collation="C"), "postgresql")


def _of_run() -> Column[str]:
    return Column("run", id_type(), ForeignKey("runs.run"), nullable=False)


def _link() -> Column[str]:
    """Of a row that is chained to the one before (``chain.py``)."""
    return Column("link", Text, nullable=False, server_default="")


runs = Table(
    "runs",
    metadata,
    Column("run", id_type(), primary_key=True),
    Column("name", Text, nullable=False),
    Column("plan", Text, nullable=False),
    Column("plan_digest", Text, nullable=False),
    Column("selection_seed", BigInteger, nullable=False),
    Column("init", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("snapshot_seq", BigInteger, nullable=False),
    Column("snapshot", Text),
    Column("refusals", BigInteger, nullable=False, server_default="0"),
    Column("roles", Text, nullable=False, server_default="{}"),
)

events = Table(
    "events",
    metadata,
    _of_run(),
    Column("seq", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    _link(),
    PrimaryKeyConstraint("run", "seq"),
    sqlite_with_rowid=False,
)

devices = Table(
    "devices",
    metadata,
    Column("device", id_type(), primary_key=True),
    Column("key_id", id_type()),
    Column("certificate", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("examples_cap", BigInteger, nullable=False),
    Column("enrolled_at", Double, nullable=False),
    Column("last_seen_at", Double),
    Column("left_at", Double),
    Column("facts", Text, nullable=False, server_default="{}"),
    UniqueConstraint("key_id"),
)

workers = Table(
    "workers",
    metadata,
    Column("worker", id_type(), primary_key=True),
    Column("key_id", id_type()),
    Column("certificate", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("last_seen_at", Double),
    Column("revoked_at", Double),
    UniqueConstraint("key_id"),
)

revocation_lists = Table(
    "revocation_lists",
    metadata,
    Column("authority", id_type(), primary_key=True),
    Column("counter", BigInteger, primary_key=True),
    Column("digest", id_type(), nullable=False),
    Column("next_update", BigInteger, nullable=False),
    Column("encoded", LargeBinary, nullable=False),
    UniqueConstraint("digest"),
)

authorities = Table(
    "authorities",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("authority", id_type(), nullable=False),
    Column("inside", Boolean, nullable=False),
    Column("since", Double, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key", id_type(), primary_key=True),
    Column("secret_hash", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
)

logins = Table(
    "logins",
    metadata,
    Column("login", id_type(), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("secret_hash", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("key", id_type()),
    Column("claims", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
)

waiting = Table(
    "waiting",
    metadata,
    Column("device", id_type(), ForeignKey("devices.device"), primary_key=True),
    Column("examples", BigInteger, nullable=False),
    Column("offer", Text, nullable=False),
    Column("since", Double, nullable=False),
    Column("expires", Double, nullable=False),
    Index(None, "expires"),
)

claims = Table(
    "claims",
    metadata,
    Column("device", id_type(), ForeignKey("devices.device"), primary_key=True),
    _of_run(),
    Column("round", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("until", Double, nullable=False),
    Index(None, "run", "round"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _of_run(),
    Column("version", Integer, nullable=False),
    Column("digest", id_type(), nullable=False),
    Column("parent_version", Integer),
    Column("round", Integer),
    Column("origin", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("optimizer", Text),
    Column("created_at", Double, nullable=False),
    PrimaryKeyConstraint("run", "version"),
    UniqueConstraint("run", "parent_version"),
    ForeignKeyConstraint(
        ["run", "parent_version"], ["checkpoints.run", "checkpoints.version"], name="fk_checkpoints_parent"
    ),
    Index(
        "uq_checkpoints_first",
        "run",
        unique=True,
        sqlite_where=text("parent_version IS NULL"),
        postgresql_where=text("parent_version IS NULL"),
    ),
    Index(None, "digest"),
)

contributions = Table(
    "contributions",
    metadata,
    _of_run(),
    Column("round", Integer, nullable=False),
    Column("device", id_type(), nullable=False),
    Column("digest", Text, nullable=False),
    Column("weight", BigInteger, nullable=False),
    Column("version", Integer, nullable=False),
    PrimaryKeyConstraint("run", "round", "device"),
    Index(None, "device"),
    sqlite_with_rowid=False,
)

rounds = Table(
    "rounds",
    metadata,
    _of_run(),
    Column("round", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("collecting_at", Double),
    Column("closed_at", Double),
    Column("body", Text, nullable=False),
    PrimaryKeyConstraint("run", "round"),
)

refusals = Table(
    "refusals",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    _of_run(),
    Column("round", Integer, nullable=False),
    Column("device", id_type(), nullable=False),
    Column("digest", Text),
    Column("kind", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Double, nullable=False),
    _link(),
    Index(None, "run", "round"),
    Index(None, "run", "number"),
    Index(None, "device"),
)

secure_marks = Table(
    "secure_marks",
    metadata,
    Column("tensors", id_type(), nullable=False),
    Column("device", id_type(), nullable=False),
    _of_run(),
    Column("round", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    PrimaryKeyConstraint("tensors", "device", "run"),
    Index(None, "run"),
    sqlite_with_rowid=False,
)

secure_messages = Table(
    "secure_messages",
    metadata,
    _of_run(),
    Column("digest", id_type(), nullable=False),
    Column("round", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run", "digest"),
)

audit = Table(
    "audit",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("run", id_type(), ForeignKey("run_names.run")),
    Column("at", Double, nullable=False),
    Column("by", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("detail", Text, nullable=False),
    _link(),
    Column("signed_by", Text, nullable=False, server_default=""),
    Column("signature", Text, nullable=False, server_default=""),
    Index(None, "run"),
)

audit_head = Table(
    "audit_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    Column("link", Text, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)
"""One row, which the migration inserts: its lock orders the rows of the audit."""

metrics = Table(
    "metrics",
    metadata,
    _of_run(),
    Column("version", Integer, nullable=False),
    Column("source", id_type(), nullable=False),
    Column("name", id_type(), nullable=False),
    Column("value", Double, nullable=False),
    Column("examples", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
    PrimaryKeyConstraint("run", "version", "source", "name"),
)

hours = Table(
    "hours",
    metadata,
    Column("hour", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("devices", BigInteger, nullable=False),
)

device_hours = Table(
    "device_hours",
    metadata,
    Column("device", id_type(), ForeignKey("devices.device"), primary_key=True),
    Column("hour", BigInteger, nullable=False),
    Column("seen", BigInteger, nullable=False),
)

replicas = Table(
    "replicas",
    metadata,
    Column("replica", id_type(), primary_key=True),
    Column("version", Text, nullable=False),
    Column("seen_at", Double, nullable=False),
)
