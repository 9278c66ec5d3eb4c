"""What every store must do for the marks of devices that contribute to a model's tensors no more."""

from __future__ import annotations

from contextlib import suppress

import pytest

from coordinator.store.port import Store, StoreError
from tests.coordinator.store import rows

OTHER = "u" * 64


class MarksContract:
    def test_marks_are_found_by_the_tensors_whichever_run_made_them(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_run(rows.run("r2"))
        made = [
            rows.mark("d2", run="r2"),
            rows.mark("d2"),
            rows.mark("d1"),
            rows.mark("d1", tensors=OTHER, round=4),
        ]
        with store.transaction("r1") as tx:
            tx.insert_marks(made)
            assert tx.marks(OTHER) == [made[3]]
        assert store.marks("t" * 64) == [made[2], made[1], made[0]]
        assert store.marks("v" * 64) == []
        assert store.marks_of_run("r1") == [made[2], made[1], made[3]]
        assert store.marks_of_run("r2") == [made[0]]

    def test_the_first_mark_of_a_device_by_a_run_stays(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
        first = rows.mark("d1", round=1)
        with store.transaction("r1") as tx:
            tx.insert_marks([first, rows.mark("d1", round=2)])
        with store.transaction("r1") as tx:
            tx.insert_marks([rows.mark("d1", round=3), rows.mark("d3", round=3)])
            tx.insert_marks([])
        assert store.marks("t" * 64) == [first, rows.mark("d3", round=3)]

    def test_marks_of_a_transaction_that_fails_are_not_stored(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
        with suppress(KeyError), store.transaction("r1") as tx:
            tx.insert_marks([rows.mark()])
            raise KeyError
        with pytest.raises(StoreError), store.transaction("r1") as tx:
            tx.insert_marks([rows.mark(run="nowhere")])
        assert store.marks("t" * 64) == []

    def test_devices_that_have_left_are_not_counted(self, store: Store) -> None:
        assert store.registered_devices() == 0
        with store.transaction() as tx:
            tx.insert_device(rows.device("d1"))
            tx.insert_device(rows.device("d2"))
            assert tx.registered_devices() == 2
        with store.transaction() as tx:
            tx.forget_device("d1", 5.0)
            tx.insert_run(rows.run("r1"))
            tx.insert_run(rows.run("r2"))
            tx.insert_marks([rows.mark("d1"), rows.mark("d2"), rows.mark("d2", run="r2"), rows.mark("gone")])
        assert store.registered_devices() == 1
        assert store.marked_devices("t" * 64) == 1
        assert store.marked_devices(OTHER) == 0
