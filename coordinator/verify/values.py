"""Two values of one field, compared and shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

ABSENT = object()
_SHOWN = 60


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
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
