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

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from coordinator.store.port import (
    ClaimRow,
    DeviceRow,
    Json,
    Reader,
    Store,
    StoreError,
    Transaction,
    WaitingRow,
    WorkerRow,
)
from coordinator.store.rows import MessageRow
from tests.explorer.admission import is_older
from tests.explorer.draws import free
from tests.explorer.faults import Broken
from tests.explorer.process import Process

WATCHED = (
    "raise_fence",
    "append",
    "put_claims",
    "insert_messages",
    "certify_device",
    "certify_worker",
    "revoke_worker",
    "forget_device",
)
"""Methods of a transaction that are watched."""


READS = tuple(name for name in vars(Reader) if not name.startswith("_"))
"""Methods of a store that only read."""


class FaultyStore:
    """Behaves like ``store`` where no fault strikes."""

    def __init__(self, store: Store, replica: Process) -> None:
        self._store = store
        self._replica = replica
        if "store-read" not in replica.world.possible:
            vars(self).update({name: getattr(store, name) for name in READS})

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
        replica.watch.writes(run)
        replica.writing = True
        try:
            with self._store.transaction(run) as inner:
                torn = replica.strikes("store-torn", "statement")
                transaction = cast("Transaction", _Torn(inner, replica)) if torn else inner
                fenced = Fenced(replica, inner) if run is not None else None
                revoked: list[str] = []
                shape = replica.world.shape
                if run is None and (replica.world.authority.short or shape.workers or shape.leavers or shape.flower):
                    _watch_holders(inner, revoked)
                try:
                    yield transaction
                finally:
                    _unwatch(inner)
                if isinstance(transaction, _Torn):
                    transaction.require_valid()
                if replica.strikes("store-full", "commit"):
                    raise StoreError("The database could not be written: the disk is full (explorer).")
                replica.die_at("before commit")
        finally:
            replica.writing = False
        replica.world.revoked_here |= dict.fromkeys(revoked, replica.world.agenda.now)
        if fenced is not None and fenced.raised:
            replica.world.fences[fenced.run] = replica.fences[fenced.run] = fenced.raised
        if fenced is not None and fenced.used:
            replica.world.used_fences[fenced.run] = fenced.used
        replica.point("commit")
        if replica.strikes("store-lost-ack", "commit"):
            raise StoreError("The connection was lost while the transaction was committed (explorer).")

    def close(self) -> None:
        """Does not close the store: other replicas use it."""


class Fenced:
    """Watches one transaction of a run: which fence it raises, that a commit is written under the newest one, who waits
    when a cohort is claimed, and which messages it stores."""

    def __init__(self, replica: Process, transaction: Any) -> None:
        self.run = ""
        self.raised = 0
        self.used = 0
        """The fence of the commit that it has."""
        before_claims: list[WaitingRow] = []
        world = replica.world
        raise_fence, append, put_claims = transaction.raise_fence, transaction.append, transaction.put_claims
        insert_messages = transaction.insert_messages

        def raised(run: str) -> int:
            self.run, self.raised = run, raise_fence(run)
            return self.raised

        def appended(run: str, events: Sequence[tuple[float, str, Json]]) -> Any:
            newest, mine = world.fences.get(run, 0), replica.fences.get(run, 0)
            if any(kind in ("Committed", "CommitFailed") for _, kind, _ in events):
                if mine != newest:
                    raise Broken("fence", f"{replica.name} commits {run} under fence {mine}, not {newest}")
                if mine <= world.used_fences.get(run, 0):
                    raise Broken("fence", f"{replica.name} commits {run} again under fence {mine}")
                self.run, self.used = run, mine
            for seq, (_, kind, _) in enumerate(events, transaction.head(run) + 1):
                if kind == "Drawn":
                    world.waiting[run, seq] = before_claims or free(transaction)
            return append(run, events)

        def claimed(claims: Iterable[ClaimRow]) -> None:
            rows = list(claims)
            for row in rows:
                other = transaction.claim(row.device)
                if other is not None:
                    raise Broken("draw", f"{row.device} was drawn for {row.run}, and works for {other.run}")
            before_claims.extend(free(transaction))
            put_claims(rows)

        def inserted(messages: Iterable[MessageRow]) -> None:
            rows = list(messages)
            world.vectors.rows += [(row.digest, row.content) for row in rows]
            insert_messages(rows)

        transaction.raise_fence, transaction.append, transaction.put_claims = raised, appended, claimed
        transaction.insert_messages = inserted


def _unwatch(transaction: Any) -> None:
    """Takes the watching methods off a transaction that is over: it is freed at once then."""
    for name in WATCHED:
        vars(transaction).pop(name, None)


def _watch_holders(transaction: Any, revokes: list[str]) -> None:
    """Watches one transaction of no run: a certificate is replaced by a newer one only; ``revokes`` gets the workers
    that it revokes, and the devices that it forgets. Where no certificate is short, all of a holder are the same."""
    certify_device, certify_worker = transaction.certify_device, transaction.certify_worker
    revoke_worker, forget_device = transaction.revoke_worker, transaction.forget_device

    def device(name: str, key_id: str, certificate: str) -> None:
        _require_newer(name, transaction.device(name), certificate)
        certify_device(name, key_id, certificate)

    def worker(name: str, key_id: str, certificate: str) -> None:
        _require_newer(name, transaction.worker(name), certificate)
        certify_worker(name, key_id, certificate)

    def revoked(name: str, at: float) -> None:
        revoke_worker(name, at)
        revokes.append(name)

    def forgotten(name: str, at: float) -> None:
        forget_device(name, at)
        revokes.append(name)

    transaction.certify_device, transaction.certify_worker = device, worker
    transaction.revoke_worker, transaction.forget_device = revoked, forgotten


def _require_newer(name: str, row: DeviceRow | WorkerRow | None, certificate: str) -> None:
    if row is not None and row.certificate and is_older(certificate, row.certificate):
        raise Broken("permission", f"an older certificate of {name} replaces a newer one")


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
