"""Differences of checkpoints, for devices that have an earlier one: made once for all that ask, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from client_sdk.tensors import TensorError
from client_sdk.tensors.checkpoint_delta import encode
from coordinator.blobs import Blobs, Damaged, Missing

Pair = tuple[str, str]
"""Digests of the base and of the checkpoint."""
_PAIRS = 256
"""Most pairs that are remembered, also those without a difference."""


class Deltas:
    """The differences that one process has in memory: the newest ones, ``most`` bytes together. ``work`` runs a
    function in a thread."""

    def __init__(self, work: Callable[..., Awaitable[Any]], blobs: Blobs, most: int) -> None:
        self._work, self._blobs, self._most = work, blobs, most
        self._one_at_a_time = asyncio.Semaphore(1)
        self._made: dict[Pair, asyncio.Future[bytes]] = {}

    def __contains__(self, pair: Pair) -> bool:
        return pair in self._made

    async def get(self, pair: Pair) -> bytes:
        """The difference; empty where the checkpoint is to be sent whole: there is none that is shorter."""
        found = self._made.get(pair)
        if found is None:
            found = self._made[pair] = asyncio.ensure_future(self._begin(pair))
        return await asyncio.shield(found)

    async def _begin(self, pair: Pair) -> bytes:
        try:
            async with self._one_at_a_time:
                delta: bytes = await self._work(self._make, *pair)
        except BaseException:
            del self._made[pair]
            raise
        done = [(one, len(made.result())) for one, made in self._made.items() if made.done() and not made.cancelled()]
        size = len(delta) + sum(length for _, length in done)
        for oldest, length in done:
            if size > self._most or len(self._made) > _PAIRS:
                size -= length
                del self._made[oldest]
        return delta

    def _make(self, base: str, digest: str) -> bytes:
        parts: list[bytes] = []
        try:
            left = self._blobs.size(digest)
            if left > self._most:
                return b""
            with self._blobs.open(base) as old, self._blobs.open(digest) as new:
                for part in encode(old, new):
                    left -= len(part)
                    if left <= 0:
                        return b""
                    parts.append(part)
        except (TensorError, Missing, Damaged, OSError):
            return b""
        return b"".join(parts)
