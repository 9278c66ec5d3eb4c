"""``verify`` finds nothing in what a coordinator wrote, and names what somebody else changed."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_sdk.tensors import to_bytes
from coordinator.blobs import BlobFolder, FileBlobs
from coordinator.cli import app
from coordinator.store import open_store
from coordinator.verify import verify
from tests.coordinator.runtime.test_workers import Center
from tests.coordinator.world import World

ONE = "(SELECT min(device) FROM contributions WHERE round = 1)"
"""One of the devices that count in round 1."""
DIGEST = "(SELECT digest FROM contributions WHERE round = 1)"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Played once; each test has a copy."""
    folder = tmp_path_factory.mktemp("played")
    store = open_store(f"sqlite:///{folder / 'quorate.sqlite3'}")
    world = World(6, store=store, blobs=FileBlobs(folder / "blobs"))
    world.create(retention={"rounds": 5})
    world.play_round(1)
    world.check_in()
    world.report(*world.cohort()[:1], round=2)
    world.pass_time(61)
    world.play_round(3)
    store.close()
    return folder


@pytest.fixture
def folder(played: Path, tmp_path: Path) -> Path:
    """A data folder in which two rounds were committed and one abandoned; raw updates are kept."""
    return Path(shutil.copytree(played, tmp_path / "data"))


def changed(folder: Path, *statements: str) -> None:
    with sqlite3.connect(folder / "quorate.sqlite3") as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0, statement
    connection.close()


def found(folder: Path) -> list[tuple[str, int | None]]:
    store = open_store(f"sqlite:///{folder / 'quorate.sqlite3'}")
    try:
        return [(wrong.invariant, wrong.round) for wrong in verify(store, BlobFolder(folder / "blobs"))]
    finally:
        store.close()


def test_nothing_is_wrong_with_what_a_coordinator_wrote(folder: Path) -> None:
    assert found(folder) == []


def test_a_run_whose_row_is_gone_hides_no_other_run(folder: Path) -> None:
    with sqlite3.connect(folder / "quorate.sqlite3") as connection:
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(checkpoints)") if name != "run"]
        rest = ", ".join(columns)
        connection.execute(f"INSERT INTO checkpoints (run, {rest}) SELECT 'gone', {rest} FROM checkpoints")
    connection.close()
    changed(folder, "DELETE FROM contributions WHERE run = 'marks' AND round = 3")
    assert {("orphan", 0), ("3", 3)} <= set(found(folder))


def test_each_event_that_cannot_be_read_is_named_and_those_behind_it_are_looked_at(folder: Path) -> None:
    changed(folder, "UPDATE events SET body = '{' WHERE seq IN (3, 4)", "UPDATE runs SET seq = seq + 1")
    store = open_store(f"sqlite:///{folder / 'quorate.sqlite3'}")
    wrong = [violation.what for violation in verify(store, BlobFolder(folder / "blobs"))]
    store.close()
    assert [what for what in wrong if what.endswith("cannot be read")] == [
        "event 3 cannot be read",
        "event 4 cannot be read",
    ]
    assert any(what.startswith("the log ends at event") for what in wrong), "it was read to its end"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE contributions SET version = 2 WHERE round = 1", ("1", 1)),
        (f"UPDATE contributions SET digest = {DIGEST} WHERE round = 3", ("1", 3)),
        ("UPDATE checkpoints SET round = 9 WHERE version = 1", ("2", 3)),
        ("DELETE FROM contributions WHERE round = 3", ("3", 3)),
        ("DELETE FROM refusals WHERE round = 2", ("3", 2)),
        ("UPDATE rounds SET status = 'abandoned' WHERE round = 3", ("4", 3)),
        ("UPDATE rounds SET status = 'committed' WHERE round = 2", ("4", 2)),
        ("UPDATE rounds SET status = 'lost' WHERE round = 2", ("4", 2)),
        ("DELETE FROM events WHERE seq = 3", ("8", 1)),
        ("UPDATE runs SET seq = seq + 1", ("8", 4)),
        (f"UPDATE contributions SET weight = weight + 1 WHERE round = 1 AND device = {ONE}", ("10", 1)),
        (f"DELETE FROM contributions WHERE round = 1 AND device <> {ONE}", ("quorum", 1)),
    ],
)
def test_what_was_changed_is_named(folder: Path, statement: str, expected: tuple[str, int | None]) -> None:
    changed(folder, statement)
    assert expected in found(folder)


@pytest.fixture(scope="module")
def fallen_back(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Played once; each test has a copy."""
    folder = tmp_path_factory.mktemp("fallen-back")
    store = open_store(f"sqlite:///{folder / 'quorate.sqlite3'}")
    center = Center(6, store=store, blobs=FileBlobs(folder / "blobs"))
    center.fall_back()
    worker = center.worker()
    center.poll(worker, "i1", installation="here")
    center.deliver(worker, center.poll(worker, "i2", installation="here"), to_bytes(center.trained(1)))
    center.deliver(worker, center.poll(worker, "i2", installation="here"), to_bytes(center.trained(2)))
    store.close()
    return folder


@pytest.fixture
def datacenter(fallen_back: Path, tmp_path: Path) -> Path:
    """A data folder in which a datacenter round was committed under its second lease, then another one."""
    return Path(shutil.copytree(fallen_back, tmp_path / "data"))


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE events SET body = json_set(body, '$.fence', 1) WHERE kind = 'Delivered'", ("lease", 2)),
        ("UPDATE events SET body = json_set(body, '$.worker', 'w0') WHERE kind = 'Delivered'", ("lease", 2)),
        ("UPDATE events SET body = json_set(body, '$.fence', 1) WHERE kind = 'Leased'", ("lease", 3)),
        ("UPDATE events SET body = json_set(body, '$.digest', 'd') WHERE kind = 'Delivered'", ("3", 2)),
        ("UPDATE events SET kind = 'Committed' WHERE kind = 'Delivered'", ("lease", 2)),
        ("UPDATE events SET kind = 'Started' WHERE kind = 'Delivered'", ("4", 2)),
        ("INSERT INTO contributions (run, round, device, digest, weight, version) VALUES ('marks', 2, 'd', 'd', 1, 1)",
         ("3", 2)),
    ],
)  # fmt: skip
def test_what_was_changed_of_a_datacenter_round_is_named(
    datacenter: Path, statement: str, expected: tuple[str, int | None]
) -> None:
    assert found(datacenter) == []
    changed(datacenter, statement)
    assert expected in found(datacenter)


def test_numbers_of_classes_that_are_not_those_of_their_devices_are_named(folder: Path) -> None:
    changed(folder, "UPDATE device_classes SET heard = heard + 1, rounds = 0 WHERE device_class = ''")
    store = open_store(f"sqlite:///{folder / 'quorate.sqlite3'}")
    texts = [wrong.what for wrong in verify(store, BlobFolder(folder / "blobs"))]
    store.close()
    assert texts == [
        "heard of class '' is 5, and the rows of devices give 4",
        "rounds of class '' is 0, and the rows of devices give 6",
    ]


def test_a_checkpoint_that_lost_a_byte_is_named(folder: Path) -> None:
    store = open_store(f"sqlite:///{folder / 'quorate.sqlite3'}")
    digest = store.checkpoints("marks")[-1].digest
    store.close()
    path = folder / "blobs" / digest[:2] / digest
    path.write_bytes(path.read_bytes()[:-1])
    assert ("5", 3) in found(folder)
    path.unlink()
    assert ("5", 3) in found(folder)


def test_an_assignment_in_a_round_that_is_over_is_named(folder: Path) -> None:
    changed(
        folder,
        "INSERT INTO claims (device, run, round, attempt, until) SELECT min(device), 'marks', 1, 0, 0 FROM devices",
    )
    assert ("claims", 1) in found(folder)


# ---------------------------------------------------------------- the command


def test_command_says_that_all_holds(folder: Path) -> None:
    for argument in (folder, folder / "quorate.sqlite3", f"sqlite:///{folder / 'quorate.sqlite3'}"):
        result = CliRunner().invoke(app, ["verify", str(argument)])
        assert result.exit_code == 0, result.output
        assert "1 run: the rows fit each other. No link from outside was given" in result.stdout


def test_command_names_what_is_wrong_and_changes_nothing(folder: Path) -> None:
    changed(folder, "UPDATE rounds SET status = 'abandoned' WHERE round = 3")
    before = {path: path.read_bytes() for path in (folder / "blobs").rglob("*") if path.is_file()}
    result = CliRunner().invoke(app, ["verify", str(folder), "--json"])
    assert result.exit_code == 1
    assert '{"invariant":"4","run":"marks","round":3,"what":"it was abandoned, and committed too"}' in result.stdout
    assert result.stdout.splitlines()[-1] == '{"runs":1,"wrong":9,"blobs":true,"heads":0}'
    assert {path: path.read_bytes() for path in (folder / "blobs").rglob("*") if path.is_file()} == before


def test_command_refuses_what_is_not_a_database(tmp_path: Path) -> None:
    for argument in (str(tmp_path / "none.db"), f"sqlite:///{tmp_path / 'none.db'}", str(tmp_path)):
        result = CliRunner().invoke(app, ["verify", argument])
        assert result.exit_code == 1
        assert "There is no database" in result.stderr
    assert not (tmp_path / "none.db").exists()
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    result = CliRunner().invoke(app, ["verify", str(tmp_path / "other.db")])
    assert result.exit_code == 1
    assert "is not a database of Quorate" in result.stderr


def test_a_damaged_page_of_the_database_is_named(folder: Path) -> None:
    path = folder / "quorate.sqlite3"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'contributions'"
        ).fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek(root * size - 3)
        byte = file.read(1)[0]
        file.seek(root * size - 3)
        file.write(bytes([byte ^ 1]))
    assert ("rows", 0) in found(folder)
