"""Values of another kind than their column has: SQLite stores a text in a column of numbers, and a list where a body
shall be. The other checks compare values and compute with them, so they cannot read such rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache, partial
from typing import Any, get_args, get_origin, get_type_hints

from coordinator.store.declared import TABLES
from coordinator.store.port import Reader
from coordinator.verify.violation import RunViolation

_ALL = 1 << 30
_SHOWN = 80
_DEEPEST = 100
"""Levels of a body that its values may be nested in. Ours have fewer than ten."""
UNREADABLE = (TypeError, AttributeError, ValueError, KeyError, OverflowError, RecursionError, struct.error)
"""What a check raises where it meets such a value."""


def latest_round(reader: Reader, run: str) -> int:
    """The number of the run's newest round; 0 where it has none."""
    return max((number for number in reader.rows_by_round(run)["rounds"] if isinstance(number, int)), default=0)


def wrong_kinds(reader: Reader, run: str) -> Iterator[RunViolation]:
    """The fields of a run's rows, and of all devices and workers, that hold a value of another kind."""
    latest = latest_round(reader, run)
    tables: dict[str, Callable[[], Sequence[Any]]] = {
        about.name: partial(reader.of_run, about.row, run) for about in TABLES.values() if "run" in about.names
    }
    tables |= {"devices": lambda: reader.devices(_ALL), "workers": reader.workers}
    for table, read in tables.items():
        try:
            rows = read()
        except ValueError:
            yield RunViolation("rows", latest, f"a row of {table} cannot be read")
            continue
        for row in rows:
            named = getattr(row, "round", None)
            where = named if isinstance(named, int) else latest
            for name, value in fields_of_wrong_kind(row):
                yield RunViolation("rows", where, f"{table}.{name} holds {shown(value)}")


def fields_of_wrong_kind(row: Any) -> Iterator[tuple[str, Any]]:
    """(field, value) of the fields of a row whose value is not of the field's kind, is no UTF-8, or is nested too
    deeply."""
    of: type = type(row)
    kinds = _kinds(of)
    for field in fields(row):
        value = getattr(row, field.name)
        if not isinstance(value, kinds[field.name]) or not is_text(value) or _is_too_deep(value):
            yield field.name, value


def shown(value: object) -> str:
    """A value of another kind, for people."""
    if not is_text(value):
        return f"{repr(value)[:_SHOWN]}, which is no UTF-8"
    if _is_too_deep(value):
        return f"values in more than {_DEEPEST} levels"
    return f"{repr(value)[:_SHOWN]}, a {type(value).__name__}"


def is_text(value: object) -> bool:
    """False for a text that is no UTF-8, which a database takes in no query."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [item for inside in level for item in _inside(inside)]
        if not level:
            return False
    return True


def _inside(value: object) -> Iterable[object]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case _:
            return ()


@cache
def _kinds(row: type) -> dict[str, tuple[type, ...]]:
    """The types that each field of a class of rows allows. A whole number is a time or a value too."""
    found = {}
    for name, hint in get_type_hints(row).items():
        parts = [hint] if isinstance(hint, type) or get_origin(hint) is dict else get_args(hint)
        types = tuple(get_origin(part) or part for part in parts)
        found[name] = (*types, int) if float in types else types
    return found
