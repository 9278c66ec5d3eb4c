"""Tables in memory, and layers over them: what a transaction wrote, laid over what is committed.

A row is found by (group, key): an event by (run, seq), a contribution by ((run, round), device). The bottom layer
holds what is committed. A layer above never touches it until ``apply``, so rolling back is forgetting the layer, and
who reads the bottom sees nothing of it. This file knows nothing of the rows, of locks, or of what must be unique.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

G = TypeVar("G", bound=Hashable)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Layer(Generic[G, K, V]):
    """The rows of one table: without ``base`` the committed ones, with it a transaction's view."""

    __slots__ = ("_base", "_groups")

    def __init__(self, base: Layer[G, K, V] | None = None) -> None:
        self._base = base
        self._groups: dict[G, dict[K, V | None]] = {}

    def get(self, group: G, key: K) -> V | None:
        """The row, None where there is none."""
        rows = self._groups.get(group)
        if rows is not None and key in rows:
            return rows[key]
        return None if self._base is None else self._base.get(group, key)

    def rows(self, group: G) -> Mapping[K, V]:
        """A copy of a group's rows."""
        below = {} if self._base is None else dict(self._base.rows(group))
        for key, row in self._groups.get(group, {}).items():
            if row is None:
                below.pop(key, None)
            else:
                below[key] = row
        return below

    def count(self, group: G) -> int:
        """How many rows a group has, where rows are only ever added under new keys."""
        return len(self._groups.get(group, ())) + (0 if self._base is None else self._base.count(group))

    def put(self, group: G, key: K, row: V) -> None:
        self._groups.setdefault(group, {})[key] = row

    def drop(self, group: G, key: K) -> None:
        if self._base is None:
            self._groups.get(group, {}).pop(key, None)
        else:
            self._groups.setdefault(group, {})[key] = None

    def apply(self) -> None:
        """Writes this layer's changes into its base. The caller holds whatever keeps readers out."""
        if self._base is None:
            return
        for group, changes in self._groups.items():
            for key, row in changes.items():
                if row is None:
                    self._base.drop(group, key)
                else:
                    self._base.put(group, key, row)
