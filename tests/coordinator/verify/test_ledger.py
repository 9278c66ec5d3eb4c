"""A change of any stored field of a privacy ledger is found."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from coordinator.blobs import BlobFolder, FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from coordinator.store import open_store
from coordinator.store.port import LedgerRow
from coordinator.store.rows import AllowanceRow
from coordinator.store.tables import tables
from coordinator.verify import verify
from tests.coordinator.runtime.test_private_rounds import create
from tests.coordinator.verify.history import doctored, violations
from tests.coordinator.verify.test_random_changes import change
from tests.coordinator.world import World

TABLES = ("privacy_debits", "privacy_spending", "privacy_ledgers", "privacy_allowances")
FIELDS = [(name, column.name) for name in TABLES for column in tables[name].columns]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private")
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    world = World(store=store, blobs=FileBlobs(folder / BLOBS_FOLDER))
    with store.transaction() as tx:
        tx.insert_privacy_ledger(LedgerRow(ledger="phones", epsilon=20.0, delta=1e-6, created_at=5.0, created_by="k"))
        tx.insert_privacy_allowance(AllowanceRow(ledger="phones", other="old", because="a test", at=6.0, by="k"))
    create(world, cohort={"most_rounds": 5}, privacy={"ledger": "phones"})
    for number in (1, 2):
        world.play_round(number)
    store.close()
    return folder


def test_the_history_is_sound(played: Path) -> None:
    store = open_store(f"sqlite:///{played / DATABASE_FILE}")
    assert [*verify(store, BlobFolder(played / BLOBS_FOLDER))] == []
    store.close()


@pytest.mark.parametrize(("table", "column"), FIELDS)
def test_a_random_change_of_a_field_of_a_ledger_is_found(played: Path, table: str, column: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(played, tmp_path / "data"))
    with doctored(folder) as doctor:
        what = change(doctor, table, column, random.Random(f"{table}.{column}"))
    assert violations(folder), what
