"""MemoryStore: the store contract in dicts. Tests, the simulator and the fault explorer use it.

Rows live as long as the object: a "crash" is an exception inside a transaction, which then stores nothing. One lock
admits one writing transaction at a time; a second one, held briefly, separates commits from reads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from client_sdk.identity import Signer
from coordinator.store.chain import audit_beginning
from coordinator.store.memory_gateway import CommittedRows, MemoryReads, MemoryWrites
from coordinator.store.port import AuditHeadRow, Reader, Store, StoreError, Transaction


class MemoryTransaction(MemoryWrites, Transaction):
    """The Transaction port over a layer of its own."""

    def __init__(self, committed: CommittedRows, audit_signer: Signer | None = None) -> None:
        super().__init__(committed)
        self._audit_signer = audit_signer


class MemoryStore(MemoryReads, Store):
    """The Store port in memory. ``lock_timeout_s``: to wait for another one; ``audit_signer``: as in ``open_store``."""

    def __init__(self, *, lock_timeout_s: float = 30.0, audit_signer: Signer | None = None) -> None:
        super().__init__(CommittedRows(threading.RLock()))
        self._audit_signer = audit_signer
        self._writing = threading.Lock()
        self._writer: int | None = None
        self._lock_timeout_s = lock_timeout_s
        with self.transaction() as tx:
            tx._insert([AuditHeadRow(count=0, link=audit_beginning())])

    @contextmanager
    def transaction(self, run: str | None = None) -> Iterator[MemoryTransaction]:
        """Opens a writing transaction; all runs share one lock. StoreError as in the port."""
        if self._writer == threading.get_ident():
            raise StoreError("This thread has a transaction open already.")
        if not self._writing.acquire(timeout=self._lock_timeout_s):
            raise StoreError(f"The store was locked for {self._lock_timeout_s:g} s by another transaction.")
        self._writer = threading.get_ident()
        try:
            transaction = MemoryTransaction(self._committed, self._audit_signer)
            yield transaction
            transaction.commit()
        finally:
            self._writer = None
            self._writing.release()

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Opens a transaction that only reads: commits wait for its end."""
        with self._guard:
            yield self

    def close(self) -> None:
        """Deletes nothing: a restarted coordinator finds the rows here."""

    def size_bytes(self) -> int | None:
        return None

    def damage(self) -> list[str]:
        return []
