"""Chains the rows of logs and refusals by hashes. ``chained_from`` marks the events that were there before: their links
were computed here, and show only what was changed since. The audit is chained by a later migration."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from coordinator.store import chain
from coordinator.store.rows import RefusalRow, RunRow

revision = "0004"
down_revision = "0003"

_CHAINED = ("events", "audit", "refusals")
_PAGE = 5000


def upgrade() -> None:
    for table in _CHAINED:
        op.add_column(table, sa.Column("link", sa.Text(), server_default="", nullable=False))
    for column in ("chained_from", "audits", "refusals"):
        op.add_column("runs", sa.Column(column, sa.BigInteger(), server_default="0", nullable=False))
    op.create_index(op.f("ix_refusals_run_number"), "refusals", ["run", "number"], unique=False)
    connection = op.get_bind()
    connection.execute(sa.text("UPDATE runs SET chained_from = seq"))
    columns = "run, name, plan_digest, init, origin, created_at, chained_from"
    runs = sa.text(f"SELECT {columns} FROM runs ORDER BY run")  # noqa: S608 - names of ours
    for run in connection.execute(runs).mappings().all():
        row = RunRow(plan={}, selection_seed=0, **run)
        _chain_events(connection, row.run, chain.log_beginning(row))
        _chain_refusals(connection, row.run)


def _chain_events(connection: sa.Connection, run: str, link: str) -> None:
    query = sa.text(
        "SELECT seq, at, kind, body FROM events WHERE run = :run AND seq > :after ORDER BY seq LIMIT :limit"
    )
    after = 0
    while page := connection.execute(query, {"run": run, "after": after, "limit": _PAGE}).all():
        changes: list[dict[str, Any]] = []
        for after, at, kind, body in page:
            link = chain.event_link(link, after, at, kind, body)
            changes.append({"run": run, "seq": after, "link": link})
        connection.execute(sa.text("UPDATE events SET link = :link WHERE run = :run AND seq = :seq"), changes)


def _chain_refusals(connection: sa.Connection, run: str) -> None:
    query = sa.text("SELECT * FROM refusals WHERE run = :run ORDER BY number")
    link, changes = chain.refusals_beginning(run), list[dict[str, Any]]()
    for place, found in enumerate(connection.execute(query, {"run": run}).mappings().all(), start=1):
        values = dict(found)
        number = values.pop("number")
        link = chain.refusal_link(link, place, RefusalRow(**values))
        changes.append({"number": number, "link": link})
    if changes:
        connection.execute(sa.text("UPDATE refusals SET link = :link WHERE number = :number"), changes)
    count = sa.text("UPDATE runs SET refusals = :count WHERE run = :run")
    connection.execute(count, {"count": len(changes), "run": run})
