"""What a row class declares of its table: both databases, in SQL and in memory, are made from it.

::

    @table("claims", key="device", parents={"device": "devices", "run": "runs"}, indexes=["run round"])
    @dataclass(frozen=True, slots=True, kw_only=True)
    class ClaimRow: ...

A field is a column of its name. Its type is the column's: str, int, float, bool, bytes, ``Json`` (stored as text); with
``| None`` it may be NULL. A default of the field is one of the column, except None. Several columns are written in one
string, with spaces between them.

Every store turns a JSON body into text and back in the same way (``to_text``), so that the memory store and the SQL
store behave alike: tuples come back as lists, keys as strings, no object is shared with the caller, and NaN and
infinity, which are not JSON, are refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property
from graphlib import TopologicalSorter
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from coordinator.store.gateway import StoreError

T = TypeVar("T")
Json = dict[str, object]
NUMBER = "number"
"""The column of this name, where it is the key, is counted up by the database for rows that have 0 in it."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column."""

    name: str
    type: type
    """str, int, float, bool, bytes; dict: JSON."""
    optional: bool
    default: Any
    """Of the column; None: it has none."""


@dataclass(frozen=True, eq=False)
class Declared:
    """A table."""

    row: type
    name: str
    fields: tuple[Field, ...]
    key: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...]
    line: tuple[str, ...]
    """Columns that are unique together, also where the last is NULL: a line that neither forks nor begins twice."""
    indexes: tuple[tuple[str, ...], ...]
    parents: Mapping[tuple[str, ...], str]
    """Columns -> the table whose key they are: a row in which none of them is NULL names one that exists there."""
    clustered: bool
    """Whether SQLite keeps the rows in the order of their key: for small rows that are read together."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @cached_property
    def bodies(self) -> tuple[str, ...]:
        """The columns that are JSON."""
        return tuple(field.name for field in self.fields if field.type is dict)

    @cached_property
    def counted(self) -> bool:
        """Whether the database numbers the rows."""
        return self.key == (NUMBER,)


TABLES: dict[str, Declared] = {}
"""Every table, by name."""
_of_row: dict[type, Declared] = {}


def table(
    name: str,
    *,
    key: str,
    unique: Collection[str] = (),
    line: str = "",
    indexes: Collection[str] = (),
    parents: Mapping[str, str] | None = None,
    clustered: bool = False,
) -> Callable[[type[T]], type[T]]:
    """Declares the table of a row class."""

    def declare(row: type[T]) -> type[T]:
        hints = get_type_hints(row)
        TABLES[name] = _of_row[row] = Declared(
            row=row,
            name=name,
            fields=tuple(_field(one, hints[one.name]) for one in fields(row)),  # type: ignore[arg-type]
            key=tuple(key.split()),
            unique=tuple(tuple(columns.split()) for columns in unique),
            line=tuple(line.split()),
            indexes=tuple(tuple(columns.split()) for columns in indexes),
            parents={tuple(columns.split()): parent for columns, parent in (parents or {}).items()},
            clustered=clustered,
        )
        return row

    return declare


def declared(row: type) -> Declared:
    """The table of a row class."""
    return _of_row[row]


@cache
def parents_first() -> tuple[Declared, ...]:
    """All tables, each after those whose rows its own rows name."""
    parents = {name: {*about.parents.values()} - {name} for name, about in TABLES.items()}
    return tuple(TABLES[name] for name in TopologicalSorter(parents).static_order())


def _field(one: Any, hint: Any) -> Field:
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if NoneType in get_args(hint) else [hint]
    default = one.default if one.default is not MISSING else None
    if one.default_factory is not MISSING:
        default = "{}"
    return Field(one.name, get_origin(kinds[0]) or kinds[0], kinds != [hint], default)


# ------------------------------------------------------------ JSON bodies as text


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


def to_text(body: Json) -> str:
    """The body as compact JSON. StoreError when it cannot be written as JSON."""
    try:
        return _encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"A body that is not JSON can't be stored: {error}.") from None


def from_text(text: str) -> Json:
    """The body that ``to_text`` wrote. ValueError where the text is no JSON object, or nested too deeply to be read."""
    try:
        body = json.loads(text)
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    if not isinstance(body, dict):
        raise ValueError(f"the body is no object, but a {type(body).__name__}")
    return body


def beginning_of(body: Json) -> str:
    """How the text of a body begins that has these values first, and others after them."""
    return f"{to_text(body)[:-1]},"


def finite(value: float, name: str) -> float:
    """The value. StoreError when it is NaN or infinite, which databases treat differently."""
    if not math.isfinite(value):
        raise StoreError(f"The value of {name!r} is {value}; only finite numbers can be stored.")
    return value
