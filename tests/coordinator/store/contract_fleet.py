"""What every store must do for the fleet: devices, who waits, who has an assignment; and for workers."""

from __future__ import annotations

import pytest

from coordinator.store.port import Conflict, Store, StoreError, WorkerRow
from tests.coordinator.store import rows


class FleetContract:
    # Workers

    def test_a_worker_comes_back_by_its_id_and_its_token(self, store: Store) -> None:
        with store.transaction() as tx:
            for name in ("w2", "w1"):
                tx.insert_worker(rows.worker(name))
            assert tx.worker("w1") == rows.worker("w1")
        assert store.worker_by_token("token of w2") == rows.worker("w2")
        assert store.worker_by_token("token of w3") is None
        assert store.workers() == [rows.worker("w1"), rows.worker("w2")]

    @pytest.mark.parametrize("taken", [rows.worker("w1", token_hash="other"), rows.worker("w2", token_hash="mine")])
    def test_a_workers_id_and_token_are_taken_once(self, store: Store, taken: WorkerRow) -> None:
        with store.transaction() as tx:
            tx.insert_worker(rows.worker("w1", token_hash="mine"))
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.insert_worker(taken)
        assert store.workers() == [rows.worker("w1", token_hash="mine")]

    def test_a_worker_is_seen_and_revoked_once(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_worker(rows.worker("w1"))
            tx.insert_worker(rows.worker("w2"))
            tx.seen_worker("w1", 20.5)
            tx.revoke_worker("w1", 30.5)
            tx.revoke_worker("w1", 40.5)
        assert store.workers() == [rows.worker("w1", last_seen_at=20.5, revoked_at=30.5), rows.worker("w2")]
        for change in ("seen_worker", "revoke_worker"):
            with pytest.raises(StoreError, match="has no worker w9"), store.transaction() as tx:
                getattr(tx, change)("w9", 1.0)

    # Devices

    def test_a_device_is_found_by_id_key_and_token(self, store: Store) -> None:
        row = rows.device("d1", last_seen_at=12.75)
        with store.transaction() as tx:
            tx.insert_device(row)
            tx.insert_device(rows.device("d2"))
            assert tx.device("d1") == row
        assert store.device("d1") == row
        assert store.device_by_key(row.public_key) == row
        assert store.device_by_token(row.token_hash) == row

    def test_device_id_and_key_are_taken_once(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_device(rows.device("d1"))
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.insert_device(rows.device("d1", public_key="another"))
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.insert_device(rows.device("d2", public_key="key of d1"))
        assert [row.device for row in store.devices()] == ["d1"]

    def test_a_new_token_takes_the_place_of_the_old_one(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_device(rows.device("d1"))
        with store.transaction() as tx:
            tx.set_token("d1", "new")
            assert tx.device_by_token("token of d1") is None
        assert store.device_by_token("token of d1") is None
        assert store.device_by_token("new") == rows.device("d1", token_hash="new")
        with pytest.raises(StoreError, match="nobody"), store.transaction() as tx:
            tx.set_token("nobody", "x")

    def test_seen_notes_the_time_and_passes_over_strangers(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
        with store.transaction() as tx:
            tx.seen(["d1", "unknown", "d3"], 99.5)
            tx.seen([], 100.0)
        assert [row.last_seen_at for row in store.devices()] == [99.5, None, 99.5]

    def test_devices_are_paged_by_id(self, store: Store) -> None:
        names = ["B", "a", "b", "é", "Z", "_", "10", "9"]
        with store.transaction() as tx:
            for name in names:
                tx.insert_device(rows.device(name))
        seen: list[str] = []
        while page := store.devices(limit=3, after=seen[-1] if seen else ""):
            assert len(page) <= 3
            seen += [row.device for row in page]
        assert seen == sorted(names), "in the order of code points, whatever the database's language"

    # The pool and the claims

    def test_waiting_lists_who_is_neither_expired_nor_claimed(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx, devices=4)
            tx.put_waiting(rows.waiting(f"d{n}", expires=50.0 * n, offer="AB"[n % 2]) for n in (4, 2, 3, 1))
            tx.put_claims([rows.claim("d3")])
            tx.put_waiting([rows.waiting("d3", expires=1e9)])
            assert [row.device for row in tx.waiting(49.0)] == ["d1", "d2", "d4"]
        assert store.waiting(50.0) == [
            rows.waiting("d2", expires=100.0, offer="A"),
            rows.waiting("d4", expires=200.0, offer="A"),
        ]
        assert store.waiting_by_offer(49.0) == {"A": 2, "B": 1}
        assert store.waiting_by_offer(200.0) == {}

    def test_checking_in_again_keeps_the_place_in_the_pool(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
            tx.put_waiting([rows.waiting("d1", since=20.0, expires=30.0)])
        with store.transaction() as tx:
            tx.put_waiting(
                [rows.waiting("d1", since=25.0, expires=60.0, examples=9, offer="new"), rows.waiting("d2", since=26.0)]
            )
        assert store.waiting(0) == [
            rows.waiting("d1", since=20.0, expires=60.0, examples=9, offer="new"),
            rows.waiting("d2", since=26.0),
        ]
        with store.transaction() as tx:
            tx.drop_waiting(["d1", "d3"])
            tx.put_waiting([rows.waiting("d1", since=40.0)])
        assert store.waiting(0)[0].since == 40.0

    def test_a_hold_is_dropped_unless_a_later_check_in_took_it_over(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
            tx.put_waiting([rows.waiting("d1", expires=30.1), rows.waiting("d2", expires=30.1)])
            tx.put_waiting([rows.waiting("d1", expires=30.1 + 1e-6)])
        with store.transaction() as tx:
            tx.drop_hold("d1", 30.1)
            tx.drop_hold("d2", 30.1)
            tx.drop_hold("d3", 30.1)
        assert [row.device for row in store.waiting(0)] == ["d1"]
        with store.transaction() as tx:
            tx.drop_hold("d1", 30.1 + 1e-6)
        assert store.waiting(0) == []

    def test_expired_rows_go(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
            tx.put_waiting(rows.waiting(f"d{n}", expires=10.0 * n) for n in (1, 2, 3))
        with store.transaction() as tx:
            assert tx.expire_waiting(20.0) == 2
            assert tx.expire_waiting(20.0) == 0
        assert [row.device for row in store.waiting(0)] == ["d3"]

    def test_only_enrolled_devices_wait(self, store: Store) -> None:
        with pytest.raises(StoreError, match="device"), store.transaction() as tx:
            tx.put_waiting([rows.waiting("unknown")])
        assert store.waiting(0) == []

    def test_a_claim_takes_its_device_out_of_the_pool(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx, runs=2)
            tx.put_waiting(rows.waiting(f"d{n}") for n in (1, 2, 3))
        with store.transaction("r1") as tx:
            tx.put_claims([rows.claim("d2"), rows.claim("d1", run="r2", round=7, attempt=2)])
            assert tx.claim("d2") == rows.claim("d2")
        assert [row.device for row in store.waiting(0)] == ["d3"]
        assert store.claim("d1") == rows.claim("d1", run="r2", round=7, attempt=2)
        assert store.claim("d3") is None
        assert store.claims() == [rows.claim("d1", run="r2", round=7, attempt=2), rows.claim("d2")]
        assert store.claims("r1") == [rows.claim("d2")]
        with store.transaction("r1") as tx:
            tx.drop_claims("r1", 1)
        assert [row.device for row in store.waiting(0)] == ["d3"], "a freed device checks in anew"

    def test_a_device_has_one_live_claim(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx, runs=2)
            tx.put_claims([rows.claim("d1")])
        with pytest.raises(Conflict), store.transaction("r2") as tx:
            tx.put_claims([rows.claim("d2", run="r2"), rows.claim("d1", run="r2")])
        assert store.claims() == [rows.claim("d1")]

    def test_claims_are_freed_by_round_and_device(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx, runs=2, devices=5)
            tx.put_claims(
                [
                    rows.claim("d1"),
                    rows.claim("d2"),
                    rows.claim("d3", round=2),
                    rows.claim("d4", run="r2"),
                    rows.claim("d5"),
                ]
            )
        with store.transaction("r1") as tx:
            tx.drop_claims("r1", 1, ["d1", "d3", "d4", "unknown"])
            tx.drop_claims("r1", 1, [])
        assert [row.device for row in store.claims()] == ["d2", "d3", "d4", "d5"]
        with store.transaction("r1") as tx:
            tx.drop_claims("r1", 1)
        assert [row.device for row in store.claims()] == ["d3", "d4"]
        with store.transaction("r1") as tx:
            tx.put_claims([rows.claim("d1", round=2)])
        assert store.claim("d1") == rows.claim("d1", round=2)
