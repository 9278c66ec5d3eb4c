"""A run's messages as if they were blobs: short updates, and the short messages of secure rounds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from io import BytesIO
from typing import Any, BinaryIO

from coordinator.blobs.port import damaged
from coordinator.folding.refold import Readable


class WithMessages:
    """Blobs, and messages beside them. ``messages``: the contents of those of these digests that are stored."""

    def __init__(self, blobs: Readable, messages: Callable[[Collection[str]], Mapping[str, bytes]]) -> None:
        self._blobs, self._messages = blobs, messages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)

    def has(self, digest: str) -> bool:
        """Whether there is such a message or blob."""
        return self._blobs.has(digest) or bool(self._messages([digest]))

    def open(self, digest: str) -> BinaryIO:
        """The bytes, which have this digest: see ``Blobs.open``."""
        content = None if self._blobs.has(digest) else self._messages([digest]).get(digest)
        if content is None:
            return self._blobs.open(digest)
        if hashlib.sha256(content).hexdigest() != digest:
            raise damaged(digest)
        return BytesIO(content)
