"""Every read of the memory store, over committed rows or over a transaction's view of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from heapq import nsmallest

from coordinator.store.bodies import beginning_of, from_text
from coordinator.store.flower_memory import MemoryFlowerReads
from coordinator.store.insight_memory import MemoryInsightReads
from coordinator.store.memory_tables import ALL
from coordinator.store.messages_memory import MemoryMessageReads
from coordinator.store.port import (
    ApiKeyRow,
    AuditHeadRow,
    AuditRow,
    AuthorityRow,
    CheckpointRow,
    ClaimRow,
    ContributionRow,
    DeviceRow,
    EventRow,
    Json,
    MarkRow,
    MetricRow,
    RefusalRow,
    RoundRow,
    RunRow,
    WaitingRow,
    WorkerRow,
)
from coordinator.store.rows import LoginRow


class MemoryReads(MemoryInsightReads, MemoryMessageReads, MemoryFlowerReads):
    """The Reader port over ``tables``. ``guard`` excludes commits during a read."""

    def run(self, run: str) -> RunRow | None:
        with self._guard:
            record = self._t.runs.get(ALL, run)
        return None if record is None else record.whole()

    def runs(self) -> list[RunRow]:
        with self._guard:
            records = self._t.runs.rows(ALL)
        return sorted((record.whole() for record in records.values()), key=lambda row: (row.created_at, row.run))

    def run_ids(self) -> list[str]:
        return [row.run for row in self.runs()]

    def head(self, run: str) -> int:
        with self._guard:
            record = self._t.runs.get(ALL, run)
        return 0 if record is None else record.row.seq

    def events(self, run: str, after: int, limit: int = 1000) -> list[EventRow]:
        found = []
        with self._guard:
            last = self.head(run)
            for seq in range(max(after, 0) + 1, min(max(after, 0) + limit, last) + 1):
                event = self._t.events.get(run, seq)
                if event is not None:
                    found.append((seq, event))
        return [
            EventRow(seq=seq, at=at, kind=kind, body=from_text(body), link=link)
            for seq, (at, kind, body, link) in found
        ]

    def find_event(self, run: str, kind: str, beginning: Json) -> EventRow | None:
        text = beginning_of(beginning)
        with self._guard:
            found = (
                EventRow(seq=seq, at=at, kind=kind, body=from_text(body), link=link)
                for seq, (at, of_kind, body, link) in sorted(self._t.events.rows(run).items())
                if of_kind == kind and body.startswith(text)
            )
            return next(found, None)

    def device(self, device: str) -> DeviceRow | None:
        with self._guard:
            return self._t.devices.get(ALL, device)

    def device_by_key(self, key_id: str) -> DeviceRow | None:
        with self._guard:
            device = self._t.device_of_key.get(ALL, key_id)
            return None if device is None else self._t.devices.get(ALL, device)

    def devices_by_keys(self, key_ids: Collection[str]) -> list[DeviceRow]:
        found = (self.device_by_key(key_id) for key_id in set(key_ids))
        return [row for row in found if row is not None]

    def devices(self, limit: int = 1000, after: str = "") -> list[DeviceRow]:
        with self._guard:
            rows = self._t.devices.rows(ALL)
        return [rows[device] for device in nsmallest(limit, (device for device in rows if device > after))]

    def idle(self, since: float, now: float) -> list[DeviceRow]:
        with self._guard:
            busy = self._t.claims.rows(ALL).keys() | {
                device for device, row in self._t.waiting.rows(ALL).items() if row.expires > now
            }
        return [row for row in self._checked_in(since) if row.left_at is None and row.device not in busy]

    def taking_turns(self, since: float) -> list[DeviceRow]:
        return [row for row in self._checked_in(since) if "turns" in str(row.facts.get("processes"))]

    def _checked_in(self, since: float) -> list[DeviceRow]:
        with self._guard:
            rows = self._t.devices.rows(ALL)
        return [row for _, row in sorted(rows.items()) if row.last_seen_at is not None and row.last_seen_at >= since]

    def registered_devices(self) -> int:
        with self._guard:
            return sum(row.left_at is None for row in self._t.devices.rows(ALL).values())

    def worker(self, worker: str) -> WorkerRow | None:
        with self._guard:
            return self._t.workers.get(ALL, worker)

    def worker_by_key(self, key_id: str) -> WorkerRow | None:
        with self._guard:
            worker = self._t.worker_of_key.get(ALL, key_id)
            return None if worker is None else self._t.workers.get(ALL, worker)

    def workers(self) -> list[WorkerRow]:
        with self._guard:
            return [row for _, row in sorted(self._t.workers.rows(ALL).items())]

    def revocations(self, authority: str) -> bytes | None:
        with self._guard:
            rows = self._t.revocations.rows(authority)
        return rows[max(rows)].encoded if rows else None

    def revocation_list(self, digest: str) -> bytes | None:
        with self._guard:
            table = self._t.revocations
            rows = (row for authority in table.groups() for row in table.rows(authority).values())
            return next((row.encoded for row in rows if row.digest == digest), None)

    def authorities(self) -> list[AuthorityRow]:
        with self._guard:
            return [row for _, row in sorted(self._t.authorities.rows(ALL).items())]

    def api_key(self, key: str) -> ApiKeyRow | None:
        with self._guard:
            return self._t.api_keys.get(ALL, key)

    def api_keys(self) -> list[ApiKeyRow]:
        with self._guard:
            return [row for _, row in sorted(self._t.api_keys.rows(ALL).items())]

    def login(self, login: str) -> LoginRow | None:
        with self._guard:
            return self._t.logins.get(ALL, login)

    def logins(self) -> list[LoginRow]:
        with self._guard:
            rows = self._t.logins.rows(ALL).values()
        return sorted(rows, key=lambda row: (row.created_at, row.login))

    def waiting(self, now: float, among: Collection[str] | None = None) -> list[WaitingRow]:
        with self._guard:
            claimed = self._t.claims.rows(ALL)
            rows = self._t.waiting.rows(ALL)
        named = sorted(rows if among is None else rows.keys() & set(among))
        return [rows[device] for device in named if rows[device].expires > now and device not in claimed]

    def waiting_by_offer(self, now: float) -> dict[str, int]:
        return dict(Counter(row.offer for row in self.waiting(now)))

    def claim(self, device: str) -> ClaimRow | None:
        with self._guard:
            return self._t.claims.get(ALL, device)

    def claims(self, run: str | None = None) -> list[ClaimRow]:
        with self._guard:
            rows = self._t.claims.rows(ALL)
        return [claim for _, claim in sorted(rows.items()) if run is None or claim.run == run]

    def checkpoints(self, run: str) -> list[CheckpointRow]:
        with self._guard:
            return [row for _, row in sorted(self._t.checkpoints.rows(run).items())]

    def checkpoint(self, run: str, version: int) -> CheckpointRow | None:
        with self._guard:
            return self._t.checkpoints.get(run, version)

    def runs_with_checkpoint(self, digest: str) -> list[str]:
        with self._guard:
            return sorted({run for run, _ in self._t.checkpoints_of_digest.rows(digest)})

    def contributions(self, run: str, round: int) -> list[ContributionRow]:
        with self._guard:
            return [row for _, row in sorted(self._t.contributions.rows((run, round)).items())]

    def contribution(self, run: str, round: int, device: str) -> ContributionRow | None:
        with self._guard:
            return self._t.contributions.get((run, round), device)

    def round(self, run: str, round: int) -> RoundRow | None:
        with self._guard:
            found = self._t.rounds.get(run, round)
        return None if found is None else replace(found[0], body=from_text(found[1]))

    def rounds(self, run: str, after: int = 0, limit: int = 10_000) -> list[RoundRow]:
        with self._guard:
            rows = self._t.rounds.rows(run)
        first = nsmallest(limit, (number for number in rows if number > after))
        return [replace(rows[number][0], body=from_text(rows[number][1])) for number in first]

    def refusals(self, run: str, round: int) -> list[RefusalRow]:
        with self._guard:
            return [row for _, row in sorted(self._t.refusals.rows((run, round)).items())]

    def refusals_in_order(self, run: str) -> list[RefusalRow]:
        with self._guard:
            groups = [group for group in self._t.refusals.groups() if group[0] == run]
            found = {number: row for group in groups for number, row in self._t.refusals.rows(group).items()}
        return [row for _, row in sorted(found.items())]

    def audit(self, run: str) -> list[AuditRow]:
        with self._guard:
            rows = sorted(self._t.audit.rows(ALL).items())
        return [row for _, row in rows if row.run == run]

    def audit_of_all(self, after: int, limit: int) -> list[tuple[int, AuditRow]]:
        with self._guard:
            rows = self._t.audit.rows(ALL)
        return [(number, rows[number]) for number in nsmallest(limit, (number for number in rows if number > after))]

    def audit_head(self) -> AuditHeadRow | None:
        with self._guard:
            return self._t.audit_head.get(ALL, ALL)

    def metrics(self, run: str) -> list[MetricRow]:
        with self._guard:
            return [row for _, row in sorted(self._t.metrics.rows(run).items())]

    def marks(self, tensors: str) -> list[MarkRow]:
        with self._guard:
            return [row for _, row in sorted(self._t.marks.rows(tensors).items())]

    def marked_devices(self, tensors: str, kinds: Collection[str]) -> int:
        with self._guard:
            rows = self._t.devices.rows(ALL)
            marked = {mark.device for mark in self.marks(tensors) if mark.kind in kinds}
        return sum(device in rows and rows[device].left_at is None for device in marked)

    def marks_of_run(self, run: str) -> list[MarkRow]:
        with self._guard:
            groups = sorted(self._t.marks.groups())
            return [row for group in groups for row in self.marks(group) if row.run == run]

    def runs_named(self) -> list[str]:
        """A row whose run is gone cannot be here."""
        with self._guard:
            return sorted(self._t.runs.rows(ALL))

    def rows_by_round(self, run: str) -> dict[str, dict[int, int]]:
        with self._guard:
            contributions, refusals = self._t.contributions, self._t.refusals
            counted = {group[1]: len(contributions.rows(group)) for group in contributions.groups() if group[0] == run}
            refused = {group[1]: len(refusals.rows(group)) for group in refusals.groups() if group[0] == run}
            rounds = dict.fromkeys(self._t.rounds.rows(run), 1)
        return {"rounds": rounds, "contributions": counted, "refusals": refused}
