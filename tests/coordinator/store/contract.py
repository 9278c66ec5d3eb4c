"""What every store must do. Subclassed once for each implementation, which gives a fixture ``store``: an empty store.

Runs and what becomes of them are here; devices and workers in ``contract_fleet``; transactions (all or nothing,
isolation, locks) in ``contract_transactions``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.store.port import Conflict, EventRow, FenceLost, Store, StoreError, Transaction
from tests.coordinator.store import rows
from tests.coordinator.store.contract_access import AccessContract
from tests.coordinator.store.contract_audit import AuditContract
from tests.coordinator.store.contract_chains import ChainContract
from tests.coordinator.store.contract_fleet import FleetContract
from tests.coordinator.store.contract_flower import FlowerContract
from tests.coordinator.store.contract_insight import InsightContract
from tests.coordinator.store.contract_privacy import PrivacyContract
from tests.coordinator.store.contract_secure import SecureContract
from tests.coordinator.store.contract_transactions import TransactionContract


class StoreContract(
    FleetContract, TransactionContract, ChainContract, AuditContract, AccessContract, SecureContract, InsightContract,
    FlowerContract, PrivacyContract,
):  # fmt: skip
    def test_an_empty_store_knows_nothing(self, store: Store) -> None:
        assert store.run("r1") is None
        assert store.runs() == []
        assert store.head("r1") == 0
        assert store.events("r1", 0) == []
        assert store.device("d1") is None
        assert store.device_by_key("key of d1") is None
        assert store.devices() == []
        assert store.worker("w1") is None
        assert store.worker_by_key("key of w1") is None
        assert store.workers() == []
        assert store.api_key("k1") is None
        assert store.api_keys() == []
        assert store.waiting(0) == []
        assert (store.places(), store.claimed(), store.pool_changes(0), store.last_pool_change()) == (
            [],
            set(),
            (0, []),
            0,
        )
        assert store.claim("d1") is None
        assert store.claims() == []
        assert store.claims("r1") == []
        assert store.checkpoints("r1") == []
        assert store.checkpoint("r1", 0) is None
        assert store.runs_with_checkpoint("0" * 64) == []
        assert store.contributions("r1", 1) == []
        assert store.round("r1", 1) is None
        assert store.rounds("r1") == []
        assert store.refusals("r1", 1) == []
        assert store.audit("r1") == []
        assert store.audit_of_all(0, 10) == []
        assert store.metrics("r1") == []

    # Runs, events, snapshot, fence

    def test_a_run_comes_back_as_it_was(self, store: Store) -> None:
        row = rows.run(
            "r1", seq=4, fence=2, snapshot_seq=3, snapshot={"phase": "idle", "deep": {"list": [1, 2.5, None, True]}}
        )
        with store.transaction() as tx:
            tx.insert_run(row)
            assert tx.run("r1") == row
        assert store.run("r1") == row

    def test_runs_are_listed_oldest_first(self, store: Store) -> None:
        with store.transaction() as tx:
            for name, at in (("b", 3.0), ("c", 1.0), ("a", 2.0), ("aa", 3.0)):
                tx.insert_run(rows.run(name, created_at=at))
            assert [row.run for row in tx.runs()] == ["c", "a", "aa", "b"]
            assert tx.run_ids() == ["c", "a", "aa", "b"]
        assert [row.run for row in store.runs()] == ["c", "a", "aa", "b"]
        assert store.run_ids() == ["c", "a", "aa", "b"]

    def test_a_run_id_is_taken_once(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1", name="first"))
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.insert_run(rows.run("r1", name="second"))
        found = store.run("r1")
        assert found is not None
        assert found.name == "first"

    def test_events_are_numbered_per_run_and_read_in_pages(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx, runs=2)
        with store.transaction("r1") as tx:
            assert tx.append("r1", [(1.5, "opened", {"n": 1}), (2.0, "reported", {"n": 2, "ratio": 0.1})]).seq == 2
            assert tx.head("r1") == 2
            assert tx.append("r1", [(3.0, "reported", {"n": 3})]).seq == 3
            assert tx.append("r1", []).seq == 3
            assert [event.seq for event in tx.events("r1", 0)] == [1, 2, 3]
        with store.transaction("r2") as tx:
            assert tx.append("r2", [(4.0, "opened", {})]).seq == 1
        assert store.head("r1") == 3
        assert store.head("r2") == 1
        assert store.run("r1").seq == 3  # type: ignore[union-attr]
        assert store.events("r1", 0) == [
            EventRow(seq=1, at=1.5, kind="opened", body={"n": 1}),
            EventRow(seq=2, at=2.0, kind="reported", body={"n": 2, "ratio": 0.1}),
            EventRow(seq=3, at=3.0, kind="reported", body={"n": 3}),
        ]
        assert [event.seq for event in store.events("r1", 1, limit=1)] == [2]
        assert [event.seq for event in store.events("r1", 2)] == [3]
        assert store.events("r1", 3) == []
        assert [event.kind for event in store.events("r2", 0)] == ["opened"]

    def test_bodies_come_back_as_json_and_are_not_shared(self, store: Store) -> None:
        body: dict[str, object] = {
            "pair": (1, 2),
            "text": "naïve \u2028 ☃",
            "big": 2**80,
            "exact": 0.1 + 0.2,
            "none": None,
        }
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.append("r1", [(1.0, "k", body)])
            body["text"] = "changed afterwards"
        read = store.events("r1", 0)[0].body
        assert read == {"pair": [1, 2], "text": "naïve \u2028 ☃", "big": 2**80, "exact": 0.1 + 0.2, "none": None}
        read["pair"] = "changed by a reader"
        assert store.events("r1", 0)[0].body["pair"] == [1, 2]

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}])
    def test_a_body_that_is_no_json_is_refused(self, store: Store, value: object) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
        with pytest.raises(StoreError, match="JSON"), store.transaction("r1") as tx:
            tx.append("r1", [(1.0, "k", {"value": value})])
        assert store.events("r1", 0) == []

    def test_events_of_an_unknown_run_are_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match="nowhere"), store.transaction("nowhere") as tx:
            tx.append("nowhere", [(1.0, "k", {})])

    def test_a_snapshot_replaces_the_last_one(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.append("r1", [(1.0, "k", {})] * 5)
            tx.snapshot("r1", 3, {"state": 3})
        with store.transaction("r1") as tx:
            tx.snapshot("r1", 5, {"state": 5})
        found = store.run("r1")
        assert found is not None
        assert (found.snapshot_seq, found.snapshot, found.seq) == (5, {"state": 5}, 5)

    def test_only_the_newest_fence_commits(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
        with store.transaction("r1") as tx:
            first = tx.raise_fence("r1")
            tx.require_fence("r1", first)
        with store.transaction("r1") as tx:
            second = tx.raise_fence("r1")
        assert second == first + 1
        with pytest.raises(FenceLost), store.transaction("r1") as tx:  # noqa: PT012
            tx.insert_checkpoint(rows.checkpoint(0))
            tx.require_fence("r1", first)
        assert store.checkpoints("r1") == []
        with store.transaction("r1") as tx:
            tx.require_fence("r1", second)
            tx.insert_checkpoint(rows.checkpoint(0))
        assert len(store.checkpoints("r1")) == 1

    # Checkpoints, contributions, rounds

    def test_the_line_of_a_run(self, store: Store) -> None:
        line = [
            rows.checkpoint(version, named_tensors={"server-optimizer": "o" * 64} if version else {})
            for version in range(3)
        ]
        with store.transaction() as tx:
            rows.world(tx, runs=2)
            for row in line:
                tx.insert_checkpoint(row)
            assert tx.checkpoints("r1") == line
            tx.insert_checkpoint(rows.checkpoint(0, run="r2"))
            tx.insert_checkpoint(rows.checkpoint(1, run="r2", digest=rows.checkpoint(0).digest))
        assert store.checkpoints("r1") == line
        assert store.checkpoint("r1", 2) == line[2]
        assert store.checkpoint("r1", 3) is None
        assert [row.version for row in store.checkpoints("r2")] == [0, 1]
        assert store.runs_with_checkpoint(line[0].digest) == ["r1", "r2"]
        assert store.runs_with_checkpoint(line[1].digest) == ["r1"]
        assert store.runs_with_checkpoint("f" * 64) == []

    @pytest.mark.parametrize(
        ("version", "parent"),
        [(1, 1), (2, 0), (2, None), (1, 0)],
        ids=["version taken", "parent has a child", "second root", "both"],
    )
    def test_the_line_does_not_fork(self, store: Store, version: int, parent: int | None) -> None:
        with store.transaction() as tx:
            rows.world(tx)
            tx.insert_checkpoint(rows.checkpoint(0))
            tx.insert_checkpoint(rows.checkpoint(1))
        with pytest.raises(Conflict), store.transaction("r1") as tx:
            tx.insert_checkpoint(rows.checkpoint(version, parent_version=parent, digest="f" * 64))
        assert [row.version for row in store.checkpoints("r1")] == [0, 1]
        assert store.runs_with_checkpoint("f" * 64) == []

    def test_the_line_has_no_gap(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
            tx.insert_checkpoint(rows.checkpoint(0))
        with pytest.raises(StoreError), store.transaction("r1") as tx:
            tx.insert_checkpoint(rows.checkpoint(2, parent_version=1))
        assert [row.version for row in store.checkpoints("r1")] == [0]

    def test_contributions_are_listed_by_device(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
            tx.insert_contributions(
                [rows.contribution("d2"), rows.contribution("d1", weight=2**40), rows.contribution("d1", round=2)]
            )
            assert len(tx.contributions("r1", 1)) == 2
        assert store.contributions("r1", 1) == [rows.contribution("d1", weight=2**40), rows.contribution("d2")]
        assert store.contributions("r1", 2) == [rows.contribution("d1", round=2)]
        assert store.contribution("r1", 1, "d1") == rows.contribution("d1", weight=2**40)
        assert store.contribution("r1", 2, "d1") == rows.contribution("d1", round=2)
        assert store.contribution("r1", 2, "d2") is None

    def test_a_device_counts_once_in_a_round(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
            tx.insert_contributions([rows.contribution("d1")])
        with pytest.raises(Conflict), store.transaction("r1") as tx:
            tx.insert_contributions([rows.contribution("d2"), rows.contribution("d1", digest="another update")])
        with pytest.raises(Conflict), store.transaction("r1") as tx:
            tx.insert_contributions([rows.contribution("d3"), rows.contribution("d3")])
        assert store.contributions("r1", 1) == [rows.contribution("d1")]

    def test_a_round_is_replaced_as_it_proceeds(self, store: Store) -> None:
        done = rows.round_(
            1, attempt=1, status="committed", reason="goal", collecting_at=41.5, closed_at=50.0, body={"version": 1}
        )
        with store.transaction() as tx:
            rows.world(tx)
            tx.put_round(rows.round_(1))
            assert tx.round("r1", 1) == rows.round_(1)
        with store.transaction("r1") as tx:
            tx.put_round(rows.round_(1, collecting_at=41.5))
        with store.transaction("r1") as tx:
            tx.put_round(done)
        assert store.round("r1", 1) == done
        assert store.rounds("r1") == [done]

    @pytest.mark.parametrize("end", ["committed", "abandoned"])
    def test_a_round_ends_once(self, store: Store, end: str) -> None:
        other = {"committed": "abandoned", "abandoned": "committed"}[end]
        with store.transaction() as tx:
            rows.world(tx)
            tx.put_round(rows.round_(1, status=end))
        for status in (other, "open"):
            with pytest.raises(Conflict), store.transaction("r1") as tx:
                tx.put_round(rows.round_(1, status=status))
        assert store.round("r1", 1) == rows.round_(1, status=end)
        with store.transaction("r1") as tx:
            tx.put_round(rows.round_(1, status=end, body={"metrics": {"accuracy": 0.5}}))
        assert store.round("r1", 1) == rows.round_(1, status=end, body={"metrics": {"accuracy": 0.5}}), (
            "its record may grow"
        )

    def test_rounds_are_paged(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx, runs=2)
            for number in (3, 1, 12, 2, 20):
                tx.put_round(rows.round_(number))
            tx.put_round(rows.round_(1, run="r2"))
        assert [row.round for row in store.rounds("r1")] == [1, 2, 3, 12, 20]
        assert [row.round for row in store.rounds("r1", after=2, limit=2)] == [3, 12]
        assert store.rounds("r1", after=20) == []

    def test_refusals_keep_their_order(self, store: Store) -> None:
        listed = [rows.refusal("d2"), rows.refusal("d1", digest="x" * 64), rows.refusal("d2", kind="duplicate")]
        with store.transaction() as tx:
            rows.world(tx)
            tx.insert_refusals(listed[:2])
        with store.transaction("r1") as tx:
            tx.insert_refusals([*listed[2:], rows.refusal("d3", round=2)])
        assert store.refusals("r1", 1) == listed
        assert store.refusals("r1", 2) == [rows.refusal("d3", round=2)]
        assert store.refusals_of("r1", 1, "d2") == [listed[0], listed[2]]
        assert store.refusals_of("r1", 2, "d2") == store.refusals_of("r2", 1, "d2") == []

    def test_an_audit_keeps_its_order_and_everything_in_it(self, store: Store) -> None:
        listed = [rows.audit("olga"), rows.audit("otto", at=1.0), rows.audit("olga")]
        with store.transaction() as tx:
            rows.world(tx)
            tx.insert_audit(listed[:1])
        with store.transaction("r1") as tx:
            tx.insert_audit(listed[1:])
            assert tx.audit("r1") == listed
        assert store.audit("r1") == listed
        assert store.audit("r2") == []

    def test_a_metric_is_replaced_by_its_key(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
            tx.put_metrics(
                [rows.metric("loss", value=2.0), rows.metric("accuracy"), rows.metric("accuracy", source="devices")]
            )
        with store.transaction() as tx:
            tx.put_metrics([rows.metric("loss", value=0.1, examples=5, at=99.0), rows.metric("loss", version=0)])
        assert store.metrics("r1") == [
            rows.metric("loss", version=0),
            rows.metric("accuracy", source="devices"),
            rows.metric("accuracy"),
            rows.metric("loss", value=0.1, examples=5, at=99.0),
        ]

    @pytest.mark.parametrize("value", [float("nan"), float("-inf")])
    def test_a_metric_is_a_finite_number(self, store: Store, value: float) -> None:
        with store.transaction() as tx:
            rows.world(tx)
        with pytest.raises(StoreError, match="finite"), store.transaction() as tx:
            tx.put_metrics([rows.metric("loss", value=value)])

    def test_rows_of_an_unknown_run_are_refused(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
        writes: list[Callable[[Transaction], object]] = [
            lambda tx: tx.put_round(rows.round_(1, run="nowhere")),
            lambda tx: tx.insert_checkpoint(rows.checkpoint(0, run="nowhere")),
            lambda tx: tx.insert_contributions([rows.contribution("d1", run="nowhere")]),
            lambda tx: tx.insert_refusals([rows.refusal("d1", run="nowhere")]),
            lambda tx: tx.insert_audit([rows.audit(run="nowhere")]),
            lambda tx: tx.put_metrics([rows.metric("loss", run="nowhere")]),
            lambda tx: tx.put_claims([rows.claim("d1", run="nowhere")]),
            lambda tx: tx.snapshot("nowhere", 1, {}),
            lambda tx: tx.raise_fence("nowhere"),
            lambda tx: tx.require_fence("nowhere", 0),
        ]
        for write in writes:
            with pytest.raises(StoreError), store.transaction() as tx:
                write(tx)

    def test_empty_lists_are_fine(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
            tx.put_waiting([])
            tx.drop_waiting([])
            tx.put_claims([])
            tx.insert_contributions([])
            tx.insert_refusals([])
            tx.insert_audit([])
            tx.put_metrics([])
        assert store.waiting(0) == []
