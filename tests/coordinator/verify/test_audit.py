"""``verify`` names what somebody changed in the audit; a head that was written down names what the rows cannot show."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from client_sdk.identity import DeviceKey
from coordinator.cli import app
from coordinator.datafolder import AUDIT_KEY_FILE, DATABASE_FILE
from coordinator.key_file import made_or_read
from coordinator.store import MemoryStore, chain, open_store
from coordinator.store.audit_chain import AuditHead, BadAuditHead, chain_audit, signed
from coordinator.store.memory_tables import ALL
from coordinator.store.port import AuditHeadRow, AuditRow, Store
from coordinator.verify import AuditWitness, verify
from tests.coordinator.store import rows
from tests.coordinator.verify.history import Doctor, doctored
from tests.coordinator.world import World

LAST = 6
"""Rows of the audit that is doctored. Row 3 belongs to the run *other*, row 5 to none, the others to *marks*."""
FIELDS = ("run", "at", "by", "action", "detail", "link", "signed_by", "signature")


def action(number: int, run: str | None) -> AuditRow:
    """A request of an operator. It is in no log of a run."""
    return rows.audit(f"key:{number}", run=run, at=1000.5 + number, action="run.pause", detail=f"action {number}")


def write_audit(store: Store) -> None:
    """Two runs, and six rows of the audit."""
    world = World(0, store=store)
    world.create()
    world.create(name="other")
    for number in range(1, LAST + 1):
        run = {3: "other", 5: None}.get(number, "marks")
        with store.transaction(run) as tx:
            tx.insert_audit([action(number, run)])


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written once; each test has a copy."""
    folder = tmp_path_factory.mktemp("played")
    key = made_or_read(folder / AUDIT_KEY_FILE)
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}", audit_signer=key)
    write_audit(store)
    store.close()
    return folder


@pytest.fixture
def folder(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "data"))


def checked(folder: Path, *heads: AuditHead, key: DeviceKey | None = None) -> list[str]:
    """What ``verify`` says of the audit. ``key``: that of the folder unless given."""
    key = key or made_or_read(folder / AUDIT_KEY_FILE)
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    try:
        witness = AuditWitness({key.public_hex}, heads)
        return [wrong.what for wrong in verify(store, audit=witness) if wrong.invariant == "audit"]
    finally:
        store.close()


def head_of(folder: Path) -> AuditHead:
    """Where the audit ends."""
    found: list[Any] = []
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    list(verify(store, reached=found.append))
    store.close()
    return next(head for head in found if isinstance(head, AuditHead))


# ---------------------------------------------------------------- doctorings of a database


DOCTORINGS: dict[str, tuple[Callable[[Doctor], None], str]] = {}
"""What somebody does to the database, and what ``verify`` must say."""


def doctoring(says: str) -> Callable[[Callable[[Doctor], None]], Callable[[Doctor], None]]:
    def add(function: Callable[[Doctor], None]) -> Callable[[Doctor], None]:
        DOCTORINGS[function.__name__.replace("_", "-")] = function, says
        return function

    return add


def forged(doctor: Doctor, after: int, signer: DeviceKey | None, *, sign: bool = True) -> None:
    """Computes all links after a row anew, and where the audit ends, as somebody could who knows the format.
    ``sign``: with the forger's key."""
    found = doctor.database.execute("SELECT count, link, chained_from FROM audit_head").fetchone()
    link = doctor.one("SELECT link FROM audit WHERE number = ?", after) if after else chain.audit_beginning(found[2])
    for number, *values in doctor.database.execute(
        "SELECT number, run, at, by, action, detail FROM audit WHERE number > ? ORDER BY number", (after,)
    ).fetchall():
        row = AuditRow(**dict(zip(("run", "at", "by", "action", "detail"), values, strict=True)))
        link = chain.audit_link(link, number, row)
        doctor.sql("UPDATE audit SET link = ? WHERE number = ?", link, number)
        if sign:
            row = signed(number, replace(row, link=link), signer)
            change = "UPDATE audit SET signed_by = ?, signature = ? WHERE number = ?"
            doctor.sql(change, row.signed_by, row.signature, number)
        after = number
    doctor.sql("UPDATE audit_head SET count = ?, link = ?", after, link)


@doctoring("row 1 is missing")
def first_row_deleted(d: Doctor) -> None:
    d.sql("DELETE FROM audit WHERE number = 1")


@doctoring("row 3 is missing")
def row_in_the_middle_deleted(d: Doctor) -> None:
    d.sql("DELETE FROM audit WHERE number = 3")


@doctoring("rows 3 to 4 are missing")
def two_rows_deleted(d: Doctor) -> None:
    d.sql("DELETE FROM audit WHERE number IN (3, 4)")


@doctoring("its last row is 5, and 6 were recorded")
def last_row_deleted(d: Doctor) -> None:
    d.sql("DELETE FROM audit WHERE number = 6")


@doctoring("its last row is 0, and 6 were recorded")
def all_rows_deleted(d: Doctor) -> None:
    d.sql("DELETE FROM audit")


@doctoring("row 3, 'run.pause' by 'key:4', does not follow the row before")
def row_deleted_and_the_others_numbered_again(d: Doctor) -> None:
    d.sql("DELETE FROM audit WHERE number = 3")
    d.sql("UPDATE audit SET number = number - 1 WHERE number > 3")
    d.sql("UPDATE audit_head SET count = 5")


@doctoring("row 3 is not signed")
def row_inserted(d: Doctor) -> None:
    d.sql("UPDATE audit SET number = -(number + 1) WHERE number >= 3")
    d.sql("UPDATE audit SET number = -number WHERE number < 0")
    d.sql("INSERT INTO audit (number, run, at, by, action, detail) VALUES (3, 'marks', 1003, 'olga', 'run.stop', '')")
    forged(d, 2, None, sign=False)


@doctoring("row 7, 'run.stop' by 'olga', does not follow the row before")
def row_added_at_the_end(d: Doctor) -> None:
    d.sql("INSERT INTO audit (number, run, at, by, action, detail) VALUES (7, 'marks', 1007, 'olga', 'run.stop', '')")
    d.sql("UPDATE audit_head SET count = 7")


@doctoring("row 7 is not signed")
def row_added_at_the_end_with_its_link(d: Doctor) -> None:
    d.sql("INSERT INTO audit (number, run, at, by, action, detail) VALUES (7, 'marks', 1007, 'olga', 'run.stop', '')")
    forged(d, 6, None, sign=False)


@doctoring("row 2, 'run.pause' by 'key:4', does not follow the row before")
def two_rows_exchanged(d: Doctor) -> None:
    for number, other in ((2, -4), (4, 2), (-4, 4)):
        d.sql("UPDATE audit SET number = ? WHERE number = ?", other, number)


@doctoring("row 4, 'run.pause' by 'key:4', does not follow the row before")
def row_moved_to_another_run(d: Doctor) -> None:
    d.sql("UPDATE audit SET run = 'other' WHERE number = 4")


@doctoring("row 4, 'run.pause' by 'key:4', does not follow the row before")
def row_moved_to_no_run(d: Doctor) -> None:
    d.sql("UPDATE audit SET run = NULL WHERE number = 4")


@doctoring("row 5, 'run.pause' by 'key:5', does not follow the row before")
def row_of_no_run_given_to_one(d: Doctor) -> None:
    d.sql("UPDATE audit SET run = 'marks' WHERE number = 5")


@doctoring("the signature of row 2 is not valid")
def row_changed_and_the_chain_computed_anew(d: Doctor) -> None:
    d.sql("UPDATE audit SET by = 'paul' WHERE number = 2")
    forged(d, 1, None, sign=False)


@doctoring("the signature of row 6 is not valid")
def last_row_changed_with_its_link(d: Doctor) -> None:
    d.sql("UPDATE audit SET by = 'paul' WHERE number = 6")
    forged(d, 5, None, sign=False)


@doctoring("row 2 is not signed")
def row_changed_and_all_signatures_taken_away(d: Doctor) -> None:
    d.sql("UPDATE audit SET by = 'paul' WHERE number = 2")
    forged(d, 1, None)


@doctoring("a key that was not given")
def row_changed_and_signed_with_another_key(d: Doctor) -> None:
    d.sql("UPDATE audit SET by = 'paul' WHERE number = 2")
    forged(d, 1, DeviceKey.create())


@doctoring("the signature of row 4 is not valid")
def time_of_a_row_changed_with_all_links(d: Doctor) -> None:
    d.sql("UPDATE audit SET at = at - 1 WHERE number = 4")
    forged(d, 3, None, sign=False)


@doctoring("row 4 is not signed")
def signature_taken_away(d: Doctor) -> None:
    d.sql("UPDATE audit SET signature = '', signed_by = '' WHERE number = 4")


@doctoring("the signature of row 4 is not valid")
def signature_of_another_row(d: Doctor) -> None:
    d.sql("UPDATE audit SET signature = (SELECT signature FROM audit WHERE number = 3) WHERE number = 4")


@doctoring("row 1, 'run.pause' by 'key:1', does not follow the row before")
def rows_said_to_be_older_than_the_chain(d: Doctor) -> None:
    d.sql("UPDATE audit_head SET chained_from = 6")


@doctoring("where it ends was deleted")
def where_it_ends_deleted(d: Doctor) -> None:
    d.sql("DELETE FROM audit_head")


@doctoring("it recorded another link than that of its last row")
def where_it_ends_changed(d: Doctor) -> None:
    d.sql("UPDATE audit_head SET link = ?", "0" * 64)


@doctoring("audit_head.count holds 'six', a str")
def where_it_ends_is_no_number(d: Doctor) -> None:
    d.sql("UPDATE audit_head SET count = 'six'")


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
        "signature": ("", "0" * 128, "short", 5, None),
    }
    for value in other.get(field, ("x", b"\xff", 5)):
        copy = Path(shutil.copytree(folder, folder.with_name("copy"), dirs_exist_ok=True))
        with doctored(copy) as doctor:
            doctor.lift("audit")
            doctor.sql(f'UPDATE audit SET "{field}" = ? WHERE number = ?', value, number)
        assert any(f"row {number}" in what for what in checked(copy)), (field, value)


def test_a_later_row_does_not_cover_a_change(folder: Path) -> None:
    """The coordinator goes on after the doctored rows, and signs its own: each row has its own signature."""
    with doctored(folder) as doctor:
        row_changed_and_the_chain_computed_anew(doctor)
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}", audit_signer=made_or_read(folder / AUDIT_KEY_FILE))
    with store.transaction() as tx:
        tx.insert_audit([rows.audit("later", run=None)])
    store.close()
    assert checked(folder) == [f"the signature of row {number} is not valid" for number in range(2, LAST + 1)]


# ---------------------------------------------------------------- heads that were written down


def cut(doctor: Doctor) -> None:
    """Deletes the last two rows, and puts back where the audit ended before them."""
    doctor.sql("DELETE FROM audit WHERE number > 4")
    doctor.sql("UPDATE audit_head SET count = 4, link = (SELECT link FROM audit WHERE number = 4)")


def test_a_cut_audit_lacks_the_head_that_was_written_down(folder: Path) -> None:
    head = head_of(folder)
    with doctored(folder) as doctor:
        cut(doctor)
    assert checked(folder) == [], "the rows alone cannot show it"
    assert checked(folder, head) == ["it ends with row 4, before the head of row 6 that was written down: it was cut"]
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}", audit_signer=made_or_read(folder / AUDIT_KEY_FILE))
    with store.transaction() as tx:
        tx.insert_audit([rows.audit("later", run=None) for _ in range(5)])
    store.close()
    assert checked(folder) == []
    assert checked(folder, head) == [
        "row 6 has another link than the head of row 6 that was written down: it was computed anew"
    ]


def test_an_audit_that_is_said_to_be_older_than_signatures_lacks_the_head(folder: Path) -> None:
    head = head_of(folder)
    with doctored(folder) as doctor:
        doctor.sql("UPDATE audit SET by = 'paul', signed_by = '', signature = '' WHERE number > 0")
        doctor.sql("UPDATE audit_head SET chained_from = 6")
        forged(doctor, 0, None)
    assert checked(folder) == [], "a note says that six rows are older"
    assert len(checked(folder, head)) == 1


def test_an_audit_rewritten_with_the_key_lacks_the_head_that_was_written_down(folder: Path) -> None:
    """Who has the database and the key can forge everything but what is elsewhere."""
    head = head_of(folder)
    with doctored(folder) as doctor:
        doctor.sql("UPDATE audit SET by = 'paul' WHERE number = 2")
        forged(doctor, 1, made_or_read(folder / AUDIT_KEY_FILE))
    assert checked(folder) == []
    assert checked(folder, head) == [
        "row 6 has another link than the head of row 6 that was written down: it was computed anew"
    ]


def test_a_head_of_another_audit_is_named(folder: Path) -> None:
    row = rows.audit("other", link=head_of(folder).link)
    other = AuditHead.of(LAST, signed(LAST, row, DeviceKey.create()))
    (wrong,) = checked(folder, other)
    assert wrong.endswith("a key that was not given")


def test_each_form_of_head_is_taken_once_and_an_altered_one_is_refused(folder: Path) -> None:
    text = str(head_of(folder))
    assert AuditHead.parse(text) == head_of(folder)
    parts = text.split(":")
    altered = [[*parts[:place], other, *parts[place + 1 :]] for place, other in [(1, "5"), (2, "0" * 64), (3, "1.5")]]
    for changed in [*altered, [*parts[:4], DeviceKey.create().public_hex, parts[5]]]:
        with pytest.raises(BadAuditHead, match="was altered"):
            AuditHead.parse(":".join(changed))
    unlike = [":".join(["audit", count, *parts[2:]]) for count in ("06", "-6", "0", "", "9" * 19 + "9")]
    for bad in (
        text.upper(),
        text + ":",
        text[:-2],
        *unlike,
        "audit:6",
        "audit:6:x:1.0:y:z",
        "",
        text.replace(":", "::"),
    ):
        with pytest.raises(BadAuditHead, match="is not audit:COUNT:"):
            AuditHead.parse(bad)
    assert AuditHead.parse(f" {text}\n") == head_of(folder), "as a line of a file"


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
    store._audit_signer = None
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
        found = store._t.audit.get(ALL, number)
        assert found is not None
        return found

    def exchange(store: MemoryStore) -> None:
        two, four = row(store, 2), row(store, 4)
        store._t.audit.put(ALL, 2, four)
        store._t.audit.put(ALL, 4, two)

    def compute_anew(store: MemoryStore) -> None:
        changed = [replace(found, by="paul") for _, found in store.audit_of_all(0, 10)]
        chained, head = chain_audit(AuditHeadRow(count=0, link=chain.audit_beginning(0)), changed, DeviceKey.create())
        for number, found in chained:
            store._t.audit.put(ALL, number, found)
        store._t.audit_head.put(ALL, ALL, head)

    assert wrong(lambda store: store._t.audit.drop(ALL, 3)) == ["row 3 is missing"]
    assert wrong(lambda store: store._t.audit.drop(ALL, 6)) == ["its last row is 5, and 6 were recorded"]
    assert wrong(lambda store: store._t.audit_head.drop(ALL, ALL)) == ["where it ends was deleted"]
    for field in ("run", "by", "action", "detail"):

        def change(store: MemoryStore, field: str = field) -> None:
            changed: dict[str, Any] = {field: "other"}
            store._t.audit.put(ALL, 4, replace(row(store, 4), **changed))

        (what,) = wrong(change)
        assert what.startswith("row 4, ")
    assert len(wrong(exchange)) >= 2
    assert all("a key that was not given" in what for what in wrong(compute_anew))


# ---------------------------------------------------------------- the command


def test_command_takes_keys_and_heads(folder: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["verify", str(folder), *arguments])
        return result.exit_code, result.output

    code, output = run()
    assert code == 0, output
    (line,) = [line for line in output.splitlines() if line.startswith("the audit ends at ")]
    head = line.removeprefix("the audit ends at ")
    file = tmp_path / "heads.txt"
    file.write_text(f"{head}\n\n" + json.dumps({"count": LAST, "head": head}) + '\n{"runs": 2}\n')
    for given in (head, str(file)):
        assert run("--head", given)[0] == 0
    public = made_or_read(folder / AUDIT_KEY_FILE).public_hex
    assert run("--audit-key", public)[0] == 0
    assert run("--audit-key", str(folder / AUDIT_KEY_FILE), "--audit-key", DeviceKey.create().public_hex)[0] == 0
    code, output = run("--audit-key", DeviceKey.create().public_hex)
    assert code == 1
    assert "invariant audit: marks: row 1 is signed by" in output
    with doctored(folder) as doctor:
        cut(doctor)
    assert run()[0] == 0
    code, output = run("--head", str(file), "--json")
    assert code == 1
    assert '"invariant":"audit","run":"","round":0,"what":"it ends with row 4' in output
    assert '{"runs":2,"wrong":2,"blobs":false,"heads":2}' in output


def test_command_refuses_what_is_no_head_and_no_key(folder: Path, tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe")
    for arguments, says in [
        (["--head", str(head_of(folder)).replace(":6:", ":5:")], "was altered"),
        (["--head", "audit:6:x:1.0:y:z"], "audit:COUNT"),
        (["--head", str(empty)], "cannot be read"),
        (["--head", str(binary)], "cannot be read"),
        (["--head", str(tmp_path / "nowhere")], "RUN:SEQ:LINK"),
        (["--audit-key", "nowhere"], "--audit-key"),
        (["--audit-key", str(binary)], "has no Ed25519 key"),
    ]:
        result = CliRunner().invoke(app, ["verify", str(folder), *arguments])
        assert result.exit_code == 1
        assert says in result.stderr
