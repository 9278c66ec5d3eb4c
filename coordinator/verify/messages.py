"""Short messages of secure rounds, which are rows while their round lasts: which are stored although the log does not
name them, and their contents beside the blobs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from io import BytesIO
from typing import BinaryIO

from coordinator.blobs.port import is_digest
from coordinator.folding.refold import Readable, short
from coordinator.store.port import Reader
from coordinator.verify.secure import LoggedSecure
from coordinator.verify.violation import RunViolation


class WithMessages:
    """Readable blobs, and a run's short messages as if they were blobs. ``newest``: reads of committed data."""

    def __init__(self, blobs: Readable, newest: Reader, run: str) -> None:
        self._blobs, self._newest, self._run = blobs, newest, run

    def has(self, digest: str) -> bool:
        return bool(self._newest.messages(self._run, [digest])) or self._blobs.has(digest)

    def open(self, digest: str) -> BinaryIO:
        content = self._newest.messages(self._run, [digest]).get(digest)
        return self._blobs.open(digest) if content is None else BytesIO(content)


def against_messages(
    stored: Mapping[str, int], logged: Mapping[int, LoggedSecure], kept: Collection[int]
) -> Iterator[RunViolation]:
    """Findings for rows of messages. ``stored``: digest -> round; ``kept``: the rounds whose messages may be there."""
    for digest, number in stored.items():
        account = logged.get(number)
        named = isinstance(digest, str) and is_digest(digest)  # SQLite also has bytes in a column of texts
        if account is None or not named or bytes.fromhex(digest) not in account.blobs:
            yield RunViolation("secure", number, f"a message is stored that the log does not name: {short(digest)}")
        elif number not in kept:
            yield RunViolation("secure", number, f"a message of the round is left: {short(digest)}")
