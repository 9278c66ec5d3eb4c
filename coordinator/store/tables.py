"""The tables of the SQL store, made from the row classes. The migrations build them; a test compares the two.

Texts sort by code point in every database, numbers have 64 bits, times are in double precision.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlalchemy.types import TypeEngine

import coordinator.store.flower_rows
import coordinator.store.rows  # noqa: F401 - both declare tables
from coordinator.store.declared import NUMBER, TABLES, Declared, Field

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)
_TEXT = Text().with_variant(Text(collation="C"), "postgresql")
_TYPES: dict[type, TypeEngine[Any]] = {
    str: _TEXT,
    dict: _TEXT,
    int: BigInteger(),
    float: Double(),
    bool: Boolean(),
    bytes: LargeBinary(),
}


def _column(field: Field, table: Declared) -> Column[Any]:
    alone = field.type is int and table.key == (field.name,)  # SQLite has one kind of integer that it counts up
    default: Any = str(field.default) if isinstance(field.default, str | int) else None
    if isinstance(field.default, bool):
        default = true() if field.default else false()
    return Column(
        field.name,
        _TYPES[field.type].with_variant(Integer(), "sqlite") if alone else _TYPES[field.type],
        nullable=field.optional,
        server_default=None if field.name in table.key else default,
        autoincrement=alone and field.name == NUMBER,
    )


def _table(declared: Declared) -> Table:
    table = Table(
        declared.name,
        metadata,
        *(_column(field, declared) for field in declared.fields),
        PrimaryKeyConstraint(*declared.key),
        *(UniqueConstraint(*columns) for columns in (*declared.unique, declared.line) if columns),
        *(
            ForeignKeyConstraint(
                columns, [f"{parent}.{name}" for name in TABLES[parent].key], name=f"fk_{declared.name}_{columns[-1]}"
            )
            for columns, parent in declared.parents.items()
        ),
        *(Index(None, *columns) for columns in declared.indexes),
        sqlite_with_rowid=not declared.clustered,
    )
    if declared.line:
        *columns, last = declared.line
        first = text(f"{last} IS NULL")
        table.append_constraint(
            Index(f"uq_{declared.name}_first", *columns, unique=True, sqlite_where=first, postgresql_where=first)
        )
    return table


tables: dict[str, Table] = {name: _table(declared) for name, declared in TABLES.items()}
tables["audit_head"].append_constraint(CheckConstraint("id = 1", name="one_row"))
