"""MemoryStore: the store contract in dicts. Tests, the simulator and the fault explorer use it.

Rows live as long as the object: a "crash" is an exception inside a transaction, which then stores nothing. One lock
admits one writing transaction at a time; a second one, held briefly, separates commits from reads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TypeVar

from client_sdk.identity import Signer
from coordinator.store.audit_chain import chain_audit
from coordinator.store.bodies import finite, to_text
from coordinator.store.chain import by_run, chain_refusals, event_link, log_beginning
from coordinator.store.flower_memory import MemoryFlowerWrites
from coordinator.store.insight_memory import MemoryInsightWrites
from coordinator.store.memory_reads import MemoryReads
from coordinator.store.memory_tables import ALL, Layer, OverTables, RunRecord, Tables
from coordinator.store.messages_memory import MemoryMessageWrites
from coordinator.store.port import (
    TERMINAL,
    ApiKeyRow,
    Appended,
    AuditRow,
    AuthorityRow,
    CheckpointRow,
    ClaimRow,
    Conflict,
    ContributionRow,
    DeviceRow,
    FenceLost,
    Json,
    ListRow,
    MarkRow,
    MetricRow,
    RefusalRow,
    RoundRow,
    RunRow,
    StoreError,
    WaitingRow,
    WorkerRow,
)
from coordinator.store.rows import LoginRow

T = TypeVar("T")
OfRun = TypeVar("OfRun", ClaimRow, ContributionRow, RefusalRow, MarkRow, MetricRow)


class MemoryTransaction(MemoryReads, MemoryInsightWrites, MemoryMessageWrites, MemoryFlowerWrites):
    """The Transaction port over a layer of its own. After an error it is void: it does not commit."""

    def __init__(
        self, committed: Tables, guard: AbstractContextManager[bool], audit_signer: Signer | None = None
    ) -> None:
        self._audit_signer = audit_signer
        self._written = OverTables(committed)
        super().__init__(self._written, guard)
        self._void = False

    def commit(self) -> None:
        """Makes the layer's rows visible, all at once. StoreError when the transaction is void."""
        if self._void:
            raise StoreError("An error inside this transaction was ignored, so nothing of it was stored.")
        with self._guard:
            self._written.apply()

    def insert_run(self, row: RunRow) -> None:
        self._name_run(row.run)
        snapshot = None if row.snapshot is None else self._text(row.snapshot)
        record = RunRecord(replace(row, plan={}, snapshot=None), self._text(row.plan), snapshot)
        self._t.runs.put(ALL, row.run, record)

    def append(self, run: str, events: Sequence[tuple[float, str, Json]]) -> Appended:
        record = self._run(run)
        seq, links = record.row.seq, []
        last = self._t.events.get(run, seq)
        link = log_beginning(record.row) if last is None else last[3]
        for at, kind, body in events:
            seq += 1
            text = self._text(body)
            link = event_link(link, seq, at, kind, text)
            links.append(link)
            self._t.events.put(run, seq, (at, kind, text, link))
        self._t.runs.put(ALL, run, replace(record, row=replace(record.row, seq=seq)))
        return Appended(seq, links)

    def snapshot(self, run: str, seq: int, state: Json) -> None:
        record, text = self._run(run), self._text(state)
        self._t.runs.put(ALL, run, replace(record, row=replace(record.row, snapshot_seq=seq), snapshot=text))

    def raise_fence(self, run: str) -> int:
        record = self._run(run)
        raised = replace(record.row, fence=record.row.fence + 1)
        self._t.runs.put(ALL, run, replace(record, row=raised))
        return raised.fence

    def require_fence(self, run: str, fence: int) -> None:
        now = self._run(run).row.fence
        if now != fence:
            raise self._failed(FenceLost(f"The commit of run {run} was taken over: its fence is {now}, not {fence}."))

    def insert_device(self, row: DeviceRow) -> None:
        self._unique(self._t.devices.get(ALL, row.device), f"Device {row.device} exists already.")
        self._take_key(self._t.device_of_key, row.device, None, row.key_id)
        self._t.devices.put(ALL, row.device, row)

    def certify_device(self, device: str, key_id: str, certificate: str) -> None:
        row = self._device(device)
        self._take_key(self._t.device_of_key, device, row.key_id, key_id)
        self._t.devices.put(ALL, device, replace(row, key_id=key_id, certificate=certificate))

    def forget_device(self, device: str, at: float) -> None:
        row = self._device(device)
        self._take_key(self._t.device_of_key, device, row.key_id, None)
        left_at = at if row.left_at is None else row.left_at
        gone = replace(row, key_id=None, certificate="", label="", facts={}, left_at=left_at)
        self._t.devices.put(ALL, device, gone)
        self.drop_waiting([device])
        self.drop_flower_node(device)

    def seen(self, devices: Mapping[str, Json], at: float) -> None:
        for device, facts in devices.items():
            if (row := self._t.devices.get(ALL, device)) is not None:
                self._t.devices.put(ALL, device, replace(row, last_seen_at=at, facts=facts))

    def insert_worker(self, row: WorkerRow) -> None:
        self._unique(self._t.workers.get(ALL, row.worker), f"Worker {row.worker} exists already.")
        self._take_key(self._t.worker_of_key, row.worker, None, row.key_id)
        self._t.workers.put(ALL, row.worker, row)

    def certify_worker(self, worker: str, key_id: str, certificate: str) -> None:
        row = self._worker(worker)
        self._take_key(self._t.worker_of_key, worker, row.key_id, key_id)
        self._t.workers.put(ALL, worker, replace(row, key_id=key_id, certificate=certificate))

    def seen_worker(self, worker: str, at: float) -> None:
        self._t.workers.put(ALL, worker, replace(self._worker(worker), last_seen_at=at))

    def revoke_worker(self, worker: str, at: float) -> None:
        row = self._worker(worker)
        self._t.workers.put(ALL, worker, replace(row, revoked_at=at if row.revoked_at is None else row.revoked_at))

    def put_revocations(self, row: ListRow) -> None:
        if self._t.revocations.get(row.authority, row.counter) is None:
            self._t.revocations.put(row.authority, row.counter, row)

    def drop_revocations(self, authority: str, counter: int, at: float) -> None:
        for number, row in self._t.revocations.rows(authority).items():
            if number < counter and row.next_update < at:
                self._t.revocations.drop(authority, number)

    def insert_authority(self, row: AuthorityRow) -> None:
        self._t.authorities.put(ALL, len(self._t.authorities.rows(ALL)) + 1, row)

    def insert_api_key(self, row: ApiKeyRow) -> None:
        self._unique(self._t.api_keys.get(ALL, row.key), f"API key {row.key} exists already.")
        self._t.api_keys.put(ALL, row.key, row)

    def revoke_api_key(self, key: str, at: float) -> None:
        row = self._existing(self._t.api_keys.get(ALL, key), f"API key {key}")
        self._t.api_keys.put(ALL, key, replace(row, revoked_at=at if row.revoked_at is None else row.revoked_at))

    def insert_login(self, row: LoginRow) -> None:
        self._unique(self._t.logins.get(ALL, row.login), f"Login {row.login} exists already.")
        self._t.logins.put(ALL, row.login, row)

    def drop_logins(self, logins: Iterable[str]) -> int:
        found = [login for login in logins if self._t.logins.get(ALL, login)]
        for login in found:
            self._t.logins.drop(ALL, login)
        return len(found)

    def put_waiting(self, rows: Iterable[WaitingRow]) -> None:
        for row in rows:
            self._device(row.device)
            old = self._t.waiting.get(ALL, row.device)
            self._t.waiting.put(ALL, row.device, row if old is None else replace(row, since=old.since))

    def drop_waiting(self, devices: Iterable[str]) -> None:
        for device in devices:
            self._t.waiting.drop(ALL, device)

    def drop_hold(self, device: str, expires: float) -> None:
        row = self._t.waiting.get(ALL, device)
        if row is not None and row.expires == expires:
            self._t.waiting.drop(ALL, device)

    def expire_waiting(self, now: float) -> int:
        expired = [device for device, row in self._t.waiting.rows(ALL).items() if row.expires <= now]
        self.drop_waiting(expired)
        return len(expired)

    def put_claims(self, claims: Iterable[ClaimRow]) -> None:
        for claim in self._of_runs(claims):
            self._unique(self._t.claims.get(ALL, claim.device), f"Device {claim.device} has a claim already.")
            self._device(claim.device)
            self._t.claims.put(ALL, claim.device, claim)
            self._t.claims_of_round.put((claim.run, claim.round), claim.device, claim)
            self._t.waiting.drop(ALL, claim.device)

    def drop_claims(self, run: str, round: int, devices: Iterable[str] | None = None) -> None:
        held = self._t.claims_of_round.rows((run, round))
        for device in list(held) if devices is None else devices:
            if device in held:
                self._t.claims.drop(ALL, device)
                self._t.claims_of_round.drop((run, round), device)

    def insert_checkpoint(self, row: CheckpointRow) -> None:
        self._unique(self._t.checkpoints.get(row.run, row.version), f"Run {row.run} has version {row.version} already.")
        self._unique(
            self._t.child_of.get(row.run, row.parent_version),
            f"Version {row.parent_version} of run {row.run} has a child already.",
        )
        self._run(row.run)
        if row.parent_version is not None:
            parent = self._t.checkpoints.get(row.run, row.parent_version)
            self._existing(parent, f"version {row.parent_version} of run {row.run}")
        self._t.checkpoints.put(row.run, row.version, row)
        self._t.child_of.put(row.run, row.parent_version, row.version)
        self._t.checkpoints_of_digest.put(row.digest, (row.run, row.version), True)

    def insert_contributions(self, rows: Iterable[ContributionRow]) -> None:
        for row in self._of_runs(rows):
            group = (row.run, row.round)
            counted = self._t.contributions.get(group, row.device)
            self._unique(counted, f"Device {row.device} has a contribution to round {row.round} already.")
            self._t.contributions.put(group, row.device, row)

    def put_round(self, row: RoundRow) -> None:
        self._run(row.run)
        old = self._t.rounds.get(row.run, row.round)
        if old is not None and old[0].status in TERMINAL and old[0].status != row.status:
            raise self._failed(Conflict(f"Round {row.round} of run {row.run} has ended; its status is final."))
        self._t.rounds.put(row.run, row.round, (replace(row, body={}), self._text(row.body)))

    def insert_refusals(self, rows: Iterable[RefusalRow]) -> None:
        for run, found in by_run(self._of_runs(rows)).items():
            record = self._run(run)
            count = record.row.refusals
            last = self._t.last_refusal.get(run, ALL)
            for number, row in enumerate(chain_refusals(run, last, count, found), count + 1):
                self._t.refusals.put((run, row.round), number, row)
                self._t.last_refusal.put(run, ALL, row.link)
            self._t.runs.put(ALL, run, replace(record, row=replace(record.row, refusals=count + len(found))))

    def insert_marks(self, rows: Iterable[MarkRow]) -> None:
        for row in self._of_runs(rows):
            if (before := self._t.marks.get(row.tensors, (row.device, row.run))) is None or row.outranks(before):
                self._t.marks.put(row.tensors, (row.device, row.run), row)

    def insert_audit(self, rows: Iterable[AuditRow]) -> None:
        head = self._existing(self.audit_head(), "head of the audit")
        found = self._require_names(rows)
        chained, head = chain_audit(head, found, self._audit_signer)
        for number, row in chained:
            self._t.audit.put(ALL, number, row)
        self._t.audit_head.put(ALL, ALL, head)

    def put_metrics(self, rows: Iterable[MetricRow]) -> None:
        for row in self._of_runs(rows):
            try:
                finite(row.value, row.name)
            except StoreError as error:
                raise self._failed(error) from None
            self._t.metrics.put(row.run, (row.version, row.source, row.name), row)

    def _take_key(self, keys: Layer[str, str, str], holder: str, old: str | None, new: str | None) -> None:
        """Puts the new key in the place of the holder's old one. Conflict when another holder has it."""
        if new is not None:
            taken = keys.get(ALL, new)
            self._unique(taken if taken != holder else None, "Another one with this key exists already.")
        if old is not None:
            keys.drop(ALL, old)
        if new is not None:
            keys.put(ALL, new, holder)

    def _of_runs(self, rows: Iterable[OfRun]) -> list[OfRun]:
        """The rows as a list. StoreError when a run that they name does not exist."""
        found = list(rows)
        for run in {row.run for row in found}:
            self._run(run)
        return found

    def _run(self, run: str) -> RunRecord:
        return self._existing(self._t.runs.get(ALL, run), f"run {run}")

    def _device(self, device: str) -> DeviceRow:
        return self._existing(self._t.devices.get(ALL, device), f"device {device}")

    def _worker(self, worker: str) -> WorkerRow:
        return self._existing(self._t.workers.get(ALL, worker), f"worker {worker}")

    def _existing(self, row: T | None, what: str) -> T:
        if row is None:
            raise self._failed(StoreError(f"The store has no {what}."))
        return row

    def _unique(self, row: object | None, message: str) -> None:
        if row is not None:
            raise self._failed(Conflict(message))

    def _text(self, body: Json) -> str:
        try:
            return to_text(body)
        except StoreError as error:
            raise self._failed(error) from None

    def _failed(self, error: StoreError) -> StoreError:
        self._void = True
        return error


class MemoryStore(MemoryReads):
    """The Store port in memory. ``lock_timeout_s``: to wait for another one; ``audit_signer``: as in ``open_store``."""

    def __init__(self, *, lock_timeout_s: float = 30.0, audit_signer: Signer | None = None) -> None:
        super().__init__(Tables(), threading.RLock())
        self._audit_signer = audit_signer
        self._writing = threading.Lock()
        self._writer: int | None = None
        self._lock_timeout_s = lock_timeout_s

    @contextmanager
    def transaction(self, run: str | None = None) -> Iterator[MemoryTransaction]:
        """Opens a writing transaction; all runs share one lock. StoreError as in the port."""
        if self._writer == threading.get_ident():
            raise StoreError("This thread has a transaction open already.")
        if not self._writing.acquire(timeout=self._lock_timeout_s):
            raise StoreError(f"The store was locked for {self._lock_timeout_s:g} s by another transaction.")
        self._writer = threading.get_ident()
        try:
            transaction = MemoryTransaction(self._t, self._guard, self._audit_signer)
            yield transaction
            transaction.commit()
        finally:
            self._writer = None
            self._writing.release()

    @contextmanager
    def reading(self) -> Iterator[MemoryReads]:
        """Opens a transaction that only reads: commits wait for its end."""
        with self._guard:
            yield self

    def close(self) -> None:
        """Deletes nothing: a restarted coordinator finds the rows here."""
