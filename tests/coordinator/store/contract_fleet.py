"""What every store must do for the fleet: devices, who waits, who has an assignment; and for workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from coordinator.store import port
from coordinator.store.port import AuthorityRow, Conflict, Store, StoreError, Transaction, WorkerRow
from tests.coordinator.store import rows


class FleetContract:
    # Workers

    def test_a_worker_comes_back_by_its_id_and_its_key(self, store: Store) -> None:
        with store.transaction() as tx:
            for name in ("w2", "w1"):
                tx.insert_worker(rows.worker(name))
            assert tx.worker("w1") == rows.worker("w1")
        assert store.worker_by_key("key of w2") == rows.worker("w2")
        assert store.worker_by_key("key of w3") is None
        assert store.workers() == [rows.worker("w1"), rows.worker("w2")]

    @pytest.mark.parametrize("taken", [rows.worker("w1", key_id="other"), rows.worker("w2", key_id="mine")])
    def test_a_workers_id_and_key_are_taken_once(self, store: Store, taken: WorkerRow) -> None:
        with store.transaction() as tx:
            tx.insert_worker(rows.worker("w1", key_id="mine"))
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.insert_worker(taken)
        assert store.workers() == [rows.worker("w1", key_id="mine")]

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

    def test_a_workers_certificate_is_replaced(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_worker(rows.worker("w1", revoked_at=30.5))
            tx.insert_worker(rows.worker("w2"))
        with store.transaction() as tx:
            tx.certify_worker("w1", "another key", "another certificate")
        changed = rows.worker("w1", key_id="another key", certificate="another certificate", revoked_at=30.5)
        assert store.workers() == [changed, rows.worker("w2")]
        assert (store.worker_by_key("another key"), store.worker_by_key("key of w1")) == (changed, None)
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.certify_worker("w1", "key of w2", "a third")
        with pytest.raises(StoreError, match="has no worker w9"), store.transaction() as tx:
            tx.certify_worker("w9", "key", "certificate")

    # The authority

    def test_the_newest_revocation_list_has_the_highest_counter_and_each_is_found_by_its_digest(
        self, store: Store
    ) -> None:
        assert (store.revocations("a"), store.revocation_list(rows.digest_of(b"six"))) == (None, None)
        for counter, encoded in ((7, b"\x00seven\xff"), (6, b"six"), (7, b"another seven")):
            with store.transaction() as tx:
                tx.put_revocations(rows.revocations("a", counter, encoded))
        assert store.revocations("a") == b"\x00seven\xff"
        with store.transaction() as tx:
            tx.put_revocations(rows.revocations("b", 1, b"of another authority"))
            tx.put_revocations(rows.revocations("a", 2**40, b"newer"))
            assert tx.revocations("a") == b"newer"
        assert (store.revocations("a"), store.revocations("b")) == (b"newer", b"of another authority")
        kept = [b"\x00seven\xff", b"six", b"newer", b"of another authority"]
        assert [store.revocation_list(rows.digest_of(encoded)) for encoded in kept] == kept
        assert store.revocation_list(rows.digest_of(b"another seven")) is None
        listed = [(row.authority, row.counter, row.encoded) for row in store.revocation_lists()]
        assert listed == [("a", 6, b"six"), ("a", 7, kept[0]), ("a", 2**40, b"newer"), ("b", 1, kept[3])]

    def test_older_revocation_lists_are_dropped_once_they_are_out_of_date(self, store: Store) -> None:
        listed = [("a", 1, 100), ("a", 2, 300), ("a", 3, 200), ("a", 4, 50), ("b", 1, 50)]
        with store.transaction() as tx:
            for authority, counter, until in listed:
                name = f"{authority}{counter}".encode()
                tx.put_revocations(rows.revocations(authority, counter, name, next_update=until))
            tx.drop_revocations("a", 4, 200.5)
        names = [f"{authority}{counter}".encode() for authority, counter, _ in listed]
        left = [name for name in names if store.revocation_list(rows.digest_of(name)) is not None]
        assert left == [b"a2", b"a4", b"b1"], "the newest stays, however old, and what another authority issued"

    def test_authorities_come_back_in_the_order_of_recording(self, store: Store) -> None:
        assert store.authorities() == []
        recorded = [
            AuthorityRow(authority="b", inside=True, since=20.5),
            AuthorityRow(authority="a", inside=False, since=10.5),
            AuthorityRow(authority="b", inside=True, since=30.5),
        ]
        for row in recorded:
            with store.transaction() as tx:
                tx.insert_authority(row)
        assert store.authorities() == recorded

    # Devices

    def test_a_device_is_found_by_id_and_key(self, store: Store) -> None:
        row = rows.device("d1", last_seen_at=12.75)
        with store.transaction() as tx:
            tx.insert_device(row)
            tx.insert_device(rows.device("d2"))
            assert tx.device("d1") == row
        assert store.device("d1") == row
        assert store.device_by_key("key of d1") == row
        assert store.device_by_key("key of d3") is None

    def test_devices_are_found_by_many_keys(self, store: Store) -> None:
        assert store.devices_by_keys([]) == store.devices_by_keys(["key of d1"]) == []
        with store.transaction() as tx:
            for name in ("d1", "d2", "d3"):
                tx.insert_device(rows.device(name))
            tx.insert_device(rows.device("d4", key_id=None, certificate=""))
            asked = ["key of d3", "key of d1", "key of d5", "key of d1"]
            assert sorted(row.device for row in tx.devices_by_keys(asked)) == ["d1", "d3"]
        found = {row.device: row for row in store.devices_by_keys([f"key of d{number}" for number in range(500)])}
        assert found == {name: rows.device(name) for name in ("d1", "d2", "d3")}

    def test_device_id_and_key_are_taken_once(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_device(rows.device("d1"))
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.insert_device(rows.device("d1", key_id="another"))
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.insert_device(rows.device("d2", key_id="key of d1"))
        assert [row.device for row in store.devices()] == ["d1"]

    def test_devices_without_a_key_are_many(self, store: Store) -> None:
        with store.transaction() as tx:
            for name in ("d1", "d2"):
                tx.insert_device(rows.device(name, key_id=None, certificate=""))
        assert [row.key_id for row in store.devices()] == [None, None]

    def test_a_devices_certificate_is_replaced(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_device(rows.device("d1", key_id=None, certificate=""))
            tx.insert_device(rows.device("d2"))
        with store.transaction() as tx:
            tx.certify_device("d1", "first", "one")
            tx.certify_device("d1", "first", "two")
            assert tx.device_by_key("first") == rows.device("d1", key_id="first", certificate="two")
            tx.certify_device("d1", "second", "three")
        assert store.device_by_key("first") is None
        assert store.device_by_key("second") == rows.device("d1", key_id="second", certificate="three")
        with store.transaction() as tx:
            tx.certify_device("d2", "first", "a key that is free again")
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.certify_device("d2", "second", "of another device")
        with pytest.raises(StoreError, match="nobody"), store.transaction() as tx:
            tx.certify_device("nobody", "x", "y")

    def test_a_device_that_left_is_forgotten_but_for_its_id_and_times(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
            tx.put_waiting([rows.waiting("d1"), rows.waiting("d2")])
        for at in (50.5, 60.5):
            with store.transaction() as tx:
                tx.forget_device("d1", at)
        assert store.device("d1") == rows.device("d1", key_id=None, certificate="", label="", left_at=50.5)
        assert store.device_by_key("key of d1") is None
        assert [row.device for row in store.waiting(0)] == ["d2"]
        with pytest.raises(StoreError, match="nobody"), store.transaction() as tx:
            tx.forget_device("nobody", 1.0)

    def test_seen_notes_the_time_and_passes_over_strangers(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx)
        with store.transaction() as tx:
            tx.seen({"d1": {"examples": 7}, "unknown": {}, "d3": {}}, 99.5)
            tx.seen({}, 100.0)
        assert [(row.last_seen_at, row.facts) for row in store.devices()] == [
            (99.5, {"examples": 7}),
            (None, {}),
            (99.5, {}),
        ]
        with store.transaction() as tx:
            tx.forget_device("d1", 100.0)
        gone = store.device("d1")
        assert gone is not None
        assert gone.facts == {}

    def test_idle_are_those_that_checked_in_and_have_no_place_and_no_claim(self, store: Store) -> None:
        turns = {"processes": {"newest": "a", "turns": 1, "turned_at": 49.5}}
        with store.transaction() as tx:
            rows.world(tx, devices=7)
            tx.put_waiting([rows.waiting("d1", expires=200.0), rows.waiting("d2", expires=100.0)])
            tx.put_claims([rows.claim("d3")])
            tx.seen({f"d{number}": {} for number in (1, 3, 6)} | {"d2": turns}, 50.0)
            tx.seen({"d4": turns | {"offer": '{"turns":1}'}, "d5": {"offer": '{"turns":1}'}}, 49.5)
            tx.forget_device("d6", 60.0)
            assert [row.device for row in tx.idle(49.0, 100.0)] == ["d2", "d4", "d5"]
        assert [row.device for row in store.idle(50.0, 100.0)] == ["d2"]
        assert [row.device for row in store.idle(49.5, 99.0)] == ["d4", "d5"]
        assert [row.device for row in store.taking_turns(49.5)] == ["d2", "d4"]
        assert [row.device for row in store.taking_turns(50.0)] == []
        with store.transaction() as tx:
            tx.insert_device(rows.device("d9", facts={"processes": {"newest": "p", "turns": 1, "turned_at": 49.75}}))
        assert [row.device for row in store.taking_turns(49.5)] == ["d2", "d4", "d9"]
        assert store.seen_lately(49.6, 4) == ["d1", "d2", "d3", "d6"]
        assert store.seen_lately(49.6, 3) is None

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
        assert store.waiting(50.0, ["d4", "d1", "d3", "d9"]) == [rows.waiting("d4", expires=200.0, offer="A")]
        assert store.waiting(50.0, []) == []
        assert len(store.waiting(49.0, [f"d{number}" for number in range(3000)])) == 3
        assert [tuple(row) for row in store.places(["d4", "d3", "d9"])] == [
            ("d3", 7, '{"learners":{}}', 1e9),
            ("d4", 7, "A", 200.0),
        ]
        assert [row[0] for row in store.places()] == ["d1", "d2", "d3", "d4"]
        assert store.claimed() == store.claimed(["d3", "d4"]) == {"d3"}
        assert store.claimed([]) == set()

    def test_each_change_of_the_pool_is_numbered(self, store: Store) -> None:
        def changed(change: Callable[[Transaction], object]) -> list[str]:
            before = store.last_pool_change()
            with store.transaction() as tx:
                change(tx)
            found = store.pool_changes(before)
            assert found is not None
            assert found[0] == store.last_pool_change() >= before + len(found[1])
            return found[1]

        with store.transaction() as tx:
            rows.world(tx, devices=4)
        places = [rows.waiting("d1", expires=30.0), rows.waiting("d2", expires=60.0)]
        assert changed(lambda tx: tx.put_waiting(places)) == ["d1", "d2"]
        assert changed(lambda tx: tx.put_waiting(places[:1])) == ["d1"]
        assert changed(lambda tx: tx.drop_hold("d2", 60.0)) == ["d2"]
        assert changed(lambda tx: tx.put_claims([rows.claim("d3")])) == ["d3"]
        assert changed(lambda tx: tx.drop_waiting([])) == []
        assert changed(lambda tx: tx.expire_waiting(30.0)) == ["d1"]
        assert changed(lambda tx: tx.forget_device("d4", 9.0)) == ["d4"]
        with suppress(KeyError), store.transaction() as tx:
            tx.drop_waiting(["d1"])
            raise KeyError
        assert changed(lambda tx: tx.drop_waiting(["d2"])) == ["d2"]

    def test_the_last_changes_of_the_pool_are_stored(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(port, "KEPT_CHANGES", 5)
        for number in range(1, 12):
            with store.transaction() as tx:
                tx.drop_waiting([f"d{number}"])
                tx.expire_waiting(0.0)
        assert store.pool_changes(0) is not None, "ten are enough"
        with store.transaction() as tx:
            tx.drop_waiting(["d12"])
            tx.expire_waiting(0.0)
        assert store.pool_changes(0) is None
        assert store.pool_changes(5) is None
        assert store.pool_changes(6) == (12, [f"d{number}" for number in range(7, 13)])
        assert store.pool_changes(12) == (12, [])

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
