"""The store as one replica sees it: the real one, through which faults strike.

::

    transaction   locked (StoreError, nothing happens)         before it begins
                  torn   (StoreError, nothing happens)         at any statement inside
                  full   (StoreError, nothing happens)         before it commits
                  crash, pause                                 before it begins, before and after it commits
                  lost acknowledgement (StoreError, done)      after it commits
    read          StoreError

Knows the Store port; has never heard of runs or rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from coordinator.store.port import Store, StoreError, Transaction

if TYPE_CHECKING:
    from simulation.explorer.replica import Replica


class FaultyStore:
    """Behaves as ``store`` where no fault strikes."""

    def __init__(self, store: Store, replica: Replica) -> None:
        self._store = store
        self._replica = replica

    def __getattr__(self, name: str) -> Any:
        if self._replica.strikes("store-read", name):
            raise StoreError("The disk reported an error while the database was read (explorer).")
        return getattr(self._store, name)

    @contextmanager
    def transaction(self, run: str | None = None) -> Iterator[Transaction]:
        replica = self._replica
        replica.point("transaction")
        if replica.strikes("store-locked", "transaction"):
            raise StoreError("The database was locked by another process for too long (explorer).")
        with self._store.transaction(run) as inner:
            torn = replica.strikes("store-torn", "statement")
            transaction = cast("Transaction", _Torn(inner, replica)) if torn else inner
            yield transaction
            if isinstance(transaction, _Torn):
                transaction.require_valid()
            if replica.strikes("store-full", "commit"):
                raise StoreError("The database could not be written: the disk is full (explorer).")
            replica.die_at("before commit")
        replica.point("commit")
        if replica.strikes("store-lost-ack", "commit"):
            raise StoreError("The connection was lost while the transaction was committed (explorer).")

    def close(self) -> None:
        """Keeps the store open: other replicas use it."""


class _Torn:
    """A transaction one of whose statements fails, after which nothing of it can be committed."""

    def __init__(self, inner: Transaction, replica: Replica) -> None:
        self._inner = inner
        self._left = replica.world.chance.below("torn-after", 6)
        self._void = False

    def __getattr__(self, name: str) -> Any:
        if self._left == 0 and not self._void:
            self._void = True
            raise StoreError("The disk reported an error while the database was written (explorer).")
        self._left -= 1
        return getattr(self._inner, name)

    def require_valid(self) -> None:
        if self._void:
            raise StoreError("An error inside this transaction was ignored, so nothing of it was stored.")
