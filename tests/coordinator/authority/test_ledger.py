"""The ledger: nothing by halves, nothing lost, refusals that say what to do, and a file that is not ours to misread."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from client_sdk.protocol.problems import ProblemError
from coordinator.authority.ledger import AuditEntry, HolderRow, KeyRow, Ledger
from tests.coordinator.authority.world import AuthorityWorld, Holder

ENTRY = AuditEntry(at=1, who="operator uid 7", event="token", what="for 1 devices")


def test_what_raises_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")

    def half() -> None:
        with ledger.writing() as rows:
            rows.note(ENTRY)
            rows.put_list(b"list")
            raise LookupError

    with pytest.raises(LookupError):
        half()
    with ledger.reading() as rows:
        assert (rows.audit(9), rows.last_list()) == ([], None)
    with ledger.writing() as rows:
        rows.note(ENTRY)
    ledger.close()
    with Ledger(tmp_path / "ledger").reading() as rows:
        assert rows.audit(9) == [ENTRY]


def test_a_second_valid_key_of_one_id_is_refused_by_the_ledger_itself() -> None:
    ledger = Ledger(":memory:")
    with ledger.writing() as rows:
        rows.put_holder(HolderRow(id="d1", holder="device"))
        rows.put_key(KeyRow(key_id=b"a", id="d1", public_key=b"a", certificate=b"a", expires_at=9))
    with pytest.raises(sqlite3.IntegrityError), ledger.writing() as rows:
        rows.put_key(KeyRow(key_id=b"b", id="d1", public_key=b"b", certificate=b"b", expires_at=9))


def test_each_change_is_on_the_disk_and_deleted_rows_are_overwritten(tmp_path: Path) -> None:
    connection = Ledger(tmp_path / "ledger")._connection
    names = ("journal_mode", "synchronous", "foreign_keys", "secure_delete")
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    assert found == ["wal", 2, 1, 1]


def test_two_processes_take_turns_and_one_that_waits_too_long_is_told_so(tmp_path: Path) -> None:
    one, other = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "ledger")
    other._connection.execute("PRAGMA busy_timeout = 50")
    with one.writing() as rows:
        rows.note(ENTRY)
        with pytest.raises(ProblemError) as busy, other.writing():
            pass
        assert busy.value.kind == "busy"
        with other.reading() as seen:
            assert seen.audit(9) == []
    with other.writing() as rows:
        assert rows.audit(9) == [ENTRY]


def test_a_full_disk_is_said_and_nothing_is_stored(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ProblemError) as full, ledger.writing() as rows:
        rows.put_list(bytes(1 << 20))
    assert full.value.kind == "disk-full"
    with ledger.writing() as rows:
        assert rows.last_list() is None


def test_a_token_for_one_enrols_one_also_where_many_ask_at_once(tmp_path: Path) -> None:
    world = AuthorityWorld(Ledger(tmp_path / "ledger"))
    token = world.token()
    answered: list[str] = []

    def ask(name: str) -> None:
        try:
            answered.append(Holder(world, name).enrol(token).holder)
        except ProblemError as error:
            answered.append(error.kind)

    threads = [threading.Thread(target=ask, args=(f"phone {number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answered) == ["device", *["enrolment-refused"] * 7]


def test_a_file_that_is_no_ledger_or_a_newer_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no ledger " * 100)
    with pytest.raises(OSError, match="cannot be opened"):
        Ledger(tmp_path / "text")
    Ledger(tmp_path / "newer")._connection.execute("PRAGMA user_version = 2")
    with pytest.raises(OSError, match="newer version"):
        Ledger(tmp_path / "newer")
