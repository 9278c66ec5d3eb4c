"""What every store must do for operators: their API keys, and the audit of all that they did."""

from __future__ import annotations

import pytest

from coordinator.store.port import Conflict, Store, StoreError
from tests.coordinator.store import rows


class AccessContract:
    def test_an_api_key_comes_back_and_its_id_is_taken_once(self, store: Store) -> None:
        row = rows.api_key("k2", expires_at=90.5)
        with store.transaction() as tx:
            tx.insert_api_key(row)
            tx.insert_api_key(rows.api_key("k1"))
            assert tx.api_key("k2") == row
        assert store.api_key("k2") == row
        assert store.api_key("k3") is None
        assert store.api_keys() == [rows.api_key("k1"), row]
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.insert_api_key(rows.api_key("k1", role="viewer"))
        assert store.api_keys() == [rows.api_key("k1"), row]

    def test_an_api_key_is_revoked_once(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_api_key(rows.api_key("k1"))
            tx.revoke_api_key("k1", 30.5)
            tx.revoke_api_key("k1", 40.5)
        assert store.api_keys() == [rows.api_key("k1", revoked_at=30.5)]
        with pytest.raises(StoreError, match="has no API key k9"), store.transaction() as tx:
            tx.revoke_api_key("k9", 1.0)

    def test_logins_come_back_oldest_first_and_an_id_is_taken_once(self, store: Store) -> None:
        new, old = rows.login("l1", created_at=20.5), rows.login("l2", kind="link", by="oidc", key=None, claims='["a"]')
        with store.transaction() as tx:
            tx.insert_login(new)
            tx.insert_login(old)
            assert tx.login("l1") == new
        assert store.login("l2") == old
        assert store.login("l3") is None
        assert store.logins() == [old, new]
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.insert_login(rows.login("l1"))
        assert store.logins() == [old, new]

    def test_a_login_is_deleted_once(self, store: Store) -> None:
        with store.transaction() as tx:
            for name in ("l1", "l2", "l3"):
                tx.insert_login(rows.login(name))
            assert tx.drop_logins([]) == 0
            assert tx.drop_logins(["l1", "l9"]) == 1
            assert tx.drop_logins(["l1", "l2"]) == 1
        assert [row.login for row in store.logins()] == ["l3"]
        assert store.login("l1") is None

    def test_the_audit_has_actions_of_runs_and_of_none_in_their_order(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_run(rows.run("r2"))
        recorded = [rows.audit("a"), rows.audit("b", run=None), rows.audit("c", run="r2"), rows.audit("d", run=None)]
        for row in recorded:
            with store.transaction() as tx:
                tx.insert_audit([row])
        found = store.audit_of_all(0, 10)
        assert [row for _, row in found] == recorded
        numbers = [number for number, _ in found]
        assert numbers == sorted(set(numbers))
        assert store.audit_of_all(numbers[0], 2) == found[1:3]
        assert store.audit_of_all(numbers[-1], 10) == []
        assert [row.by for row in store.audit("r1")] == ["a"]
        assert store.runs_named() == ["r1", "r2"]
        with pytest.raises(StoreError), store.transaction() as tx:
            tx.insert_audit([rows.audit(run="nowhere")])
