"""An audit of six rows in a data folder, what ``verify`` says of it, and a table of what somebody does to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from client_sdk.identity import DeviceKey
from coordinator.datafolder import AUDIT_KEY_FILE, DATABASE_FILE
from coordinator.key_file import made_or_read
from coordinator.store import chain, open_store
from coordinator.store.chain import AuditHead, signed
from coordinator.store.port import AuditRow, Store
from coordinator.verify import AuditWitness, verify
from tests.coordinator.store import rows
from tests.coordinator.verify.history import Doctor
from tests.coordinator.world import World

LAST = 6
"""Rows of the audit that is doctored. Rows 1 and 2 say that an authority and a list were taken, and belong to no
run; row 3 to the run *other*, row 5 to none, the others to *marks*."""


def action(number: int, run: str | None) -> AuditRow:
    """A request of an operator. It is in no log of a run."""
    return rows.audit(f"key:{number}", run=run, at=1000.5 + number, action="run.pause", detail=f"action {number}")


def write_audit(store: Store) -> None:
    """Two runs, and six rows of the audit: the world takes an authority and a list when it begins."""
    world = World(0, store=store)
    world.create()
    world.create(name="other")
    for number in range(3, LAST + 1):
        run = {3: "other", 5: None}.get(number, "marks")
        with store.transaction(run) as tx:
            tx.insert_audit([action(number, run)])


def written(folder: Path) -> Path:
    """A folder with this audit, signed by its key."""
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}", audit_signer=made_or_read(folder / AUDIT_KEY_FILE))
    write_audit(store)
    store.close()
    return folder


def goes_on(folder: Path, rows_: int = 1) -> None:
    """The coordinator records more rows."""
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}", audit_signer=made_or_read(folder / AUDIT_KEY_FILE))
    with store.transaction() as tx:
        tx.insert_audit([rows.audit("later", run=None) for _ in range(rows_)])
    store.close()


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


def cut(doctor: Doctor) -> None:
    """Deletes the last two rows, and puts back where the audit ended before them."""
    doctor.sql("DELETE FROM audit WHERE number > 4")
    doctor.sql("UPDATE audit_head SET count = 4, link = (SELECT link FROM audit WHERE number = 4)")


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
    link = doctor.one("SELECT link FROM audit WHERE number = ?", after) if after else chain.audit_beginning()
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


@doctoring("row 3 is stored twice")
def row_stored_twice(d: Doctor) -> None:
    d.lift("audit")
    d.sql("INSERT INTO audit SELECT * FROM audit WHERE number = 3")


@doctoring("a row's number, or where it ends, is no number: the rows after it cannot be checked")
def number_of_a_row_is_no_number(d: Doctor) -> None:
    d.lift("audit")
    d.sql("UPDATE audit SET number = 'three' WHERE number = 3")


@doctoring("where it ends was deleted")
def where_it_ends_deleted(d: Doctor) -> None:
    d.sql("DELETE FROM audit_head")


@doctoring("it recorded another link than that of its last row")
def where_it_ends_changed(d: Doctor) -> None:
    d.sql("UPDATE audit_head SET link = ?", "0" * 64)


@doctoring("audit_head.count holds 'six', a str")
def where_it_ends_is_no_number(d: Doctor) -> None:
    d.sql("UPDATE audit_head SET count = 'six'")
