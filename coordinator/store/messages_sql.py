"""``messages.py`` of the SQL store: mixed into its reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Executable

from coordinator.store import message_statements as sql

_MOST = 500
"""Digests in one statement."""


class SqlMessageReads(ABC):
    """The MessageReader over ``_read``."""

    @abstractmethod
    def _read(self, statement: Executable, /, **parameters: object) -> Sequence[Sequence[Any]]:
        """All rows of the statement's result."""

    def messages(self, run: str, digests: Collection[str]) -> dict[str, bytes]:
        wanted = list(digests)
        parts = (wanted[first : first + _MOST] for first in range(0, len(wanted), _MOST))
        return {
            digest: _bytes(content)
            for part in parts
            for digest, content in self._read(sql.MESSAGES, run=run, digests=part)
        }

    def message_rounds(self, run: str) -> dict[str, int]:
        return {row[0]: row[1] for row in self._read(sql.MESSAGE_ROUNDS, run=run)}


def _bytes(stored: Any) -> bytes:
    """The content. SQLite also has columns of bytes with a text or a number in them, which somebody else has stored: no
    message has these bytes, as its digest shows."""
    if isinstance(stored, bytes | memoryview):
        return bytes(stored)
    return str(stored).encode("utf-8", "surrogateescape")
