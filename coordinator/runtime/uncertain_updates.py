"""Raw updates that count nowhere: deleted at once where they were refused, later where nobody knows yet.

A transaction that fails may have been durable nevertheless, when only the database's acknowledgement was lost. So the
bytes of an update whose transaction failed stay until the run's newest state shows whether it counts.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from coordinator.blobs import BlobError
from coordinator.engine.state import RunState
from coordinator.runtime.core import Core
from coordinator.store.port import StoreError, Transaction

_Update = tuple[str, int, str]
"""(run, round, digest)."""


class UncertainUpdates:
    """Safe from any thread. A process that dies forgets its list: the next one sweeps all blobs at its start."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._waiting: set[_Update] = set()

    def add(self, run: str, round: int, digest: str) -> None:
        """Nobody knows yet whether this update counts."""
        with self._lock:
            self._waiting.add((run, round, digest))

    def settle(self) -> None:
        """Deletes those that do not count. One that cannot be looked up now is tried again at the next call."""
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for update in sorted(waiting):
            with suppress(StoreError, BlobError):
                self.drop_unless_counted(*update)

    def drop_unless_counted(self, run: str, round: int, digest: str) -> None:
        """Deletes the bytes of a refused update, unless the same bytes are acknowledged under another request and
        stored.

        Both steps run under the run's lock, so that nobody acknowledges the bytes in between. Where the store or the
        disk fails, ``settle`` tries it again.
        """

        def drop(tx: Transaction, state: RunState, at: float) -> None:
            last = round if state.plan.buffered is None else state.round_number
            """In a buffered run the update may count in any round from its own on."""
            rows = [tx.round(run, number) for number in range(round, last + 1)]
            now = 0 if state.round is None else state.round.number
            if any(row is not None and row.status == "open" and row.round != now for row in rows):
                self.add(run, round, digest)  # a round ends in this transaction: who counts in it is not written yet
                return
            members = {} if state.round is None else state.round.members
            acknowledged: set[str | None] = {member.digest for member in members.values()}
            forgotten = state.round_number - (state.phase != "idle") - state.plan.retention.rounds
            for number in range(max(round, forgotten + 1), last + 1):
                acknowledged |= {row.digest for row in tx.contributions(run, number)}
                acknowledged |= {row.digest for row in tx.refusals(run, number) if row.kind == "abandoned"}
            if digest not in acknowledged:
                self._core.blobs.delete(digest)

        try:
            self._core.log(run).submit(drop)
        except (StoreError, BlobError):
            self.add(run, round, digest)
            raise
