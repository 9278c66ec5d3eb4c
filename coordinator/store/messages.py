"""The part of the Store port that holds the short messages of secure rounds, while their round lasts.

A message is written in the transaction of the event that accepts it, and deleted in that of the event that says so: the
log and the messages never differ, whenever a process dies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One message as it is stored. Its ``repr`` does not show the content, which may hold shares."""

    run: str
    round: int
    digest: str
    """SHA-256 of the content, by which the log names it."""
    content: bytes = field(repr=False)


class MessageReader(Protocol):
    def messages(self, run: str, digests: Collection[str]) -> dict[str, bytes]:
        """The contents of the run's messages with these digests, by digest, without those that are not stored."""
        ...

    def message_rounds(self, run: str) -> dict[str, int]:
        """The digest of every message of the run that is stored -> its round."""
        ...


class MessageWriter(Protocol):
    def insert_messages(self, rows: Iterable[MessageRow]) -> None:
        """One whose digest the run has already stays as it is."""
        ...

    def drop_messages(self, run: str, round: int) -> None:
        """Deletes all messages of this round."""
        ...
