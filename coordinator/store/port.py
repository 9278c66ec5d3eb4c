"""The Store port: what the coordinator needs from a database. Its rows (``rows.py``) are imported from here too.

Everything that must happen together happens inside one ``transaction(run)``, which holds the run's lock in the store,
not in this process, so several replicas may share a database. Reads outside a transaction see committed data only. The
contract test (``tests/coordinator/store/contract.py``) runs against every implementation; the memory store that passes
it serves as the fake. Tensors are not stored here: only their digests are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from coordinator.store.errors import Conflict, FenceLost, StoreError, StoreFull
from coordinator.store.flower import FlowerReader, FlowerWriter
from coordinator.store.insight import InsightReader, InsightWriter, OnDisk
from coordinator.store.logins import LoginReader, LoginWriter
from coordinator.store.messages import MessageReader, MessageWriter
from coordinator.store.rows import (
    ApiKeyRow,
    Appended,
    AuditHeadRow,
    AuditRow,
    AuthorityRow,
    CheckpointRow,
    ClaimRow,
    ContributionRow,
    DeviceRow,
    EventRow,
    Json,
    ListRow,
    MarkRow,
    MetricRow,
    RefusalRow,
    RoundRow,
    RunRow,
    WaitingRow,
    WorkerRow,
)

__all__ = [
    "TERMINAL",
    "ApiKeyRow",
    "Appended",
    "AuditHeadRow",
    "AuditRow",
    "AuthorityRow",
    "CheckpointRow",
    "ClaimRow",
    "Conflict",
    "ContributionRow",
    "DeviceRow",
    "EventRow",
    "FenceLost",
    "Json",
    "ListRow",
    "MarkRow",
    "MetricRow",
    "Reader",
    "RefusalRow",
    "RoundRow",
    "RunRow",
    "Store",
    "StoreError",
    "StoreFull",
    "Transaction",
    "WaitingRow",
    "WorkerRow",
]

TERMINAL = ("committed", "abandoned")
"""The statuses of a round that has ended. The store refuses to change them."""


class Reader(LoginReader, InsightReader, MessageReader, FlowerReader, Protocol):
    """Reads, usable inside a transaction (seeing its own writes) and outside (seeing committed data)."""

    def run(self, run: str) -> RunRow | None: ...
    def runs(self) -> list[RunRow]:
        """All runs, oldest first."""
        ...

    def run_ids(self) -> list[str]:
        """The ids of all runs, oldest first: also where something else in a run's row cannot be read."""
        ...

    def head(self, run: str) -> int:
        """Sequence number of the run's last event; 0 for none. Read at every transaction, so it costs one small row."""
        ...

    def events(self, run: str, after: int, limit: int = 1000) -> list[EventRow]:
        """Events with ``seq > after`` in order, at most ``limit``."""
        ...

    def find_event(self, run: str, kind: str, beginning: Json) -> EventRow | None:
        """The first event of this kind whose body begins with these values, in this order. Reads the whole log."""
        ...

    def device(self, device: str) -> DeviceRow | None: ...
    def device_by_key(self, key_id: str) -> DeviceRow | None:
        """The device whose newest certificate is of this key. ``devices_by_keys``: those of these keys, unsorted."""
        ...

    def devices_by_keys(self, key_ids: Collection[str]) -> list[DeviceRow]: ...
    def devices(self, limit: int = 1000, after: str = "") -> list[DeviceRow]:
        """Devices in order of id, for paging."""
        ...

    def idle(self, since: float, now: float) -> list[DeviceRow]:
        """Devices that checked in since then, have not left, and have neither an unexpired place in the pool nor a
        claim, in order of id."""
        ...

    def taking_turns(self, since: float) -> list[DeviceRow]:
        """Devices that checked in since then, and of whose processes ``turns`` are noted, in order of id."""
        ...

    def worker(self, worker: str) -> WorkerRow | None: ...
    def worker_by_key(self, key_id: str) -> WorkerRow | None:
        """The worker whose newest certificate is of this key, revoked or not."""
        ...

    def workers(self) -> list[WorkerRow]:
        """All workers, in order of id."""
        ...

    def revocations(self, authority: str) -> bytes | None:
        """The newest revocation list of this authority that was stored."""
        ...

    def revocation_list(self, digest: str) -> bytes | None:
        """The revocation list of this digest, of whichever authority, that was stored and not dropped."""
        ...

    def authorities(self) -> list[AuthorityRow]:
        """In the order in which they were recorded."""
        ...

    def api_key(self, key: str) -> ApiKeyRow | None:
        """The API key of this id, revoked and expired or not."""
        ...

    def api_keys(self) -> list[ApiKeyRow]:
        """All API keys, in order of id."""
        ...

    def waiting(self, now: float, among: Collection[str] | None = None) -> list[WaitingRow]:
        """Unexpired (``expires > now``), unclaimed rows of the pool, of these devices or of all, in order of id."""
        ...

    def waiting_by_offer(self, now: float) -> dict[str, int]:
        """Number of unexpired, unclaimed devices in the pool, by offer."""
        ...

    def claim(self, device: str) -> ClaimRow | None: ...
    def claims(self, run: str | None = None) -> list[ClaimRow]:
        """All claims, or those of a run, in order of device id."""
        ...

    def checkpoints(self, run: str) -> list[CheckpointRow]:
        """All checkpoints of a run, in order of version."""
        ...

    def checkpoint(self, run: str, version: int) -> CheckpointRow | None: ...
    def runs_with_checkpoint(self, digest: str) -> list[str]:
        """The runs that have a checkpoint of this digest, sorted. Only those of some run may be downloaded."""
        ...

    def contributions(self, run: str, round: int) -> list[ContributionRow]:
        """In order of device id."""
        ...

    def contribution(self, run: str, round: int, device: str) -> ContributionRow | None: ...
    def round(self, run: str, round: int) -> RoundRow | None: ...
    def rounds(self, run: str, after: int = 0, limit: int = 10_000) -> list[RoundRow]:
        """Rounds numbered above ``after``, in order."""
        ...

    def refusals(self, run: str, round: int) -> list[RefusalRow]:
        """In the order in which they were recorded."""
        ...

    def refusals_in_order(self, run: str) -> list[RefusalRow]:
        """Those of all rounds, in the order in which they were recorded."""
        ...

    def audit(self, run: str) -> list[AuditRow]:
        """In the order in which they were recorded."""
        ...

    def audit_of_all(self, after: int, limit: int) -> list[tuple[int, AuditRow]]:
        """(number, row) of those of all runs and of none, numbered above ``after``, in the order in which they were
        recorded."""
        ...

    def audit_head(self) -> AuditHeadRow | None:
        """Where the audit ends. None: somebody has deleted that row."""
        ...

    def metrics(self, run: str) -> list[MetricRow]:
        """In order of version, source, name."""
        ...

    def marks(self, tensors: str) -> list[MarkRow]:
        """The marks of devices on these tensors, by all runs, in order of device and run."""
        ...

    def marked_devices(self, tensors: str, kinds: Collection[str]) -> int:
        """How many devices that are registered and have not left have a mark of these kinds on these tensors."""
        ...

    def marks_of_run(self, run: str) -> list[MarkRow]:
        """Those that this run has made, in order of tensors and device."""
        ...

    def runs_named(self) -> list[str]:
        """Every run that a row of any table names, sorted: also where the run's own row is gone."""
        ...

    def rows_by_round(self, run: str) -> dict[str, dict[int, int]]:
        """How many rows of ``rounds``, ``contributions`` and ``refusals`` name each round: {table: {round: rows}}."""
        ...


class Transaction(Reader, LoginWriter, InsightWriter, MessageWriter, FlowerWriter, Protocol):
    """All of it becomes durable at the end of the ``with`` block, or none of it (an exception inside rolls back).

    A StoreError voids the transaction, also when it is caught inside the block: the end of the block then raises
    another. Rows name only runs and devices that exist (contributions and refusals outlive their devices), and a body
    is JSON without NaN; anything else is a StoreError.
    """

    def insert_run(self, row: RunRow) -> None: ...
    def append(self, run: str, events: Sequence[tuple[float, str, Json]]) -> Appended:
        """Appends (at, kind, body) in order, each chained to the one before, and returns where the log ends now."""
        ...

    def snapshot(self, run: str, seq: int, state: Json) -> None: ...
    def raise_fence(self, run: str) -> int:
        """Increments the run's fence and returns it."""
        ...

    def require_fence(self, run: str, fence: int) -> None:
        """FenceLost unless the run's fence still has this value. It stays so until the transaction ends."""
        ...

    def insert_device(self, row: DeviceRow) -> None:
        """Conflict when the id or the key is in use."""
        ...

    def certify_device(self, device: str, key_id: str, certificate: str) -> None:
        """Replaces its certificate. Conflict when the key is another device's; StoreError when it is unknown."""
        ...

    def forget_device(self, device: str, at: float) -> None:
        """Removes its key, certificate and label, takes it out of the pool and from the nodes, and notes when it left:
        an earlier time stays. StoreError when it is unknown."""
        ...

    def seen(self, devices: Mapping[str, Json], at: float) -> None:
        """Sets when these devices last checked in, and what they said of themselves. Unknown ids are ignored."""
        ...

    def insert_worker(self, row: WorkerRow) -> None:
        """Conflict when the id or the key is in use."""
        ...

    def certify_worker(self, worker: str, key_id: str, certificate: str) -> None:
        """As ``certify_device``."""
        ...

    def seen_worker(self, worker: str, at: float) -> None:
        """Sets when this worker last sent a request. StoreError when it is unknown."""
        ...

    def revoke_worker(self, worker: str, at: float) -> None:
        """Notes when it was revoked; an earlier ``revoked_at`` stays. StoreError when the worker is unknown."""
        ...

    def put_revocations(self, row: ListRow) -> None:
        """Stores the list beside the older ones, unless one of the same authority with its counter is stored."""
        ...

    def drop_revocations(self, authority: str, counter: int, at: float) -> None:
        """Drops the lists of this authority with a lower counter whose next update was due before ``at``."""
        ...

    def insert_authority(self, row: AuthorityRow) -> None: ...
    def insert_api_key(self, row: ApiKeyRow) -> None:
        """Conflict when the id is in use."""
        ...

    def revoke_api_key(self, key: str, at: float) -> None:
        """Revokes it; an earlier ``revoked_at`` stays. StoreError when it is unknown."""
        ...

    def put_waiting(self, rows: Iterable[WaitingRow]) -> None:
        """Inserts or replaces; an existing row keeps its ``since``."""
        ...

    def drop_waiting(self, devices: Iterable[str]) -> None: ...
    def drop_hold(self, device: str, expires: float) -> None:
        """Removes the device from the pool, unless another check-in than the one that expires then is in it."""
        ...

    def expire_waiting(self, now: float) -> int:
        """Deletes expired rows of the pool and returns their number."""
        ...

    def put_claims(self, claims: Iterable[ClaimRow]) -> None:
        """Inserts claims and removes their devices from the pool. Conflict when a device has a claim already."""
        ...

    def drop_claims(self, run: str, round: int, devices: Iterable[str] | None = None) -> None:
        """Deletes the claims of this round: all, or those of ``devices``. Claims of other rounds stay."""
        ...

    def insert_checkpoint(self, row: CheckpointRow) -> None:
        """Conflict when the version exists, its parent has a child already, or it is a second one without parent."""
        ...

    def insert_contributions(self, rows: Iterable[ContributionRow]) -> None:
        """Conflict when a device has a contribution in this round already."""
        ...

    def put_round(self, row: RoundRow) -> None:
        """Inserts or replaces. Conflict when the round has ended and this row has another status."""
        ...

    def insert_refusals(self, rows: Iterable[RefusalRow]) -> None: ...
    def insert_marks(self, rows: Iterable[MarkRow]) -> None:
        """Of the marks of a device by a run on the same tensors the first one stays, unless a later one outranks it."""
        ...

    def insert_audit(self, rows: Iterable[AuditRow]) -> None:
        """Numbers, chains and signs the rows. Waits for other transactions that have inserted some: all replicas share
        one lock. So that no two wait for each other, make it the transaction's last write."""
        ...

    def put_metrics(self, rows: Iterable[MetricRow]) -> None: ...


class Store(Reader, OnDisk, Protocol):
    """Reads of committed data, and writing transactions."""

    def reading(self) -> AbstractContextManager[Reader]:
        """Opens a transaction that only reads: all of its reads see the data of one moment, while others write."""
        ...

    def transaction(self, run: str | None = None) -> AbstractContextManager[Transaction]:
        """Opens a writing transaction; with ``run`` it holds that run's lock from the first statement to the end.

        Threads and replicas wait for each other here. StoreError when the lock is not acquired in time, or when this
        thread has a transaction open already.
        """
        ...

    def close(self) -> None: ...
