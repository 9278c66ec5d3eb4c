"""Records become rows: what is written together, and what must not be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast
from unittest.mock import Mock

from coordinator.engine import effects as fx
from coordinator.runtime import records
from coordinator.store.port import Store, Transaction
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.store import rows


def claimed(round: int, *devices: str) -> fx.Claim:
    return fx.Claim(round=round, attempt=0, devices=devices, until=60.0)


def released(round: int, *devices: str) -> fx.Release:
    return fx.Release(round=round, devices=devices)


def test_a_device_released_from_one_round_keeps_its_claim_of_the_next(make_world: MakeWorld) -> None:
    """All in one transaction: d1 reports for round 1 and is drawn for round 2, in which d2 withdraws."""
    store: Store = make_world(0).store
    happened: list[fx.Record] = [
        claimed(1, "d1", "d2"),
        released(1, "d1"),
        released(1, "d2"),
        claimed(2, "d1", "d2", "d3"),
        released(2, "d2"),
    ]
    with store.transaction() as tx:
        rows.world(tx)
        records.write(tx, "r1", [(1.0, record) for record in happened])
    assert [(claim.device, claim.round) for claim in store.claims()] == [("d1", 2), ("d3", 2)]


def test_the_pool_is_held_before_claims_are_locked() -> None:
    """Else this transaction and a check-in could wait for each other on PostgreSQL."""
    checkpoint = fx.RecordCheckpoint(
        version=1, digest="a" * 64, parent=0, round=1, bytes=1, named_tensors={}, contributions=()
    )
    for last in (claimed(2, "d1"), checkpoint):
        calls = Mock()
        records.write(calls, "r1", [(1.0, released(1, "d1")), (1.0, last)])
        assert [call[0] for call in calls.method_calls][:2] == ["hold_pool", "drop_claims"]


def test_releases_that_follow_one_another_are_one_deletion() -> None:
    dropped: list[tuple[int, list[str]]] = []

    class Deletions:
        def drop_claims(self, run: str, round: int, devices: Iterable[str] | None = None) -> None:
            dropped.append((round, list(devices or ())))

    happened = [released(1, "a"), released(1, "b", "c"), released(2, "a"), released(2, "d")]
    records.write(cast("Transaction", Deletions()), "r1", [(1.0, record) for record in happened])
    assert dropped == [(1, ["a", "b", "c"]), (2, ["a", "d"])]
