"""``verify`` names what somebody has changed in the rows or the contents of a Flower run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_sdk.protocol.flower import FlowerError
from coordinator.blobs import BlobFolder, FileBlobs
from coordinator.runtime.flower.retention import ENDED_S
from coordinator.store.sql import SqlStore
from coordinator.store.tables import metadata
from coordinator.verify import Head, verify
from tests.coordinator import databases
from tests.coordinator.runtime.flower_world import FlowerWorld, digest_of
from tests.coordinator.verify.test_random_changes import other


class Doctored:
    """A Flower run on a disk: five messages of which two have a reply, one an error, one waits, one has expired."""

    def __init__(self, folder: Path) -> None:
        self.blobs = FileBlobs(folder / "blobs")
        store = databases.in_file(folder / "quorate.db")
        assert isinstance(store, SqlStore)
        self.store = store
        self.world = FlowerWorld(3, store=store, blobs=self.blobs)
        self.world.begin()
        for number in range(3):
            self.world.poll(number)
        self.world.upload(b"model")
        self.messages = [self.world.message(number) for number in range(3)]
        self.messages.append(self.world.message(0, kind="evaluate", ttl_s=5.0))
        self.world.push(*self.messages)
        self.world.reply(0, self.messages[0], b"update")
        error = FlowerError(code=2, reason="it raised")
        self.world.flower.replies.error(self.world.device(1), "vision", self.messages[1].message, error)
        self.world.reply(2, self.messages[2], b"other")
        self.world.push(self.world.message(1, kind="evaluate"))
        self.world.clock.at += 6
        self.ends: list[Head] = []
        self.notes: list[str] = []

    def found(self, *heads: Head) -> list[tuple[str, str]]:
        self.ends.clear()
        reached = lambda end: self.ends.append(end) if isinstance(end, Head) else None  # noqa: E731
        folder = BlobFolder(self.blobs.folder)
        found = verify(self.store, folder, heads=heads, reached=reached, note=self.notes.append)
        return [(one.invariant, one.what) for one in found]

    def change(self, *statements: str) -> None:
        with self.store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            for statement in statements:
                assert connection.exec_driver_sql(statement).rowcount
            connection.commit()
            connection.exec_driver_sql("PRAGMA foreign_keys=ON")

    def values(self, table: str, column: str) -> list[tuple[int, Any]]:
        """(rowid, value) of a column."""
        with self.store.engine.connect() as connection:
            return [(row[0], row[1]) for row in connection.exec_driver_sql(f'SELECT rowid, "{column}" FROM {table}')]

    def set(self, table: str, column: str, number: int, value: object) -> bool:
        """False: a unique key has refused it."""
        update = f'UPDATE OR IGNORE {table} SET "{column}" = ? WHERE rowid = ?'
        with self.store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            changed = connection.exec_driver_sql(update, (value, number)).rowcount
            connection.commit()
            connection.exec_driver_sql("PRAGMA foreign_keys=ON")
        return bool(changed)

    def end(self) -> None:
        self.world.end()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Doctored]:
    doctored = Doctored(tmp_path)
    yield doctored
    doctored.store.close()


def test_nothing_is_wrong_in_what_a_coordinator_wrote(made: Doctored) -> None:
    assert made.found() == []
    made.end()
    assert made.found() == []
    made.world.clock.at += ENDED_S
    made.world.coordinator.tick()
    made.world.clock.at += ENDED_S
    made.world.coordinator.tick()
    assert made.store.flower_contents("vision") == []
    assert made.found() == []


NO_REPLY = "replied_at = NULL, reply = NULL, reply_bytes = 0, code = NULL, reason = '', reply_seq = 0, reply_link = ''"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE flower_messages SET replied_at = NULL WHERE position = 1", "has a reply that came at no time"),
        ("UPDATE flower_messages SET reply = NULL WHERE position = 1", "both a content and an error as its reply, or"),
        ("UPDATE flower_messages SET replied_at = expires_at WHERE position = 1", "came after its time"),
        ("UPDATE flower_runs SET replies = 3", "it has counted 3 replies, and has 2"),
        ("UPDATE flower_runs SET errors = 0", "it has counted 0 errors, and has 1"),
        ("UPDATE flower_runs SET messages = 9", "it has counted 9 messages, and has 5"),
        ("UPDATE flower_messages SET code = 7 WHERE position = 1", "both a content and an error as its reply, or"),
        (
            "UPDATE flower_messages SET reply_bytes = 99 WHERE position = 1",
            "counts 99 bytes of its reply, whose content has 6",
        ),
        (f"DELETE FROM flower_contents WHERE digest = '{digest_of(b'update')}'", "which is not there"),
        (f"DELETE FROM flower_contents WHERE digest = '{digest_of(b'model')}'", "waits, and its content"),
        (f"UPDATE flower_runs SET state = '{'7' * 64}'", "which is the ServerApp's state"),
        ("UPDATE flower_messages SET device = 'd-other' WHERE position = 5", "which is not d-other"),
        ("UPDATE flower_messages SET position = 9 WHERE position = 2", "has the place"),
        ("UPDATE flower_messages SET position = 1e15 WHERE position = 2", "has the place"),
        ("UPDATE flower_messages SET round = 5 WHERE position = 3", "it has counted 1 rounds, and has 5"),
        ("UPDATE flower_runs SET rounds = 2", "it has counted 2 rounds, and has 1"),
        ("UPDATE flower_runs SET latest_at = latest_at + 1", "its last message or reply came at"),
        ("UPDATE flower_runs SET status = 'finished'", "it is finished, and its end is None"),
        ("UPDATE flower_runs SET dropped_at = 5", "its contents were dropped, and it has not ended"),
        ("UPDATE flower_contents SET bytes = 4 WHERE bytes = 5", "of 4 bytes has 5 bytes"),
        ("UPDATE flower_runs SET config = '{'", "the run's row holds what is not JSON"),
        ("UPDATE flower_messages SET created_at = 'x' WHERE position = 2", "holds a value of another kind"),
    ],
)  # fmt: skip
def test_a_changed_row_is_named(made: Doctored, statement: str, words: str) -> None:
    made.change(statement)
    found = made.found()
    assert any(invariant == "flower" and words in what for invariant, what in found), found


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "UPDATE flower_messages SET replied_at = replied_at + 1e6 WHERE position = 1",
            "came after the end of the run",
        ),
        (
            "UPDATE flower_messages SET created_at = created_at + 1e6 WHERE position = 5",
            "was pushed after the end of the run",
        ),
        ("UPDATE flower_runs SET status = 'running'", "it is running, and its end is"),
    ],
)
def test_what_came_after_the_end_is_named(made: Doctored, statement: str, words: str) -> None:
    made.end()
    made.change(statement)
    assert any(words in what for _, what in made.found())


@pytest.mark.parametrize("deleted", [["flower_runs"], ["flower_runs", "flower_messages"]])
def test_rows_of_a_run_whose_row_is_gone_are_named(made: Doctored, deleted: list[str]) -> None:
    made.change(*(f"DELETE FROM {table}" for table in deleted))
    assert made.found() == [("orphan", "rows name this run, and its own row is missing")]


def test_a_node_id_that_is_not_of_its_device_is_named(made: Doctored) -> None:
    made.change("UPDATE devices SET node = 4711 WHERE device = (SELECT min(device) FROM devices)")
    assert ("identity", "has the node id 4711, which is not its own") in {
        (invariant, what.partition(" ")[2].partition(" ")[2]) for invariant, what in made.found()
    }


def remove(path: Path) -> None:
    path.chmod(0o600)
    path.unlink()


def shorten(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(b"upda")


@pytest.mark.parametrize(("harm", "words"), [(remove, "cannot be read"), (shorten, "is damaged")])
def test_a_content_that_is_not_there_or_is_another_is_named(
    made: Doctored, harm: Callable[[Path], None], words: str
) -> None:
    digest = digest_of(b"update")
    harm(made.blobs.folder / digest[:2] / digest)
    ((invariant, what),) = made.found()
    assert invariant == "flower"
    assert words in what


def swapped(columns: str, one: int, other: int) -> list[str]:
    """Statements that exchange these columns of the messages in two places."""
    return [
        f"CREATE TEMP TABLE kept AS SELECT * FROM flower_messages WHERE position IN ({one}, {other})",
        *(
            f"UPDATE flower_messages SET {column} = (SELECT {column} FROM kept WHERE position = {second}) "
            f"WHERE position = {first}"
            for column in columns.split()
            for first, second in ((one, other), (other, one))
        ),
    ]


REPLY = "(SELECT reply FROM flower_messages WHERE position = {})"
OF_MESSAGE = (
    "message, position, round, group_id, node, device, kind, content, created_at, expires_at, delivered_at, grouped"
)
ADDED = f"""INSERT INTO flower_messages (run, {OF_MESSAGE}, seq, link) SELECT run, {
    OF_MESSAGE.replace("message", f"'{8:064}'").replace("position", "6")
}, 9, link FROM flower_messages WHERE position = 5"""
DOCTORINGS = {
    "two replies are exchanged": swapped("reply reply_bytes replied_at", 1, 3),
    "two replies are exchanged with their links": swapped("reply reply_bytes replied_at reply_seq reply_link", 1, 3),
    "a reply and an error are exchanged": swapped("reply reply_bytes code reason", 1, 2),
    "a reply is exchanged with no reply": [
        *swapped("replied_at reply reply_bytes reply_seq reply_link", 1, 5),
        "UPDATE flower_messages SET expires_at = expires_at + 1e6",
    ],
    "a reply has the content of another": [
        f"UPDATE flower_messages SET reply = {REPLY.format(3)}, reply_bytes = 5 WHERE position = 1"
    ],
    "a reply is deleted, and its message waits": [
        f"UPDATE flower_messages SET {NO_REPLY} WHERE position = 1",
        "UPDATE flower_runs SET replies = 1",
    ],
    "the last reply is deleted": [
        f"UPDATE flower_messages SET {NO_REPLY} WHERE position = 3",
        "UPDATE flower_runs SET replies = 1",
    ],
    "an error is deleted": [
        f"UPDATE flower_messages SET {NO_REPLY} WHERE position = 2",
        "UPDATE flower_runs SET errors = 0",
    ],
    "a reply is made an error": [
        "UPDATE flower_messages SET reply = NULL, reply_bytes = 0, code = 2 WHERE position = 1",
        "UPDATE flower_runs SET replies = 1, errors = 2",
    ],
    "an error is made a reply": [
        f"UPDATE flower_messages SET reply = {REPLY.format(1)}, code = NULL, reason = '' WHERE position = 2",
        "UPDATE flower_messages SET reply_bytes = 6 WHERE position = 2",
        "UPDATE flower_runs SET replies = 3, errors = 0",
    ],
    "an error has another code": ["UPDATE flower_messages SET code = 7 WHERE code = 2"],
    "an error has another reason": ["UPDATE flower_messages SET reason = 'other' WHERE code = 2"],
    "a reply came earlier": ["UPDATE flower_messages SET replied_at = replied_at - 1 WHERE position = 1"],
    "an answered message was offered longer": [
        "UPDATE flower_messages SET expires_at = expires_at + 60 WHERE position = 1"
    ],
    "an answered message was delivered": ["UPDATE flower_messages SET delivered_at = created_at WHERE position = 1"],
    "a content is another, in all rows": [
        f"UPDATE flower_messages SET content = '{digest_of(b'update')}' WHERE content = '{digest_of(b'model')}'",
        f"UPDATE flower_messages SET reply = '{digest_of(b'model')}', reply_bytes = 5 WHERE position = 1",
    ],
    "a message is deleted with its reply": [
        "DELETE FROM flower_messages WHERE position = 3",
        "UPDATE flower_messages SET position = position - 1 WHERE position > 3",
        "UPDATE flower_runs SET messages = 4, replies = 1",
    ],
    "the last message is deleted": [
        "DELETE FROM flower_messages WHERE position = 5",
        "UPDATE flower_runs SET messages = 4",
    ],
    "a message is added": [ADDED, "UPDATE flower_runs SET messages = 6"],
    "a message is of another kind": ["UPDATE flower_messages SET kind = 'query' WHERE position = 1"],
    "a message has another content": [
        f"UPDATE flower_messages SET content = '{digest_of(b'update')}' WHERE position = 5"
    ],
    "a message has another id": [f"UPDATE flower_messages SET message = '{8:064}' WHERE position = 5"],
    "a message is to another device": [
        "UPDATE flower_messages SET (device, node) = (SELECT device, node FROM devices WHERE node > 0 ORDER BY node)"
    ],
    "a message was pushed earlier": ["UPDATE flower_messages SET created_at = created_at - 1 WHERE position = 1"],
    "a message is of another group": ["UPDATE flower_messages SET group_id = 'x' WHERE position = 1"],
    "all messages are of a second round": [
        "UPDATE flower_messages SET round = 2 WHERE position > 3",
        "UPDATE flower_runs SET rounds = 2",
    ],
    "two messages have changed places": [
        "UPDATE flower_messages SET position = 99 WHERE position = 1",
        "UPDATE flower_messages SET position = 1 WHERE position = 2",
        "UPDATE flower_messages SET position = 2 WHERE position = 99",
    ],
    "the run is of another app": ["UPDATE flower_runs SET digest = 'x'"],
    "the run has another configuration": ["UPDATE flower_runs SET config = '{}', max_reply = 5"],
    "the run has another number": ["UPDATE flower_runs SET number = number + 1"],
    "the run has ended": ["UPDATE flower_runs SET status = 'finished', ended_at = latest_at + 9"],
}
DOCTORINGS_OF_AN_END = {
    name: DOCTORINGS[name]
    for name in (
        "two replies are exchanged",
        "a reply is deleted, and its message waits",
        "a content is another, in all rows",
        "the last message is deleted",
    )
} | {
    "another status": ["UPDATE flower_runs SET status = 'stopped'"],
    "another reason": ["UPDATE flower_runs SET reason = 'the operator wanted it'"],
    "a later end": ["UPDATE flower_runs SET ended_at = ended_at + 60"],
    "no end": ["UPDATE flower_runs SET status = 'running', ended_at = NULL, dropped_at = NULL"],
    "a waiting message was offered longer": [
        "UPDATE flower_messages SET expires_at = expires_at + 60 WHERE position = 5"
    ],
    "a waiting message was delivered": ["UPDATE flower_messages SET delivered_at = created_at WHERE position = 4"],
}


@pytest.mark.parametrize("statements", DOCTORINGS.values(), ids=DOCTORINGS)
def test_rows_that_fit_each_other_do_not_continue_the_chain(made: Doctored, statements: list[str]) -> None:
    made.change(*statements)
    assert "chain" in {invariant for invariant, _ in made.found()}


@pytest.mark.parametrize("statements", DOCTORINGS_OF_AN_END.values(), ids=DOCTORINGS_OF_AN_END)
def test_nor_do_those_of_a_run_that_has_ended_also_after_retention(made: Doctored, statements: list[str]) -> None:
    made.end()
    for _ in range(2):
        made.world.clock.at += ENDED_S
        made.world.coordinator.tick()
    made.change(*statements)
    assert "chain" in {invariant for invariant, _ in made.found()}


MEANS_NOTHING = {("flower_contents", "stored_at"), ("flower_runs", "dropped_at")}
"""What only retention asks for."""


def test_another_value_in_any_column_of_a_run_that_has_ended_is_named(made: Doctored) -> None:
    made.world.flower.runs.keep_state("vision", digest_of(b"model"))
    made.end()
    assert made.found() == []
    chance = random.Random(7)
    for table in ("flower_runs", "flower_messages", "flower_contents"):
        for column in metadata.tables[table].columns:
            if (table, column.name) in MEANS_NOTHING:
                continue
            for number, value in made.values(table, column.name):
                kept = bool(value) if column.type.python_type is bool else value
                changed = '{"lr": 0.5}' if column.name == "config" else other(kept, chance)
                if made.set(table, column.name, number, changed):
                    assert made.found(), f"{table}.{column.name} of row {number}: {value!r} -> {changed!r}"
                    made.set(table, column.name, number, value)
    assert made.found() == []


def test_links_that_were_written_down_show_a_chain_that_was_cut_or_rewritten(made: Doctored) -> None:
    made.found()
    (end,) = made.ends
    assert (end.run, end.seq) == ("vision", 8)
    assert made.found(end) == []
    made.change("DELETE FROM flower_messages WHERE position = 5")
    made.change(
        "UPDATE flower_runs SET messages = 4, seq = 7, "
        "link = (SELECT reply_link FROM flower_messages WHERE reply_seq = 7)"
    )
    assert made.found() == []
    ((invariant, what),) = made.found(end)
    assert invariant == "chain"
    assert "they were cut" in what
    assert [what for _, what in made.found(Head("gone", 1, "0" * 64))] == ["the run is gone"]


def test_what_retention_deleted_is_a_note_and_earlier_is_a_violation(made: Doctored) -> None:
    made.end()
    made.found()
    (end,) = made.ends
    for _ in range(2):
        made.world.clock.at += ENDED_S
        made.world.coordinator.tick()
    assert made.found(end) == []
    assert "run vision: retention has deleted its contents" in made.notes
    assert "which was written down" in made.found(Head("vision", end.seq, "0" * 64))[0][1]
    made.change("UPDATE flower_runs SET dropped_at = ended_at + 5")
    assert made.found() == [("flower", "its contents were dropped earlier than retention does it")]
