"""Alembic executes this file to migrate, in the transaction that ``migrate.py`` has opened."""

from __future__ import annotations

from alembic import context

from coordinator.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
