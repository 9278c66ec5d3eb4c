"""Migrates a database to the schema that this code uses, and refuses databases that it cannot use.

The steps are alembic migrations inside the package (``migrations/``). All of them run in one transaction under the
database's lock: processes that start together migrate once, and a crash leaves the schema unchanged.
"""

from __future__ import annotations

from functools import cache
from typing import cast

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, inspect

from coordinator.store.driver_errors import translated
from coordinator.store.gateway import StoreError

_LOCK = 0x51_55_4F_52_41_54_45
"""PostgreSQL's advisory lock of migrations: "QUORATE"."""


def migrate(engine: Engine) -> None:
    """Migrates to the newest revision. StoreError when the database is newer than this code or of another program."""
    with translated(), engine.connect() as connection:
        if _current(connection) == newest():
            return
        connection.rollback()
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        elif engine.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        _refuse_foreign(connection)
        command.upgrade(_config(connection), "head")
        connection.commit()


@cache
def newest() -> str:
    """The revision that this code uses; the steps are read once in a process."""
    return cast("str", ScriptDirectory.from_config(_config()).get_current_head())


def revision(engine: Engine) -> str | None:
    """The revision of this database's schema, or None; nothing is changed."""
    with translated(), engine.connect() as connection:
        return _current(connection)


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "coordinator.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_foreign(connection: Connection) -> None:
    current = _current(connection)
    if current is None:
        tables = sorted(set(inspect(connection).get_table_names()) - {"alembic_version"})
        if tables:
            raise StoreError(
                f"The database has tables of another program ({', '.join(tables[:3])}): use a new database."
            )
        return
    try:
        ScriptDirectory.from_config(_config()).get_revision(current)
    except CommandError:
        raise StoreError(
            f"The database was written by a newer version of Quorate (its schema is {current}, this version's is "
            f"{newest()}): update Quorate."
        ) from None
