"""Pages of lists that show some of the rows of a table, in the order of a cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from client_sdk.protocol.names import Page

LOOKED_AT = 10_000
"""Rows that one request looks at, about, however few of them it shows."""
R = TypeVar("R")
V = TypeVar("V")


def page_of(
    read: Callable[[str, int], Sequence[R]],
    cursor: Callable[[R], object],
    show: Callable[[R], V | None],
    after: str,
    limit: int,
) -> Page[V]:
    """The next ``limit`` of the rows that are shown; fewer, with a cursor, where so many were looked at. ``read``: rows
    after a cursor, at most so many; ``show``: None where a row is not shown."""
    found, looked, size = list[V](), 0, limit + 1
    while rows := read(after, size):
        for row in rows:
            view = show(row)
            if view is not None and len(found) == limit:
                return Page(found, after)
            found += [] if view is None else [view]
            after = str(cursor(row))
        looked += len(rows)
        if len(rows) < size:
            break
        if looked >= LOOKED_AT:
            return Page(found, after)
    return Page(found)
