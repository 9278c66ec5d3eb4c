"""A proof that whoever names a checkpoint has its bytes: a second digest, which nobody computes from the first one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from client_sdk.protocol.names import Digest

_DOMAIN = b"quorate: the sender has this checkpoint\n"


class Possession:
    """Takes the bytes of a checkpoint's file in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(_DOMAIN)

    def add(self, block: bytes) -> None:
        self._hash.update(block)

    @property
    def proof(self) -> Digest:
        """SHA-256 over a domain and the bytes."""
        return self._hash.hexdigest()


def possession(blocks: Iterable[bytes]) -> Digest:
    """The proof for a file of these bytes."""
    found = Possession()
    for block in blocks:
        found.add(block)
    return found.proof
