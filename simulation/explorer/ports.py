"""The store of one replica: the real one, with faults.

::

    transaction   locked (StoreError, nothing happens)         before it begins
                  torn   (StoreError, nothing happens)         at any statement inside
                  full   (StoreError, nothing happens)         before it commits
                  crash, pause                                 before it begins, before and after it commits
                  lost acknowledgement (StoreError, done)      after it commits
    read          StoreError
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from coordinator.store.port import Json, Store, StoreError, Transaction
from simulation.explorer.faults import Broken
from simulation.explorer.process import Process


class FaultyStore:
    """Behaves like ``store`` where no fault strikes."""

    def __init__(self, store: Store, replica: Process) -> None:
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
        replica.watch.written = True
        with self._writing(), self._store.transaction(run) as inner:
            torn = replica.strikes("store-torn", "statement")
            transaction = cast("Transaction", _Torn(inner, replica)) if torn else inner
            fenced = Fenced(replica, inner) if run is not None else None
            yield transaction
            if isinstance(transaction, _Torn):
                transaction.require_valid()
            if replica.strikes("store-full", "commit"):
                raise StoreError("The database could not be written: the disk is full (explorer).")
            replica.die_at("before commit")
        if fenced is not None and fenced.raised:
            replica.world.fences[fenced.run] = replica.fences[fenced.run] = fenced.raised
        replica.point("commit")
        if replica.strikes("store-lost-ack", "commit"):
            raise StoreError("The connection was lost while the transaction was committed (explorer).")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._replica.writing = True
        try:
            yield
        finally:
            self._replica.writing = False

    def close(self) -> None:
        """Does not close the store: other replicas use it."""


class Fenced:
    """Watches one transaction: which fence it raises, and that a commit is written under the newest one."""

    def __init__(self, replica: Process, transaction: Any) -> None:
        self.run = ""
        self.raised = 0
        raise_fence, append = transaction.raise_fence, transaction.append

        def raised(run: str) -> int:
            self.run, self.raised = run, raise_fence(run)
            return self.raised

        def appended(run: str, events: Sequence[tuple[float, str, Json]]) -> Any:
            newest = replica.world.fences.get(run, 0)
            if any(kind == "Committed" for _, kind, _ in events) and replica.fences.get(run, 0) != newest:
                raise Broken(
                    "fence", f"{replica.name} commits {run} under fence {replica.fences.get(run)}, not {newest}"
                )
            return append(run, events)

        transaction.raise_fence, transaction.append = raised, appended


class _Torn:
    """A transaction one of whose statements fails, after which nothing of it can be committed."""

    def __init__(self, inner: Transaction, replica: Process) -> None:
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
