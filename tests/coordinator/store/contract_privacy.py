"""The part of the contract that is about privacy ledgers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.store.port import Conflict, DebitRow, LedgerRow, Store
from coordinator.store.privacy import Figure
from coordinator.store.rows import AllowanceRow
from tests.coordinator.store import rows

DEBIT = DebitRow(ledger="phones", run="r1", round=1, counted="a" * 64, rho=0.25, devices=2, most=0.0, at=5.0)


class PrivacyContract:
    def test_a_debit_adds_to_each_device_once(self, store: Store) -> None:
        for _ in range(2):
            with store.transaction() as tx:
                if tx.run("r1") is None:
                    rows.world(tx)
                tx.debit_privacy(DEBIT, ["d1", "d2"])
        assert store.privacy_totals("phones") == {"d1": 0.25, "d2": 0.25}
        assert store.privacy_debits("r1") == [replace(DEBIT, most=0.25)]

    def test_another_list_another_round_and_another_run_cost_again(self, store: Store) -> None:
        with store.transaction() as tx:
            rows.world(tx, runs=2)
            tx.debit_privacy(DEBIT, ["d1", "d2"])
            tx.debit_privacy(replace(DEBIT, counted="b" * 64), ["d2"])
            tx.debit_privacy(replace(DEBIT, round=2, rho=0.5), ["d1"])
            tx.debit_privacy(replace(DEBIT, run="r2"), ["d1"])
            assert tx.privacy_figure("phones") == Figure(2, 1.0), "a transaction sees what it wrote"
        assert store.privacy_totals("phones") == {"d1": 1.0, "d2": 0.5}
        assert [(row.round, row.most) for row in store.privacy_debits("r1")] == [(1, 0.25), (1, 0.5), (2, 0.75)]
        mine = {(row.run, row.device): (row.rho, row.times) for row in store.privacy_spending(["d1"])}
        assert mine == {("r1", "d1"): (0.75, 2), ("r2", "d1"): (0.25, 1)}
        assert len(store.privacy_spending_in("phones")) == 3
        assert store.privacy_spending([]) == store.privacy_spending_in("other") == []
        assert store.privacy_figure("other") == Figure(0, 0.0)
        assert (store.privacy_lost("r1"), store.privacy_lost("r3")) == (0.75, 0.0)
        assert (store.privacy_elsewhere(["other"]), store.privacy_elsewhere(["phones"])) == (2, 0)

    def test_a_ledger_and_an_owners_word_stand_as_they_were_given_and_in_the_audit(self, store: Store) -> None:
        row = LedgerRow(ledger="phones", epsilon=8, delta=1e-6, created_at=1.0, created_by="k")
        word = AllowanceRow(ledger="phones", other="run:r1", because="a test", at=2.0, by="k")
        with store.transaction() as tx:
            tx.insert_privacy_ledger(row)
            tx.insert_privacy_allowance(word)
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.insert_privacy_ledger(replace(row, epsilon=9.0))
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.insert_privacy_allowance(replace(word, because="another"))
        assert store.privacy_ledger("phones") == row
        assert (store.privacy_ledgers(), store.privacy_ledger("tablets")) == ([row], None)
        assert store.privacy_allowances() == store.privacy_allowances("phones") == [word]
        assert store.privacy_allowances("run:r1") == []
        assert [one.detail for _, one in store.audit_of_all(0, 10)] == [row.audited.detail, word.audited.detail]
