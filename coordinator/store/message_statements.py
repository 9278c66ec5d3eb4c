"""The statements of ``messages.py``, built once for SQLite and PostgreSQL."""

from __future__ import annotations

from sqlalchemy import Insert, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from coordinator.store.tables import secure_messages

_of_run = secure_messages.c.run == bindparam("run")
MESSAGES = select(secure_messages.c.digest, secure_messages.c.content).where(
    _of_run, secure_messages.c.digest.in_(bindparam("digests", expanding=True))
)
MESSAGE_ROUNDS = (
    select(secure_messages.c.digest, secure_messages.c.round).where(_of_run).order_by(secure_messages.c.digest)
)
DROP_MESSAGES = delete(secure_messages).where(
    secure_messages.c.run == bindparam("at_run"), secure_messages.c.round == bindparam("at_round")
)


def insert_messages(dialect: str) -> Insert:
    """Leaves a row that is there as it is."""
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return insert(secure_messages).on_conflict_do_nothing()
