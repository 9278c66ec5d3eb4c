"""The rows that a run's log gives: what ``records.write`` writes for its effects, in dicts instead of a database."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.store.port import (
    AuditRow,
    CheckpointRow,
    ClaimRow,
    ContributionRow,
    MarkRow,
    MetricRow,
    RefusalRow,
    RoundRow,
    RunRow,
)

MetricKey = tuple[int, str, str]
"""(version, source, name)."""


class ExpectedRows:
    """The ``RowWriter`` of a replay."""

    def __init__(self, row: RunRow) -> None:
        first = CheckpointRow(
            run=row.run,
            version=0,
            digest=row.init,
            parent_version=None,
            round=None,
            origin=row.origin,
            bytes=0,
            optimizer=None,
            created_at=row.created_at,
        )
        self.round_number = 0
        """The round in which the events that are written now happened."""
        self.checkpoints = [first]
        """The size of the first is in no event."""
        self.rounds: dict[int, RoundRow] = {}
        self.contributions: dict[int, list[ContributionRow]] = {}
        self.refusals: dict[int, list[RefusalRow]] = {}
        self.claims: dict[str, ClaimRow] = {}
        self.audit: list[tuple[int, AuditRow]] = []
        """(round, row)."""
        self.marks: dict[tuple[str, str], MarkRow] = {}
        """(tensors, device) -> the first."""
        self.metrics: dict[MetricKey, tuple[int, MetricRow]] = {}
        """(round, row) of the latest value."""

    def put_claims(self, claims: Iterable[ClaimRow]) -> None:
        self.claims.update((claim.device, claim) for claim in claims)

    def drop_claims(self, run: str, round: int, devices: Iterable[str] | None = None) -> None:
        for device in list(self.claims) if devices is None else devices:
            if device in self.claims and self.claims[device].round == round:
                del self.claims[device]

    def insert_checkpoint(self, row: CheckpointRow) -> None:
        self.checkpoints.append(row)

    def insert_contributions(self, rows: Iterable[ContributionRow]) -> None:
        for row in rows:
            self.contributions.setdefault(row.round, []).append(row)

    def put_round(self, row: RoundRow) -> None:
        self.rounds[row.round] = row

    def insert_refusals(self, rows: Iterable[RefusalRow]) -> None:
        for row in rows:
            self.refusals.setdefault(row.round, []).append(row)

    def insert_marks(self, rows: Iterable[MarkRow]) -> None:
        for row in rows:
            before = self.marks.get((row.tensors, row.device))
            if before is None or row.outranks(before):
                self.marks[row.tensors, row.device] = row

    def insert_audit(self, rows: Iterable[AuditRow]) -> None:
        self.audit += [(self.round_number, row) for row in rows]

    def put_metrics(self, rows: Iterable[MetricRow]) -> None:
        self.metrics.update(((row.version, row.source, row.name), (self.round_number, row)) for row in rows)
