"""What of Flower runs is deleted, and when.

::

    during a run     a content that is an hour old, and that no message without an answer, no reply and no state has.
                     Replies stay: a ServerApp that is started again needs them
    a day after it   all contents; the rows of messages and replies stay
    after a month    the node ids of devices that were not seen since

A blob goes after its row, and only where no run of either kind has it. What a crash leaves in between is deleted by the
sweep at the next start (``runtime.sweeping``).
"""

from __future__ import annotations

from coordinator.runtime.flower.flower_core import FlowerCore
from coordinator.runtime.sweeping import MARGIN_S, delete_unnamed
from coordinator.store.port import Transaction

UNNEEDED_S = 3600.0
ENDED_S = 86_400.0
AWAY_S = 30 * 86_400.0
EVERY_S = 600.0
_PAGE = 1000


class FlowerRetention:
    def __init__(self, flower: FlowerCore) -> None:
        self._flower = flower
        self._core = flower.core
        self._swept_at = flower.now
        self._dropped: set[str] = set()
        """Digests whose rows this process has dropped, and whose blobs may be there still."""

    def tick(self) -> None:
        """Sweeps, where the last time was long ago."""
        now = self._flower.now
        if not 0 <= now - self._swept_at < EVERY_S:
            self._swept_at = now
            self.sweep()

    def sweep(self) -> None:
        now = self._flower.now
        for row in self._core.store.flower_runs():
            if row.dropped_at is not None:
                continue
            if row.ended_at is not None and row.ended_at + ENDED_S <= now:
                self._drop_run(row.run, now)
            else:
                self._drop_unneeded(row.run, now)
        with self._core.store.transaction() as tx:
            tx.drop_flower_nodes(now - AWAY_S)
        self._delete_blobs(now)

    def _drop_run(self, run: str, now: float) -> None:
        with self._core.store.transaction(run) as tx:
            if self._flower.run(run, tx).dropped_at is not None:
                return
            self._dropped |= _contents(tx, run)
            tx.drop_all_flower_contents(run, now)

    def _drop_unneeded(self, run: str, now: float) -> None:
        if not self._core.store.flower_unneeded(run, now - UNNEEDED_S):
            return
        with self._core.store.transaction(run) as tx:
            digests = tx.flower_unneeded(run, now - UNNEEDED_S)
            tx.drop_flower_contents(run, digests)
        self._dropped |= set(digests)

    def _delete_blobs(self, now: float) -> None:
        """Deletes blobs whose rows are gone; those that were stored again lately wait for the next time."""
        if self._dropped:
            old = self._dropped & set(self._core.blobs.stored_before(now - MARGIN_S))
            delete_unnamed(self._core, sorted(old))
            self._dropped = {digest for digest in self._dropped - old if self._core.blobs.has(digest)}


def _contents(tx: Transaction, run: str) -> set[str]:
    found: set[str] = set()
    after = ""
    while page := tx.flower_contents(run, after, _PAGE):
        found |= {content.digest for content in page}
        after = page[-1].digest
    return found
