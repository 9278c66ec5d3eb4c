"""Devices and workers have certificates in place of tokens. Adds revocation lists, and which authority was trusted.

Rows of before keep their ids, labels and times. They have no key until the device is registered by a certificate; a
simulation's device, which never had a token, keeps its mark: a key id that no certificate belongs to.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text that sorts by code point in every database."""


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _build_again()
    else:
        _change()
    op.create_table(
        "revocations",
        sa.Column("authority", _ID, nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("encoded", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("authority", name=op.f("pk_revocations")),
    )
    op.create_table(
        "authorities",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("authority", _ID, nullable=False),
        sa.Column("inside", sa.Boolean(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_authorities")),
    )


def _change() -> None:
    for table in ("devices", "workers"):
        op.add_column(table, sa.Column("key_id", _ID, nullable=True))
        op.add_column(table, sa.Column("certificate", sa.Text(), nullable=False, server_default=""))
        op.alter_column(table, "certificate", server_default=None)
    op.add_column("devices", sa.Column("left_at", sa.Double(), nullable=True))
    op.execute("UPDATE devices SET key_id = device WHERE public_key = token_hash")
    op.drop_index(op.f("ix_devices_token_hash"), table_name="devices")
    op.drop_constraint(op.f("uq_devices_public_key"), "devices")
    op.drop_constraint(op.f("uq_workers_token_hash"), "workers")
    op.drop_column("devices", "public_key")
    op.drop_column("devices", "token_hash")
    op.drop_column("workers", "token_hash")
    op.create_unique_constraint(op.f("uq_devices_key_id"), "devices", ["key_id"])
    op.create_unique_constraint(op.f("uq_workers_key_id"), "workers", ["key_id"])


def _build_again() -> None:
    """SQLite cannot drop a unique column: the rows move to new tables. Rows that refer to devices wait meanwhile."""
    referring = ("waiting", "claims")
    for table in referring:
        op.execute(f"CREATE TABLE {table}_before AS SELECT * FROM {table}")  # noqa: S608 - names of ours
        op.execute(f"DELETE FROM {table}")  # noqa: S608 - names of ours
    op.create_table(
        "devices_new",
        sa.Column("device", _ID, nullable=False),
        sa.Column("key_id", _ID, nullable=True),
        sa.Column("certificate", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("examples_cap", sa.BigInteger(), nullable=False),
        sa.Column("enrolled_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=True),
        sa.Column("left_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_devices")),
        sa.UniqueConstraint("key_id", name=op.f("uq_devices_key_id")),
    )
    op.execute(
        "INSERT INTO devices_new (device, key_id, certificate, label, examples_cap, enrolled_at, last_seen_at) "
        "SELECT device, CASE WHEN public_key = token_hash THEN device END, '', label, examples_cap, enrolled_at, "
        "last_seen_at FROM devices"
    )
    op.create_table(
        "workers_new",
        sa.Column("worker", _ID, nullable=False),
        sa.Column("key_id", _ID, nullable=True),
        sa.Column("certificate", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("worker", name=op.f("pk_workers")),
        sa.UniqueConstraint("key_id", name=op.f("uq_workers_key_id")),
    )
    op.execute(
        "INSERT INTO workers_new (worker, certificate, label, created_at, last_seen_at, revoked_at) "
        "SELECT worker, '', label, created_at, last_seen_at, revoked_at FROM workers"
    )
    for table in ("devices", "workers"):
        op.drop_table(table)
        op.rename_table(f"{table}_new", table)
    for table in referring:
        op.execute(f"INSERT INTO {table} SELECT * FROM {table}_before")  # noqa: S608 - names of ours
        op.drop_table(f"{table}_before")
