"""Copies one run from one store to another: whole, or what was written to a store in memory since the last time.

A simulation calls ``follow`` after each round, so that the database of its folder has the rows that the coordinator
wrote, and loads with ``copy_run`` the run that it resumes. ``copy_run`` also saves a history to a folder. ``quorate
verify`` finds no error in the copy, and a coordinator that is started on it opens the next round.

::

    read the rows -> carry the blobs -> one transaction: was the log still the same? -> all tables, parents first

No table is named here for its rows of the run: a new table or column is copied as all others are. The pool of waiting
devices and the list of a simulated authority belong to the fleet, not to a run, and are not copied. ``copy_run`` leaves
the messages of a secure round under way behind too, since they hold shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from coordinator.blobs import Blobs
from coordinator.engine.events import Leased, Reported
from coordinator.folding.refold import Readable
from coordinator.store.declared import TABLES, declared
from coordinator.store.gateway import Key
from coordinator.store.memory import Layer, MemoryStore
from coordinator.store.port import (
    TERMINAL,
    AuditHeadRow,
    AuditRow,
    AuthorityRow,
    CheckpointRow,
    ClassRow,
    ContributionRow,
    DeviceRow,
    EventRow,
    LedgerRow,
    ListRow,
    MessageRow,
    PoolChangeRow,
    Reader,
    RefusalRow,
    RoundRow,
    RunRow,
    Store,
    StoreError,
    Transaction,
    WaitingRow,
    WorkerRow,
)

_OF_THE_FLEET = (AuditHeadRow, ClassRow, ListRow, PoolChangeRow, WaitingRow)
"""Tables that a simulation writes and that have no rows of its run."""
_PIECE = 1 << 20
_AT_ONCE = 16
"""Blobs written at the same time."""


def follow(target: Store, source: MemoryStore, run: str, changes: Layer) -> None:
    """Writes the ``changes`` of a run (``MemoryStore.follow``) to ``target`` in one transaction, and empties them.

    StoreError when somebody else has written to the run there meanwhile; then nothing is written.
    """
    with target.transaction(run) as tx:
        if tx.head(run) + len(changes.get(EventRow, ())) != source.head(run):
            raise StoreError(f"Somebody else has written to run {run} meanwhile: the log there is not this one.")
        tx.put_rows(run, {row: found for row, found in changes.items() if row not in _OF_THE_FLEET})
    changes.clear()


def copy_run(source: Store, target: Store, run: str, *, blobs: tuple[Readable, Blobs] | None = None) -> None:
    """Copies to ``target`` all that it lacks of this run, in one transaction: a second call changes nothing.

    ``blobs`` (from, to) are copied before the rows that name them: checkpoints, the named tensors, the lists of waiting
    devices, and the raw updates that a coordinator still needs.

    StoreError when the run is unknown, or when the target's run of this name is a different run or has gone on;
    Conflict when the target holds another value under a unique key. ``Missing`` for a checkpoint without bytes.
    """
    with source.reading() as reader:
        rows = _rows_of(reader, run)
    if blobs is not None:
        _carry(rows, run, *blobs)
    with target.transaction(run) as tx:
        tx.put_rows(run, _lacking(tx, run, rows))


def copy_blobs(source: Readable, target: Blobs, digests: Iterable[str | None]) -> int:
    """Copies the blobs that the target lacks, checked against their digests; returns how many. Missing."""
    wanted = sorted({digest for digest in digests if digest is not None and not target.has(digest)})

    def carry(digest: str) -> None:
        with source.open(digest) as file, target.spool() as spool:
            while piece := file.read(_PIECE):
                spool.write(piece)
            spool.commit(digest)

    if len(wanted) == 1:
        carry(wanted[0])
    elif wanted:
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # each waits for the disk, and the disk takes several at once
            for _ in pool.map(carry, wanted):
                pass
    return len(wanted)


# ------------------------------------------------------------ rows


def _rows_of(reader: Reader, run: str) -> Layer:
    """The rows of a run, of the devices and workers that they name, of the authorities that certified these, and of its
    privacy ledger."""
    if reader.run(run) is None:
        raise StoreError(f"There is no run {run!r} to copy.")
    of_run = [about for about in TABLES.values() if "run" in about.names and about.row is not MessageRow]
    rows = {about.row: _by_key(reader.of_run(about.row, run)) for about in of_run}
    plan = rows[RunRow][run,].plan
    if "secure" not in plan:  # short updates, and the seeds and keys of noise
        sent = {event.body["digest"] for event in rows[EventRow].values() if event.kind == Reported.kind}
        kept = [row for row in reader.of_run(MessageRow, run) if "privacy" in plan or row.digest in sent]
        rows[MessageRow] = _by_key(kept)
    named = {row.device for about in of_run if "device" in about.names for row in rows[about.row].values()}
    named.update(device for row in rows[RoundRow].values() for device in row.body.get("cohort", ()))
    leased = {event.body["worker"] for event in rows[EventRow].values() if event.kind == Leased.kind}
    rows[DeviceRow] = _by_key([row for row in map(reader.device, sorted(named)) if row is not None])
    rows[WorkerRow] = _by_key([row for row in map(reader.worker, sorted(leased)) if row is not None])
    rows[LedgerRow] = _by_key([row for row in reader.privacy_ledgers() if row.ledger == _ledger_of(rows[RunRow][run,])])
    certified = any(row.certificate for of in (DeviceRow, WorkerRow) for row in rows[of].values())
    rows[AuthorityRow] = _by_key(reader.authorities() if certified else [])
    return rows


def _ledger_of(row: RunRow) -> object:
    """The name of the privacy ledger that the run's plan names, or None."""
    return cast("dict[str, Any]", row.plan.get("privacy") or {}).get("ledger")


def _lacking(tx: Transaction, run: str, rows: Layer) -> Layer:
    """The rows that the target lacks; None for those that it has and should not. StoreError where it holds
    another run of this name, or where its log is not the beginning of the one to copy."""
    before, row = tx.run(run), rows[RunRow][run,]
    if before and _identity(before) != _identity(row):
        raise StoreError(f"The target holds another run named {run}: give another folder, or rename the plan.")
    if before and before.seq and tx.events(run, before.seq - 1, 1) != [rows[EventRow].get((run, before.seq))]:
        raise StoreError(f"Run {run} has gone on in the target, apart from the one to copy: their logs differ.")
    lacking = {
        of: _difference(tx.of_run(of, run), found) if "run" in declared(of).names else found
        for of, found in rows.items()
    }
    known = tx.authorities()
    authorities = {key: one for key, one in rows[AuthorityRow].items() if one not in known}
    audited = {("authority", *key): one.audited for key, one in authorities.items()}
    ledgers = {key: one for key, one in rows[LedgerRow].items() if tx.privacy_ledger(one.ledger) is None}
    audited |= {("ledger", *key): one.audited for key, one in ledgers.items()}
    return lacking | {AuthorityRow: authorities, LedgerRow: ledgers, AuditRow: {**audited, **lacking[AuditRow]}}


def _identity(row: RunRow) -> tuple[object, ...]:
    return row.plan_digest, row.init, row.selection_seed, row.created_at


def _difference(stored: Sequence[Any], found: dict[Key, Any]) -> dict[Key, Any]:
    if stored and declared(type(stored[0])).counted:  # each store has numbers of its own; rows are only added
        return dict(list(found.items())[len(stored) :])
    before = _by_key(stored)
    news = {key: row for key, row in found.items() if before.get(key) != row}
    return news | {key: None for key in before if key not in found}


def _by_key(rows: Sequence[Any]) -> dict[Key, Any]:
    return {tuple(getattr(row, name) for name in declared(type(row)).key): row for row in rows}


def _carry(rows: Layer, run: str, source: Readable, target: Blobs) -> None:
    """Copies blobs. Checkpoints must exist. Others are copied if they still exist: a coordinator deletes old updates,
    and older named tensors with them."""
    line: list[CheckpointRow] = [*rows[CheckpointRow].values()]
    rounds: list[RoundRow] = [*rows[RoundRow].values()]
    copy_blobs(source, target, [row.digest for row in line])
    ended = {row.round for row in rounds if row.status in TERMINAL}
    latest = max((row.round for row in rounds), default=0)
    digests: list[object] = [digest for row in line for digest in row.named_tensors.values()]
    digests += [row.body.get("pool") for row in rounds]
    for event in rows[EventRow].values():
        if event.kind == "Reported" and event.body["round"] not in ended:
            digests.append(event.body["digest"])
    oldest = latest - 1 - cast("dict[str, int]", rows[RunRow][run,].plan.get("retention", {})).get("rounds", 0)
    digests += [row.digest for row in rows[ContributionRow].values() if row.round > oldest]
    digests += [row.digest for row in rows[RefusalRow].values() if row.round > oldest and row.kind == "abandoned"]
    copy_blobs(source, target, [item for item in digests if isinstance(item, str) and source.has(item)])
