"""``verify`` names what somebody changed in the audit, in a database and in the memory store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_sdk.identity import DeviceKey
from coordinator.datafolder import DATABASE_FILE
from coordinator.store import MemoryStore, chain, open_store
from coordinator.store.chain import chain_audit
from coordinator.store.port import AuditHeadRow, AuditRow
from coordinator.verify import AuditWitness, verify
from tests.coordinator.store import rows
from tests.coordinator.verify.audit_world import DOCTORINGS, LAST, checked, goes_on, head_of, write_audit, written
from tests.coordinator.verify.audit_world import row_changed_and_the_chain_computed_anew as computed_anew
from tests.coordinator.verify.history import doctored

pytestmark = pytest.mark.whole

FIELDS = ("run", "at", "by", "action", "detail", "link", "signed_by", "signature")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written once; each test has a copy."""
    return written(tmp_path_factory.mktemp("played"))


@pytest.fixture
def folder(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "data"))


def test_an_honest_audit_is_clean(folder: Path) -> None:
    assert checked(folder) == []
    assert checked(folder, head_of(folder)) == []
    assert head_of(folder).count == LAST


@pytest.mark.parametrize("name", DOCTORINGS)
def test_a_doctoring_is_named(folder: Path, name: str) -> None:
    change, says = DOCTORINGS[name]
    head = head_of(folder)
    with doctored(folder) as doctor:
        change(doctor)
    assert any(what.startswith(says) or what.endswith(says) for what in checked(folder)), checked(folder)
    assert len(checked(folder, head)) >= len(checked(folder))


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("number", [1, 3, LAST])
def test_each_field_of_a_row_is_held(folder: Path, field: str, number: int) -> None:
    """Also where the value is of another kind, or no text at all."""
    other: dict[str, tuple[object, ...]] = {
        "run": ("", b"\xff"),
        "at": (0, "soon"),
        "link": ("0" * 64, b"\xff"),
        "signed_by": ("", "0" * 64, "0" * 63 + "G", 5),
        "signature": ("", "0" * 128, "short", 5, None, head_of(folder).signature.upper()),
    }
    for value in other.get(field, ("x", b"\xff", 5)):
        copy = Path(shutil.copytree(folder, folder.with_name("copy"), dirs_exist_ok=True))
        with doctored(copy) as doctor:
            doctor.lift("audit")
            doctor.sql(f'UPDATE audit SET "{field}" = ? WHERE number = ?', value, number)
        assert any(f"row {number}" in what for what in checked(copy)), (field, value)


def test_of_very_many_findings_some_are_named_with_the_number_of_the_others(folder: Path) -> None:
    goes_on(folder, 30)
    with doctored(folder) as doctor:
        doctor.sql("UPDATE audit SET signature = '0'")
    found = checked(folder)
    assert len(found) == 21
    assert found[-1] == f"and {LAST + 30 - 20} more of its rows or heads are wrong"


def test_a_later_row_does_not_cover_a_change(folder: Path) -> None:
    """The coordinator goes on after the doctored rows, and signs its own: each row has its own signature."""
    with doctored(folder) as doctor:
        computed_anew(doctor)
    goes_on(folder)
    assert checked(folder) == [f"the signature of row {number} is not valid" for number in range(2, LAST + 1)]


# ---------------------------------------------------------------- keys


def test_rows_of_several_replicas_need_the_keys_of_all(tmp_path: Path) -> None:
    keys = [DeviceKey.create(), DeviceKey.create()]
    for key in keys:
        store = open_store(f"sqlite:///{tmp_path / DATABASE_FILE}", audit_signer=key)
        with store.transaction() as tx:
            tx.insert_audit([rows.audit(run=None)])
        store.close()
    store = open_store(f"sqlite:///{tmp_path / DATABASE_FILE}")
    assert list(verify(store, audit=AuditWitness({key.public_hex for key in keys}))) == []
    for number, key in enumerate(keys, start=1):
        (wrong,) = verify(store, audit=AuditWitness({key.public_hex}))
        assert wrong.what.startswith(f"row {3 - number} is signed by")
    store.close()


def test_without_keys_a_row_without_a_signature_after_one_with_it_is_named() -> None:
    store = MemoryStore(audit_signer=DeviceKey.create())
    with store.transaction() as tx:
        tx.insert_audit([rows.audit(run=None)])
    notes: list[str] = []
    assert list(verify(store, note=notes.append)) == []
    assert notes == ["the audit: no key was given, so anybody may have signed its rows (give the keys by --audit-key)"]
    store.audit_signer = None
    with store.transaction() as tx:
        tx.insert_audit([rows.audit(run=None)])
    assert [wrong.what for wrong in verify(store)] == ["row 2 is not signed"]


def test_rows_that_nobody_signed_are_a_note() -> None:
    store = MemoryStore()
    with store.transaction() as tx:
        tx.insert_audit([rows.audit(run=None)])
    notes: list[str] = []
    assert list(verify(store, note=notes.append)) == []
    assert notes == ["the audit: its rows are not signed, so whoever writes to the database can compute its links anew"]


# ---------------------------------------------------------------- the memory store


def test_changes_of_the_memory_store_are_named() -> None:
    key = DeviceKey.create()

    def wrong(change: Callable[[MemoryStore], object]) -> list[str]:
        store = MemoryStore(audit_signer=key)
        write_audit(store)
        assert list(verify(store, audit=AuditWitness({key.public_hex}))) == []
        change(store)
        return [found.what for found in verify(store, audit=AuditWitness({key.public_hex}))]

    def row(store: MemoryStore, number: int) -> AuditRow:
        found = store._get(AuditRow, number)
        assert found is not None
        return found

    def put(store: MemoryStore, row: AuditRow | AuditHeadRow) -> None:
        with store.transaction() as tx:
            tx._put([row])

    def drop(store: MemoryStore, kind: type, where: dict[str, Any]) -> None:
        with store.transaction() as tx:
            tx._delete(kind, where)

    def exchange(store: MemoryStore) -> None:
        two, four = row(store, 2), row(store, 4)
        put(store, replace(four, number=2))
        put(store, replace(two, number=4))

    def compute_anew(store: MemoryStore) -> None:
        changed = [replace(found, by="paul") for _, found in store.audit_of_all(0, 10)]
        chained, head = chain_audit(AuditHeadRow(count=0, link=chain.audit_beginning()), changed, DeviceKey.create())
        for number, found in chained:
            put(store, replace(found, number=number))
        put(store, head)

    assert wrong(lambda store: drop(store, AuditRow, {"number": 3})) == ["row 3 is missing"]
    assert wrong(lambda store: drop(store, AuditRow, {"number": 6})) == ["its last row is 5, and 6 were recorded"]
    assert wrong(lambda store: drop(store, AuditHeadRow, {})) == ["where it ends was deleted"]
    for field in ("run", "by", "action", "detail"):

        def change(store: MemoryStore, field: str = field) -> None:
            changed: dict[str, Any] = {field: "other"}
            put(store, replace(replace(row(store, 4), **changed), number=4))

        (what,) = wrong(change)
        assert what.startswith("row 4, ")
    assert len(wrong(exchange)) >= 2
    assert all("a key that was not given" in what for what in wrong(compute_anew))
