"""The contents of messages and replies: stored once under their digest, and who may read them."""

from __future__ import annotations

from client_sdk.protocol.problems import problem
from coordinator.blobs import Spool
from coordinator.runtime.flower.flower_core import FlowerCore
from coordinator.store.flower_rows import FlowerContentRow


class Contents:
    def __init__(self, flower: FlowerCore) -> None:
        self._flower = flower
        self._core = flower.core

    def limit(self, run: str) -> int:
        """The longest accepted content of a ServerApp in bytes. ProblemError where the run takes none."""
        self._flower.running(run)
        return self._core.settings.max_checkpoint_bytes

    def put(self, run: str, spool: Spool, digest: str) -> None:
        """Stores a content of the ServerApp. Its bytes have the digest."""
        size = spool.size
        spool.commit(digest)
        with self._core.store.transaction(run) as tx:
            self._flower.running(run, tx)
            if not self._core.blobs.has(digest):  # as contents without use were dropped just now
                raise problem("busy", "the content's bytes were removed again: send them once more", retry_after_s=1)
            tx.put_flower_content(FlowerContentRow(run=run, digest=digest, bytes=size, stored_at=self._flower.now))

    def require(self, run: str, digest: str, device: str | None) -> None:
        """ProblemError *unknown-content* unless the run has this content, and the caller may have it. ``device``: it
        may read those of its own messages; None: an operator asks, for whom the run is in scope."""
        store = self._core.store
        self._flower.run(run)
        there = store.flower_content(run, digest) is not None
        if not there or (device is not None and not store.flower_addressed(run, device, digest)):
            whose = "for this device" if device is not None else "any more, or never had it"
            raise problem("unknown-content", f"Flower run {run} has no content {digest} {whose}")
