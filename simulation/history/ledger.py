"""Copies one run, whole or what is new of it, from one store to another, through the port alone.

A simulation calls it after each round, so that a database on disk follows the store in memory. In the other direction
it loads the run that a simulation resumes. The copy equals what the coordinator itself would have written: ``quorate
verify`` finds no error, and a coordinator that is started on it opens the next round.

::

    read what is new (by sequence number, version and round) -> was the log still the same? -> carry the blobs
        -> one transaction: devices, workers, run, events, line, contributions, rounds, refusals, audit, metrics, claims

The pool of waiting devices belongs to the fleet, not to a run, and is not copied. A device is copied as it was when it
first appeared in the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

from coordinator.blobs import Blobs
from coordinator.engine.events import Leased
from coordinator.folding.refold import Readable
from coordinator.store.port import (
    TERMINAL,
    AuditRow,
    AuthorityRow,
    CheckpointRow,
    ClaimRow,
    Conflict,
    ContributionRow,
    DeviceRow,
    EventRow,
    MetricRow,
    Reader,
    RefusalRow,
    RoundRow,
    RunRow,
    Store,
    StoreError,
    Transaction,
    WorkerRow,
)

_PAGE = 5000
_TRIES = 5
_LATE = 64
"""Ended rounds in which an incremental copy looks for updates that came too late. A whole copy looks in all."""
_PIECE = 1 << 20
_AT_ONCE = 16
"""Blobs written at the same time."""

_MetricKey = tuple[int, str, str]


@dataclass(slots=True)
class Copied:
    """How much of a run has been copied to one target. Pass it to the next ``copy_run`` as ``since``, once."""

    row: RunRow | None = None
    """The run's row as it stands in the target; its ``seq`` is where the log ends there."""
    last: EventRow | None = None
    version: int = -1
    round: int = 0
    """All rounds up to this one have ended, and are copied."""
    refusals: dict[int, int] = field(default_factory=dict)
    audit: int = 0
    """How many entries of the audit log are copied."""
    metrics: dict[_MetricKey, MetricRow] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)

    @property
    def seq(self) -> int:
        """Sequence number of the last event copied; 0 for none."""
        return self.row.seq if self.row is not None else 0


@dataclass(slots=True)
class _News:
    """The rows that a target lacks."""

    row: RunRow
    events: list[EventRow]
    checkpoints: list[CheckpointRow]
    contributions: list[ContributionRow]
    rounds: list[RoundRow]
    refusals: list[RefusalRow]
    audit: list[AuditRow]
    metrics: list[MetricRow]
    claims: list[ClaimRow]
    devices: list[DeviceRow]
    workers: list[WorkerRow]
    authorities: list[AuthorityRow]
    """Those that certified devices and workers, where there are new ones with a certificate."""


def copy_run(
    source: Reader,
    target: Store | Transaction,
    run: str,
    *,
    since: Copied | None = None,
    blobs: tuple[Readable, Blobs] | None = None,
) -> Copied:
    """Copies to ``target`` all that it lacks of this run, in one transaction, and returns how much it has now.

    ``since``: the result of the last call for this target; then only what is new is read from ``source``, and nothing
    from the target. Without it the two are compared, so that a second call changes nothing. ``blobs`` (from, to) are
    copied before the rows that name them: checkpoints, the named tensors, the lists of waiting devices, and the
    raw updates that a coordinator still needs.

    StoreError when the run is unknown, when the target's run of this name is a different run, or when the run is
    written to all the time; Conflict when the target holds another value under the same key. ``Missing`` for a
    checkpoint without bytes.
    """
    for attempt in range(_TRIES):
        have = since if since is not None and attempt == 0 else _known(target, run)
        news = _read(source, run, have, whole=have is not since)
        if source.head(run) != news.row.seq:
            continue
        if blobs is not None:
            _carry(news, *blobs)
        try:
            with _opened(target, run) as tx:
                if tx.head(run) != have.seq:
                    raise Conflict(f"Somebody else has written to run {run} meanwhile.")
                _write(tx, news, have)
        except Conflict:
            if attempt == _TRIES - 1 or not hasattr(target, "transaction"):
                raise
        else:
            return _advanced(have, news)
    raise StoreError(f"Run {run} is written to faster than it can be copied: pause it, or wait until it is over.")


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


# ------------------------------------------------------------ reading


def _known(target: Reader, run: str) -> Copied:
    """How much of the run the target has, by its own rows."""
    have = Copied(row=target.run(run))
    after = ""
    while page := target.devices(_PAGE, after):
        have.devices.update(row.device for row in page)
        after = page[-1].device
    if have.row is None:
        return have
    have.last = next(iter(target.events(run, have.seq - 1, 1)), None) if have.seq else None
    have.version = max((row.version for row in target.checkpoints(run)), default=-1)
    rounds = list(_rounds(target, run, 0))
    have.round = _all_ended(rounds, 0)
    have.refusals = {row.round: len(target.refusals(run, row.round)) for row in rounds}
    have.audit = len(target.audit(run))
    have.metrics = {_key(row): row for row in target.metrics(run)}
    return have


def _read(source: Reader, run: str, have: Copied, *, whole: bool) -> _News:
    row = source.run(run)
    if row is None:
        raise StoreError(f"There is no run {run!r} to copy.")
    _require_same(source, row, have)
    events = list(_events(source, run, have.seq, row.seq))
    checkpoints = [item for item in _line(source, run, have.version, whole=whole) if item.version > have.version]
    made = [item.round for item in checkpoints if item.round is not None]
    contributions = [item for number in made for item in source.contributions(run, number)]
    rounds = list(_rounds(source, run, have.round))
    latest = max((item.round for item in rounds), default=have.round)
    refusals = [
        item
        for number in range(1 if whole else max(1, have.round - _LATE), latest + 1)
        for item in source.refusals(run, number)[have.refusals.get(number, 0) :]
    ]
    claims = source.claims(run)
    leased = {str(event.body["worker"]) for event in events if event.kind == Leased.kind}
    named = {str(device) for item in rounds for device in cast("list[str]", item.body.get("cohort", ()))}
    named.update(item.device for group in (claims, contributions, refusals) for item in group)
    found = (source.device(device) for device in sorted(named - have.devices))
    devices = [item for item in found if item is not None]
    workers = [item for name in sorted(leased) if (item := source.worker(name)) is not None]
    certified = any(item.certificate for item in devices) or any(item.certificate for item in workers)
    return _News(
        row=row,
        events=events,
        checkpoints=checkpoints,
        contributions=contributions,
        rounds=rounds,
        refusals=refusals,
        audit=source.audit(run)[have.audit :],
        metrics=[item for item in source.metrics(run) if have.metrics.get(_key(item)) != item],
        claims=claims,
        devices=devices,
        workers=workers,
        authorities=source.authorities() if certified else [],
    )


def _require_same(source: Reader, row: RunRow, have: Copied) -> None:
    """StoreError unless the target's log is the beginning of the source's."""
    if have.row is None:
        return
    mine, theirs = _identity(row), _identity(have.row)
    if mine != theirs:
        raise StoreError(f"The target holds another run named {row.run}: give another folder, or rename the plan.")
    if have.last is not None and source.events(row.run, have.seq - 1, 1) != [
        have.last
    ]:  # a shorter log has no such row
        raise StoreError(f"Run {row.run} has gone on in the target, apart from the one to copy: their logs differ.")


def _identity(row: RunRow) -> tuple[object, ...]:
    return row.plan_digest, row.init, row.selection_seed, row.created_at


def _events(source: Reader, run: str, after: int, last: int) -> Iterator[EventRow]:
    while after < last and (page := source.events(run, after, min(_PAGE, last - after))):
        yield from page
        after = page[-1].seq


def _rounds(source: Reader, run: str, after: int) -> Iterator[RoundRow]:
    while page := source.rounds(run, after, _PAGE):
        yield from page
        after = page[-1].round


def _line(source: Reader, run: str, after: int, *, whole: bool) -> Iterator[CheckpointRow]:
    """The checkpoints after a version: all in one read, or one by one where few are expected."""
    if whole:
        yield from source.checkpoints(run)
        return
    while (row := source.checkpoint(run, after + 1)) is not None:
        yield row
        after = row.version


def _all_ended(rounds: Sequence[RoundRow], ended: int) -> int:
    """The last round up to which every one has ended."""
    for row in rounds:
        if row.status not in TERMINAL:
            break
        ended = row.round
    return ended


def _key(row: MetricRow) -> _MetricKey:
    return row.version, row.source, row.name


# ------------------------------------------------------------ writing


def _carry(news: _News, source: Readable, target: Blobs) -> None:
    """Copies blobs. Checkpoints must exist. Others are copied if they still exist: a coordinator deletes old updates,
    and older named tensors with them."""
    copy_blobs(source, target, [row.digest for row in news.checkpoints])
    ended = {row.round for row in news.rounds if row.status in TERMINAL}
    latest = max((row.round for row in news.rounds), default=0)
    digests: list[object] = [digest for row in news.checkpoints for digest in row.named_tensors.values()]
    digests += [row.body.get("pool") for row in news.rounds]
    for event in news.events:
        body: dict[str, Any] = event.body
        if event.kind == "Reported" and body["round"] not in ended:
            digests.append(body["digest"])
    oldest = latest - 1 - cast("dict[str, int]", news.row.plan.get("retention", {})).get("rounds", 0)
    digests += [row.digest for row in news.contributions if row.round > oldest]
    digests += [row.digest for row in news.refusals if row.round > oldest and row.kind == "abandoned"]
    copy_blobs(source, target, [item for item in digests if isinstance(item, str) and source.has(item)])


def _opened(target: Store | Transaction, run: str) -> AbstractContextManager[Transaction]:
    store: Any = target
    return store.transaction(run) if hasattr(target, "transaction") else nullcontext(store)


def _write(tx: Transaction, news: _News, have: Copied) -> None:
    row, run = news.row, news.row.run
    for authority in news.authorities:
        if authority not in tx.authorities():
            tx.insert_authority(authority)
    for device in news.devices:
        tx.insert_device(device)
    for worker in news.workers:
        if tx.worker(worker.worker) is None:
            tx.insert_worker(worker)
    if have.row is None:
        tx.insert_run(replace(row, seq=0, refusals=0))
    else:
        for _ in range(row.fence - have.row.fence):
            tx.raise_fence(run)
        if row.snapshot is not None and row.snapshot_seq != have.row.snapshot_seq:
            tx.snapshot(run, row.snapshot_seq, row.snapshot)
    if news.events:
        tx.append(run, [(event.at, event.kind, event.body) for event in news.events])
    for checkpoint in news.checkpoints:
        tx.insert_checkpoint(checkpoint)
    tx.insert_contributions(news.contributions)
    for item in news.rounds:
        tx.put_round(item)
    tx.insert_refusals(news.refusals)
    tx.put_metrics(news.metrics)
    _write_claims(tx, run, news.claims)
    tx.insert_audit(news.audit)


def _write_claims(tx: Transaction, run: str, claims: Sequence[ClaimRow]) -> None:
    """The claims of this run. The claim of a device that works for another run in the target is left out: a device has
    one claim."""
    everyone = {claim.device: claim for claim in tx.claims()}
    wanted = {claim.device: claim for claim in claims}
    for device, claim in everyone.items():
        if claim.run == run and wanted.get(device) != claim:
            tx.drop_claims(run, claim.round, [device])
    free = [device for device in wanted if device not in everyone or everyone[device].run == run]
    tx.put_claims(wanted[device] for device in free if everyone.get(device) != wanted[device])


def _advanced(have: Copied, news: _News) -> Copied:
    """How much is copied now. The large sets are moved, not copied, so ``have`` must not be used again."""
    have.devices.update(row.device for row in news.devices)
    have.metrics.update((_key(row), row) for row in news.metrics)
    for row in news.refusals:
        have.refusals[row.round] = have.refusals.get(row.round, 0) + 1
    return replace(
        have,
        row=news.row,
        last=news.events[-1] if news.events else have.last,
        version=max((row.version for row in news.checkpoints), default=have.version),
        round=_all_ended(news.rounds, have.round),
        audit=have.audit + len(news.audit),
    )
