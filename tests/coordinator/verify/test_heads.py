"""A link that was written down elsewhere shows a log that was cut or rewritten consistently."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_sdk.protocol.devices import LoggedEvent
from coordinator.blobs import BlobFolder
from coordinator.cli import app
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from coordinator.store import chain, open_store
from coordinator.store.port import EventRow, RefusalRow
from coordinator.verify import BadHead, Head, of_history, parsed, verify
from tests.coordinator.verify.history import RUN, Doctor, doctored, play
from tests.coordinator.world import World


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    play(folder, retention=0)
    return folder


@pytest.fixture
def folder(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "data"))


def checked(folder: Path, *heads: Head) -> tuple[list[tuple[str, int, str]], Head]:
    """(violations, where the log ends)."""
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    ends: list[Head] = []
    try:
        found = list(verify(store, BlobFolder(folder / BLOBS_FOLDER), heads=heads, reached=ends.append))
    finally:
        store.close()
    log = next(end for end in ends if not end.refusals)
    return [(wrong.invariant, wrong.round, wrong.what) for wrong in found], log


def cut(doctor: Doctor) -> None:
    """Takes the withdrawal, the last event, out of the history with all that follows from it."""
    last = doctor.one("SELECT max(seq) FROM events")
    device = doctor.body_of(last)["device"]
    doctor.sql("DELETE FROM events WHERE seq = ?", last)
    doctor.sql("UPDATE runs SET seq = seq - 1")
    doctor.sql("INSERT INTO claims SELECT ?, run, round, attempt, until FROM claims LIMIT 1", device)


def rechain(doctor: Doctor, after: int) -> None:
    """Computes all links after an event anew, as somebody could who knows the format."""
    link = doctor.one("SELECT link FROM events WHERE seq = ?", after)
    for seq, at, kind, body in doctor.database.execute(
        "SELECT seq, at, kind, body FROM events WHERE seq > ? ORDER BY seq", (after,)
    ).fetchall():
        link = chain.link_of_event(link, EventRow(seq=seq, at=at, kind=kind, body=json.loads(body)))
        doctor.sql("UPDATE events SET link = ? WHERE seq = ?", link, seq)


def rechain_refusals(doctor: Doctor) -> None:
    link, number = chain.refusals_beginning(RUN), 0
    for key, *fields in doctor.database.execute(
        "SELECT number, round, device, digest, kind, reason, at FROM refusals ORDER BY number"
    ).fetchall():
        number += 1
        names = ("round", "device", "digest", "kind", "reason", "at")
        link = chain.refusal_link(link, number, RefusalRow(run=RUN, **dict(zip(names, fields, strict=True))))
        doctor.sql("UPDATE refusals SET link = ? WHERE number = ?", link, key)
    doctor.sql("UPDATE runs SET refusals = ?", number)


def test_a_log_that_was_cut_consistently_lacks_the_link_that_was_written_down(folder: Path) -> None:
    nothing, end = checked(folder)
    assert nothing == []
    assert checked(folder, end)[0] == []
    with doctored(folder) as doctor:
        cut(doctor)
    assert checked(folder)[0] == [], "the database alone cannot show it"
    ((invariant, number, what),) = checked(folder, end)[0]
    assert (invariant, number) == ("chain", 6)
    assert f"the log ends at event {end.seq - 1}" in what


def test_a_log_that_was_rewritten_with_its_links_lacks_the_link_that_was_written_down(folder: Path) -> None:
    _, end = checked(folder)
    with doctored(folder) as doctor:
        doctor.set_in("events", "body", "reason", "it was bored", "seq = ?", doctor.event("Withdrew", 6))
        rechain(doctor, doctor.event("Withdrew", 6) - 1)
    assert checked(folder)[0] == []
    ((invariant, number, what),) = checked(folder, end)[0]
    assert (invariant, number) == ("chain", 6)
    assert "rewritten" in what


def test_repro_late_refusals_that_were_rewritten_or_cut_lack_the_link_that_was_written_down(folder: Path) -> None:
    """No event tells of them: the head of the log alone did not show it."""
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    ends: list[Head] = []
    assert list(verify(store, heads=(), reached=ends.append)) == []
    store.close()
    (end,) = [head for head in ends if head.refusals]
    assert checked(folder, end)[0] == []
    for change, reason in (
        ("UPDATE refusals SET reason = 'it was slow' WHERE kind = 'late' AND round = 4", "rewritten"),
        ("DELETE FROM refusals WHERE kind = 'late' AND round = 5", "cut"),
    ):
        with doctored(folder) as doctor:
            doctor.sql(change)
            rechain_refusals(doctor)
        assert checked(folder, *[head for head in ends if not head.refusals])[0] == []
        found = checked(folder, end)[0]
        assert {invariant for invariant, _, _ in found} == {"chain"}
        assert all(reason in what for _, _, what in found), found


def test_a_run_that_is_gone_is_named(folder: Path) -> None:
    found, _ = checked(folder, Head("other", 3, "0" * 64))
    assert found == [("chain", 0, "the run is gone")]


# ---------------------------------------------------------------- receipts


def test_a_receipt_names_the_event_that_counts_the_update() -> None:
    world = World(8)
    world.create()
    world.check_in()
    first, second, third, _ = world.cohort()
    body = world.body(first)
    receipt = world.send(first, body)
    world.report(second)
    event = next(row for row in world.store.events("marks", 0) if row.body.get("digest") == receipt.digest)
    assert receipt.logged == LoggedEvent(seq=event.seq, link=event.link)
    assert world.send(first, body) == receipt, "the same bytes get the same receipt"
    world.boot()
    assert world.send(first, body) == receipt, "also from a coordinator that was started again"
    world.report(third)
    assert world.coordinator.operators.run("marks").version == 1
    assert world.send(first, body) == receipt, "and when its round is over"


def test_updates_that_arrive_together_each_name_their_event() -> None:
    world = World(8)
    world.create()
    world.check_in()
    receipts = world.report(*world.cohort()[:2])
    events = {row.body["device"]: row for row in world.store.events("marks", 0) if row.kind == "Reported"}
    for receipt in receipts:
        assert receipt.logged is not None
        assert (receipt.logged.seq, receipt.logged.link) == (events[receipt.device].seq, events[receipt.device].link)


def history_line(doctor: Doctor, seq: int, **changed: object) -> str:
    body = doctor.body_of(seq)
    logged = {"seq": seq, "link": doctor.one("SELECT link FROM events WHERE seq = ?", seq)}
    entry = {"run": RUN, "round": body["round"], "device": body["device"], "update_digest": body["digest"]}
    return json.dumps(entry | {"logged": logged} | changed)


def test_receipts_are_held_against_the_log(folder: Path) -> None:
    with doctored(folder) as doctor:
        seq = doctor.event("Reported", 4)
        lines = [history_line(doctor, seq), "", '{"run": "marks", "logged": null}', '{"run": "other"}']
        lied = history_line(doctor, seq, update_digest="0" * 64)
    assert checked(folder, *of_history(lines))[0] == []
    ((invariant, number, what),) = checked(folder, *of_history([lied]))[0]
    assert (invariant, number) == ("chain", 4)
    assert "is not the report" in what
    with doctored(folder) as doctor:
        doctor.set_in("events", "body", "seconds", [1, 2, 3], "seq = ?", seq)
        rechain(doctor, seq - 1)
    ((invariant, number, what),) = checked(folder, *of_history(lines))[0]
    assert (invariant, number) == ("chain", 4)
    assert "in a receipt" in what


@pytest.mark.parametrize(
    "text",
    [
        "",
        "marks",
        "marks:1",
        "marks:0:" + "0" * 64,
        "marks:1:xyz",
        "marks:1:" + "g" * 64,
        "marks:refusals-0:" + "0" * 64,
        "marks:" + "9" * 5000 + ":" + "0" * 64,
        "marks:²:" + "0" * 64,
    ],
)
def test_what_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(BadHead, match="RUN:SEQ:LINK"):
        parsed(text)


def test_what_is_no_history_is_refused() -> None:
    with pytest.raises(BadHead, match="Line 2"):
        list(of_history(["", "nonsense"]))


# ---------------------------------------------------------------- the command


def test_command_prints_where_a_log_ends_and_takes_it_back(folder: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(folder)])
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("the log ends at ")]
    head = line.removeprefix("the log ends at ")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("the refusals end at ")]
    refusals = line.removeprefix("the refusals end at ")
    assert parsed(refusals).refusals
    heads = ["--head", head, "--head", refusals]
    assert CliRunner().invoke(app, ["verify", str(folder), *heads]).exit_code == 0
    with doctored(folder) as doctor:
        receipts = folder / "device.jsonl"
        receipts.write_text(history_line(doctor, doctor.event("Reported", 6)) + "\n")
        cut(doctor)
    assert CliRunner().invoke(app, ["verify", str(folder), "--receipts", str(receipts)]).exit_code == 0
    result = CliRunner().invoke(app, ["verify", str(folder), "--head", head, "--json"])
    assert result.exit_code == 1
    assert '"invariant":"chain","run":"marks","round":6' in result.stdout
    result = CliRunner().invoke(app, ["verify", str(folder), "--head", "nonsense"])
    assert result.exit_code == 1
    assert "RUN:SEQ:LINK" in result.stderr
