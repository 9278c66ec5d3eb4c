"""``messages.py`` of the memory store: mixed into its reads and into its transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager

from coordinator.store.memory_tables import Tables
from coordinator.store.messages import MessageRow


class MemoryMessageReads:
    """The MessageReader over ``tables``. ``guard`` excludes commits during a read."""

    def __init__(self, tables: Tables, guard: AbstractContextManager[bool]) -> None:
        self._t = tables
        self._guard = guard

    def messages(self, run: str, digests: Collection[str]) -> dict[str, bytes]:
        with self._guard:
            found = {digest: self._t.messages.get(run, digest) for digest in digests}
        return {digest: row.content for digest, row in found.items() if row is not None}

    def message_rounds(self, run: str) -> dict[str, int]:
        with self._guard:
            return {digest: row.round for digest, row in sorted(self._t.messages.rows(run).items())}


class MemoryMessageWrites(MemoryMessageReads, ABC):
    """The MessageWriter over ``tables``."""

    def insert_messages(self, rows: Iterable[MessageRow]) -> None:
        for row in rows:
            self._run(row.run)
            if self._t.messages.get(row.run, row.digest) is None:
                self._t.messages.put(row.run, row.digest, row)

    def drop_messages(self, run: str, round: int) -> None:
        for digest, row in self._t.messages.rows(run).items():
            if row.round == round:
                self._t.messages.drop(run, digest)

    @abstractmethod
    def _run(self, run: str) -> object:
        """The run's record. StoreError when there is no such run."""
