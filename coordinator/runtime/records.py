"""Writes the engine's records as rows of the store, inside the transaction that appends their event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeGuard, assert_never, get_args

from client_sdk.protocol.names import copied
from coordinator.engine import effects as fx
from coordinator.store.port import (
    AuditRow,
    CheckpointRow,
    ClaimRow,
    ContributionRow,
    DebitRow,
    MarkRow,
    MetricRow,
    Reader,
    RefusalRow,
    RoundRow,
    Transaction,
)

RECORDS = get_args(fx.Record)


def write(tx: Transaction, run: str, records: Sequence[tuple[float, fx.Record]]) -> None:
    """Writes (at, record) in order. Releases that follow one another are written as one, and so are refusals. The audit
    comes last, since all runs share its lock."""
    audit: list[AuditRow] = []
    released: list[str] = []
    refusals: list[RefusalRow] = []
    marks: list[MarkRow] = []
    rounds: dict[int, RoundRow] = {}
    if any(isinstance(record, fx.Claim | fx.RecordCheckpoint) for _, record in records):
        tx.hold_pool()  # before claims are locked
    for position, (at, record) in enumerate(records):
        match record:
            case fx.Release(round=round_number, devices=devices):
                if devices is None:
                    tx.drop_claims(run, round_number)
                    continue
                released += devices
                following = records[position + 1][1] if position + 1 < len(records) else None
                if not (
                    isinstance(following, fx.Release)
                    and following.round == round_number
                    and following.devices is not None
                ):
                    tx.drop_claims(run, round_number, released)
                    released = []
            case fx.Claim():
                tx.put_claims(
                    ClaimRow(device=device, run=run, round=record.round, attempt=record.attempt, until=record.until)
                    for device in record.devices
                )
            case fx.RecordRound():
                rounds[record.round] = RoundRow(run=run, **_fields(record))
                if record.status != "open":
                    tx.put_round(rounds.pop(record.round))
            case fx.RecordCheckpoint():
                _checkpoint(tx, run, at, record)
            case fx.RecordRefusal():
                refusals.append(RefusalRow(run=run, at=at, **_fields(record)))
            case fx.RecordMark():
                marks.append(MarkRow(run=run, **_fields(record)))
            case fx.RecordDebit():
                debit = {**_fields(record), "devices": len(record.devices)}
                tx.debit_privacy(DebitRow(run=run, at=at, most=0.0, **debit), record.devices)
            case fx.RecordAudit():
                audit.append(AuditRow(run=run, at=at, **_fields(record)))
            case fx.RecordMetrics():
                tx.put_metrics(
                    copied(MetricRow, record, run=run, name=name, value=value, at=at)
                    for name, value in record.metrics.items()
                )
            case _:
                assert_never(record)
    for row in rounds.values():
        tx.put_round(row)
    if refusals:
        tx.insert_refusals(refusals)
    if marks:
        tx.insert_marks(marks)
    if audit:
        tx.insert_audit(audit)


def without_counted(
    tx: Reader, run: str, records: Sequence[tuple[float, fx.Record]]
) -> Sequence[tuple[float, fx.Record]]:
    """The records without late refusals of bytes that count, in the store or by these records: the same bytes were sent
    twice, and the second request waited for the lock while the first one was counted and the round ended."""
    late = {record.round for _, record in records if _is_late_copy(record)}
    if not late:
        return records
    counted = {(number, row.device, row.digest) for number in late for row in tx.contributions(run, number)}
    for _, record in records:
        if isinstance(record, fx.RecordCheckpoint):
            counted |= {(record.round, item.device, item.digest) for item in record.contributions}
    return [
        (at, record)
        for at, record in records
        if not (_is_late_copy(record) and (record.round, record.device, record.digest) in counted)
    ]


def _is_late_copy(record: fx.Record) -> TypeGuard[fx.RecordRefusal]:
    return isinstance(record, fx.RecordRefusal) and record.kind == "late" and record.digest is not None


def _fields(record: fx.Record) -> dict[str, Any]:
    """The fields of a record whose row has them by the same names."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _checkpoint(tx: Transaction, run: str, at: float, record: fx.RecordCheckpoint) -> None:
    tx.insert_checkpoint(
        copied(
            CheckpointRow,
            record,
            run=run,
            parent_version=record.parent,
            origin=record.origin or f"round {record.round}",
            named_tensors=dict(record.named_tensors),
            created_at=at,
        )
    )
    tx.insert_contributions(
        ContributionRow(
            run=run,
            round=record.round,
            device=item.device,
            digest=item.digest,
            weight=item.weight,
            version=record.version,
        )
        for item in record.contributions
    )
