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
    *,
    hidden: bool = False,
) -> Page[V]:
    """The next ``limit`` of the rows that are shown; fewer, with a cursor, where so many were looked at. ``read``: rows
    after a cursor, at most so many; ``show``: None where a row is not shown. ``hidden``: nobody is told the cursor of a
    row that is not shown, so rows are looked at until the page is full."""
    found, looked, size, last = list[V](), 0, limit + 1, after
    while rows := read(after, size):
        for row in rows:
            view = show(row)
            if view is not None and len(found) == limit:
                return Page(found, last if hidden else after)
            after = str(cursor(row))
            if view is not None:
                found.append(view)
                last = after
        looked += len(rows)
        if len(rows) < size:
            break
        if looked >= LOOKED_AT and not hidden:
            return Page(found, after)
    return Page(found)
