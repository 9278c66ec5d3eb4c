"""The Store port: what the coordinator needs from a database, and nothing about how one works.

Everything that must happen together happens inside one ``transaction(run)``, which holds the run's lock in the store
(not in this process), so a second replica needs nothing new. Reads outside a transaction see committed data only. The
contract test (``tests/coordinator/store/contract.py``) is run against every implementation; the memory store that
passes it serves as the fake.

Times are Unix seconds (float). Bodies are JSON-compatible dicts. Tensors never come here: only their digests do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

Json = dict[str, object]

TERMINAL = ("committed", "abandoned")
"""The statuses in which a round ends. The store lets none of them change."""


class StoreError(Exception):
    """The store could not do its work (disk full, locked, gone). Nothing of the transaction happened."""


class StoreFull(StoreError):
    """There is no room left to write. Nothing of the transaction happened; it may be done again once there is."""


class FenceLost(StoreError):
    """Another replica has taken the commit since this fence was raised.

    Nothing happened; whoever holds the newer fence commits.
    """


class Conflict(StoreError):
    """A unique key refused a row: a fork of the line, a device counted twice, an id taken.

    Nothing of the transaction happened.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    device: str
    public_key: str
    token_hash: str
    label: str
    examples_cap: int
    enrolled_at: float
    last_seen_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A datacenter's worker, registered by an operator."""

    worker: str
    token_hash: str
    label: str
    created_at: float
    last_seen_at: float | None = None
    revoked_at: float | None = None
    """When its token ceased to be good. Never taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRow:
    """One device in the pool. Belongs to the fleet, not to a run."""

    device: str
    examples: int
    """Capped at enrolment already."""
    offer: str
    """Canonical JSON of what decides eligibility (learners, policy).

    Equal offers are equal strings, so eligibility is decided once for each.
    """
    since: float
    expires: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A device's one live assignment."""

    device: str
    run: str
    round: int
    attempt: int
    until: float
    """When the round's deadline passes; for people. Time never frees a claim: the round's end does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    run: str
    name: str
    plan: Json
    plan_digest: str
    selection_seed: int
    """Secret, 63 bits: stays on the coordinator."""
    init: str
    origin: str
    created_at: float
    seq: int = 0
    """Sequence number of the last event appended."""
    fence: int = 0
    snapshot_seq: int = 0
    snapshot: Json | None = None
    """The engine's state after ``snapshot_seq``, so that recovery folds only the tail of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    seq: int
    at: float
    kind: str
    body: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    run: str
    version: int
    digest: str
    parent_version: int | None
    """None for the first. Unique per run: the line cannot fork."""
    round: int | None
    origin: str
    bytes: int
    optimizer: str | None
    """Digest of the server optimizer's state, None where it has none."""
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionRow:
    """One counted update. Unique per (run, round, device)."""

    run: str
    round: int
    device: str
    digest: str
    weight: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """The public record of a round. Written when it opens, replaced at each change of phase and when it ends."""

    run: str
    round: int
    attempt: int
    kind: str
    status: str
    """open | committed | abandoned. Never changes once it is one of the last two (the store refuses: Conflict)."""
    reason: str
    opened_at: float
    collecting_at: float | None
    closed_at: float | None
    body: Json = field(default_factory=dict)
    """Funnel, bytes, weight, version, digest, metrics: as in operator_protocol.RoundView."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRow:
    """Why an update, acknowledged or late, did not count."""

    run: str
    round: int
    device: str
    digest: str | None
    kind: str
    """late | abandoned | stale | duplicate | invalid | ... : the problem's type."""
    reason: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """What somebody did that only the run's owner may. Never changed, never deleted."""

    run: str
    at: float
    by: str
    """Who, by their own word where operators have no credentials."""
    action: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One value per (run, version, source, name); written again it is replaced."""

    run: str
    version: int
    source: str
    name: str
    value: float
    examples: int
    at: float


class Reader(Protocol):
    """Reads, usable inside a transaction (seeing its own writes) and outside (seeing committed data)."""

    def run(self, run: str) -> RunRow | None: ...
    def runs(self) -> list[RunRow]:
        """All runs, oldest first."""
        ...

    def head(self, run: str) -> int:
        """Sequence number of the run's last event; 0 for none. Read at every transaction, so it costs one small row."""
        ...

    def events(self, run: str, after: int, limit: int = 1000) -> list[EventRow]:
        """Events with ``seq > after`` in order, at most ``limit``."""
        ...

    def device(self, device: str) -> DeviceRow | None: ...
    def device_by_key(self, public_key: str) -> DeviceRow | None: ...
    def device_by_token(self, token_hash: str) -> DeviceRow | None:
        """The device of this token; should several have it, the one whose id comes first."""
        ...

    def devices(self, limit: int = 1000, after: str = "") -> list[DeviceRow]:
        """Devices in order of id, for paging."""
        ...

    def worker(self, worker: str) -> WorkerRow | None: ...
    def worker_by_token(self, token_hash: str) -> WorkerRow | None:
        """The worker of this token, revoked or not."""
        ...

    def workers(self) -> list[WorkerRow]:
        """All workers, in order of id. There are few."""
        ...

    def waiting(self, now: float) -> list[WaitingRow]:
        """Unexpired (``expires > now``), unclaimed rows of the pool, in order of device id."""
        ...

    def waiting_by_offer(self, now: float) -> dict[str, int]:
        """How many unexpired, unclaimed devices wait, by offer."""
        ...

    def claim(self, device: str) -> Claim | None: ...
    def claims(self, run: str | None = None) -> list[Claim]:
        """All claims, or those of a run, by device id."""
        ...

    def checkpoints(self, run: str) -> list[CheckpointRow]:
        """The line of a run, by version."""
        ...

    def checkpoint(self, run: str, version: int) -> CheckpointRow | None: ...
    def knows_checkpoint(self, digest: str) -> bool:
        """Whether any run has a checkpoint of this digest: only those are served to devices."""
        ...

    def contributions(self, run: str, round: int) -> list[ContributionRow]:
        """By device id."""
        ...

    def round(self, run: str, round: int) -> RoundRow | None: ...
    def rounds(self, run: str, after: int = 0, limit: int = 10_000) -> list[RoundRow]:
        """Rounds numbered above ``after``, in order."""
        ...

    def refusals(self, run: str, round: int) -> list[RefusalRow]:
        """In the order in which they were recorded."""
        ...

    def audit(self, run: str) -> list[AuditRow]:
        """In the order in which it was done."""
        ...

    def metrics(self, run: str) -> list[MetricRow]:
        """By version, source, name."""
        ...


class Transaction(Reader, Protocol):
    """All of it becomes durable at the end of the ``with`` block, or none of it (an exception inside rolls back).

    A StoreError voids the transaction, also when it is caught inside the block: leaving the block then raises another.
    Rows name only runs and devices that are there (contributions and refusals outlive their devices); a body is JSON
    without NaN; anything else is a StoreError.
    """

    def insert_run(self, row: RunRow) -> None: ...
    def append(self, run: str, events: Sequence[tuple[float, str, Json]]) -> int:
        """Appends (at, kind, body) in order and returns the new last sequence number."""
        ...

    def snapshot(self, run: str, seq: int, state: Json) -> None: ...
    def raise_fence(self, run: str) -> int:
        """One more than before; returns the new fence."""
        ...

    def require_fence(self, run: str, fence: int) -> None:
        """FenceLost unless the run's fence is still this one. Holds until the transaction ends."""
        ...

    def insert_device(self, row: DeviceRow) -> None:
        """Conflict when the id or the key is taken."""
        ...

    def set_token(self, device: str, token_hash: str) -> None: ...
    def seen(self, devices: Iterable[str], at: float) -> None:
        """When these devices last spoke. Ids that are unknown are passed over."""
        ...

    def insert_worker(self, row: WorkerRow) -> None:
        """Conflict when the id or the token is taken."""
        ...

    def seen_worker(self, worker: str, at: float) -> None:
        """When this worker last spoke. StoreError for one that is unknown."""
        ...

    def revoke_worker(self, worker: str, at: float) -> None:
        """From now on; a worker that was revoked before stays so since then."""
        ...

    def put_waiting(self, rows: Iterable[WaitingRow]) -> None:
        """Inserts or refreshes; a row that was there keeps its ``since``."""
        ...

    def drop_waiting(self, devices: Iterable[str]) -> None: ...
    def expire_waiting(self, now: float) -> int:
        """Deletes expired rows; returns how many."""
        ...

    def put_claims(self, claims: Iterable[Claim]) -> None:
        """Conflict when a device has a claim already. The devices leave the pool."""
        ...

    def drop_claims(self, run: str, round: int, devices: Iterable[str] | None = None) -> None:
        """Frees the claims of this round: all, or those of ``devices``. Claims of other rounds stay."""
        ...

    def insert_checkpoint(self, row: CheckpointRow) -> None:
        """Conflict when the version exists, its parent has a child, or it is a second first one."""
        ...

    def insert_contributions(self, rows: Iterable[ContributionRow]) -> None:
        """Conflict when a device counts in this round already."""
        ...

    def put_round(self, row: RoundRow) -> None:
        """Inserts or replaces. Conflict when the round has ended and this row says another status."""
        ...

    def insert_refusals(self, rows: Iterable[RefusalRow]) -> None: ...
    def insert_audit(self, rows: Iterable[AuditRow]) -> None: ...
    def put_metrics(self, rows: Iterable[MetricRow]) -> None: ...


class Store(Reader, Protocol):
    def transaction(self, run: str | None = None) -> AbstractContextManager[Transaction]:
        """Opens a writing transaction; with ``run`` it holds that run's lock from the first statement to the end.

        Threads and replicas wait for each other here. Raises StoreError when the lock can't be had in time, or when
        this thread has a transaction open already.
        """
        ...

    def close(self) -> None: ...
