"""Values of another kind than their column has: SQLite stores a text in a column of numbers, and a list where a body
shall be. The other checks compare values and compute with them, so they cannot read such rows. Where a value is of its
kind and another one than the log gives, ``in_bodies`` and ``difference`` say so.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache, partial
from typing import Any, get_args, get_origin, get_type_hints

from coordinator.store.declared import TABLES
from coordinator.store.port import DeviceRow, Reader
from coordinator.verify.violation import RunViolation

_PAGE, _ALL = 5000, 1 << 30
_SHOWN, _SHOWN_OF_TWO = 80, 60
"""Characters of a value; of each of two that differ."""
_DEEPEST = 100
"""Levels of a body that its values may be nested in. Ours have fewer than ten."""
UNREADABLE = (TypeError, AttributeError, ValueError, KeyError, OverflowError, RecursionError, struct.error)
"""What a check raises where it meets such a value."""


def every_device(reader: Reader) -> Iterator[DeviceRow]:
    """All registered devices, in pages."""
    after = ""
    while page := reader.devices(_PAGE, after):
        yield from page
        after = page[-1].device


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


ABSENT = object()


def in_bodies(name: str, gives: Any, has: Any) -> Iterator[str]:
    """The values in a body that differ: 1, 1.0 and true do."""
    if isinstance(gives, dict) and isinstance(has, dict):
        for key in sorted({*gives, *has}):
            yield from in_bodies(f"{name}.{key}", gives.get(key, ABSENT), has.get(key, ABSENT))
    elif ABSENT in (gives, has) or json.dumps(gives, sort_keys=True) != json.dumps(has, sort_keys=True):
        yield difference(name, gives, has)


def filled(has: Any, read: Any) -> Any:
    """A stored body with the fields that it leaves out. ``read``: what it is read as, written as JSON again."""
    if isinstance(has, dict) and isinstance(read, dict):
        return {**has, **{name: filled(has.get(name, value), value) for name, value in read.items()}}
    if isinstance(has, list) and isinstance(read, list) and len(has) == len(read):
        return [*map(filled, has, read)]
    return has


def difference(name: str, gives: object, has: object) -> str:
    return f"{name} is {_shown(has)}, and the log gives {_shown(gives)}"


def _shown(value: object) -> str:
    text = "absent" if value is ABSENT else repr(value)
    return text if len(text) <= _SHOWN_OF_TWO else text[:_SHOWN_OF_TWO] + "..."
