"""``verify`` names what somebody has changed in the rows or the contents of a Flower run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_sdk.protocol.flower import FlowerError
from coordinator.blobs import BlobFolder, FileBlobs
from coordinator.runtime.flower.retention import ENDED_S
from coordinator.store.sql import SqlStore
from coordinator.verify import Head, verify
from tests.coordinator import databases
from tests.coordinator.runtime.flower_world import FlowerWorld, digest_of


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

    def change(self, statement: str) -> None:
        with self.store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            assert connection.exec_driver_sql(statement).rowcount
            connection.commit()
            connection.exec_driver_sql("PRAGMA foreign_keys=ON")

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
    assert made.store.flower_messages("vision") == []
    assert made.found() == []


FIRST = "message = (SELECT message FROM flower_messages WHERE position = 1)"
ONE_NODE = "device = (SELECT min(device) FROM flower_nodes)"
COPIED = f"""INSERT INTO flower_replies SELECT run, '{"8" * 64}', content, bytes, code, reason, at, seq, link
FROM flower_replies WHERE {FIRST}"""
WAITS = "message = (SELECT message FROM flower_messages WHERE position = 5)"
THIRD = "message = (SELECT message FROM flower_messages WHERE position = 3)"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (f"DELETE FROM flower_replies WHERE {FIRST}", "is marked as answered, and has no reply"),
        (f"UPDATE flower_replies SET message = '{'9' * 64}' WHERE {FIRST}", "belongs to 9999"),
        (f"UPDATE flower_messages SET answered = 0 WHERE {FIRST}", "has a reply unmarked"),
        (COPIED, "belongs to 888888888888, which is no message"),
        ("UPDATE flower_runs SET replies = 3", "it has counted 3 replies, and has 2"),
        ("UPDATE flower_runs SET errors = 0", "it has counted 0 errors, and has 1"),
        ("UPDATE flower_runs SET messages = 9", "it has counted 9 messages, and has 5"),
        (f"UPDATE flower_replies SET code = 7 WHERE {FIRST}", "both a content and an error, or neither"),
        (f"UPDATE flower_replies SET bytes = 99 WHERE {FIRST}", "counts 99 bytes, and its content has 6"),
        (f"DELETE FROM flower_contents WHERE digest = '{digest_of(b'update')}'", "which is not there"),
        (f"DELETE FROM flower_contents WHERE digest = '{digest_of(b'model')}'", "waits, and its content"),
        (f"UPDATE flower_runs SET state = '{'7' * 64}'", "which is the ServerApp's state"),
        (f"UPDATE flower_messages SET device = 'd-other' WHERE {WAITS}", "which is not d-other"),
        (f"UPDATE flower_nodes SET node = 4711 WHERE {ONE_NODE}", "which is not its own"),
        ("UPDATE flower_messages SET position = 9 WHERE position = 2", "has the place"),
        ("UPDATE flower_messages SET round = 5 WHERE position = 3", "is of round 5, of 1"),
        ("UPDATE flower_runs SET status = 'finished'", "it is finished, and its end is None"),
        ("UPDATE flower_runs SET dropped_at = 5", "its messages were dropped, and it has not ended"),
        ("UPDATE flower_contents SET bytes = 4 WHERE bytes = 5", "of 4 bytes has 5 bytes"),
    ],
)  # fmt: skip
def test_a_changed_row_is_named(made: Doctored, statement: str, words: str) -> None:
    made.change(statement)
    found = made.found()
    assert any(invariant == "flower" and words in what for invariant, what in found), found


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (f"UPDATE flower_replies SET at = at + 1e6 WHERE {FIRST}", "came after the end of the run"),
        (
            f"UPDATE flower_messages SET created_at = created_at + 1e6 WHERE {WAITS}",
            "was pushed after the end of the run",
        ),
        ("UPDATE flower_runs SET status = 'running'", "it is running, and its end is"),
    ],
)
def test_what_came_after_the_end_is_named(made: Doctored, statement: str, words: str) -> None:
    made.end()
    made.change(statement)
    assert any(words in what for _, what in made.found())


def test_the_numbers_of_dropped_messages_are_held_against_the_run(made: Doctored) -> None:
    made.end()
    for _ in range(2):
        made.world.clock.at += ENDED_S
        made.world.coordinator.tick()
    made.change("UPDATE flower_rounds SET replies = 4")
    assert made.found() == [("flower", "it has counted 2 replies, and its rounds have 4")]


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


def swapped(table: str, columns: str, one: str, other: str) -> list[str]:
    """Statements that exchange these columns of two rows."""
    both = f"({one} OR {other})"
    return [
        f"CREATE TEMP TABLE kept AS SELECT * FROM {table} WHERE {both}",
        *(
            f"UPDATE {table} SET {column} = (SELECT {column} FROM kept WHERE {second}) WHERE {first}"
            for column in columns.split()
            for first, second in ((one, other), (other, one))
        ),
    ]


ADDED = f"""INSERT INTO flower_messages SELECT run, '{"8" * 64}', 6, round, group_id, node, device, kind, content,
created_at, expires_at, delivered_at, answered, grouped, 9, link FROM flower_messages WHERE position = 5"""
OF_THIRD = f"(SELECT content FROM flower_replies WHERE {THIRD})"
DOCTORINGS = {
    "two replies are exchanged": swapped("flower_replies", "content bytes at", FIRST, THIRD),
    "two replies are exchanged with their links": swapped("flower_replies", "content bytes at seq link", FIRST, THIRD),
    "a reply has the content of another": [f"UPDATE flower_replies SET content = {OF_THIRD}, bytes = 5 WHERE {FIRST}"],
    "a reply is deleted, and its message waits": [
        f"DELETE FROM flower_replies WHERE {FIRST}",
        f"UPDATE flower_messages SET answered = 0 WHERE {FIRST}",
        "UPDATE flower_runs SET replies = 1",
    ],
    "a reply is made an error": [
        f"UPDATE flower_replies SET content = NULL, bytes = 0, code = 2 WHERE {FIRST}",
        "UPDATE flower_runs SET replies = 1, errors = 2",
    ],
    "an error has another code": ["UPDATE flower_replies SET code = 7 WHERE code = 2"],
    "an error has another reason": ["UPDATE flower_replies SET reason = 'other' WHERE code = 2"],
    "a reply came earlier": [f"UPDATE flower_replies SET at = at - 1 WHERE {FIRST}"],
    "a message is deleted with its reply": [
        f"DELETE FROM flower_replies WHERE {THIRD}",
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
    "a message is to another device": [
        "UPDATE flower_messages SET (device, node) = (SELECT device, node FROM flower_nodes ORDER BY device DESC)"
    ],
    "a message was pushed earlier": ["UPDATE flower_messages SET created_at = created_at - 1 WHERE position = 1"],
    "a message is of another group": ["UPDATE flower_messages SET group_id = 'x' WHERE position = 1"],
    "two messages have changed places": [
        "UPDATE flower_messages SET position = 99 WHERE position = 1",
        "UPDATE flower_messages SET position = 1 WHERE position = 2",
        "UPDATE flower_messages SET position = 2 WHERE position = 99",
    ],
    "the run is of another app": ["UPDATE flower_runs SET digest = 'x'"],
    "the run has another configuration": ["UPDATE flower_runs SET config = '{}', max_reply = 5"],
}


@pytest.mark.parametrize("statements", DOCTORINGS.values(), ids=DOCTORINGS)
def test_rows_that_fit_each_other_do_not_continue_the_chain(made: Doctored, statements: list[str]) -> None:
    with made.store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        for statement in statements:
            connection.exec_driver_sql(statement)
        connection.commit()
        connection.exec_driver_sql("PRAGMA foreign_keys=ON")
    assert "chain" in {invariant for invariant, _ in made.found()}


def test_links_that_were_written_down_show_a_chain_that_was_cut_or_rewritten(made: Doctored) -> None:
    made.found()
    (end,) = made.ends
    assert (end.run, end.seq) == ("vision", 8)
    assert made.found(end) == []
    made.change("DELETE FROM flower_messages WHERE position = 5")
    made.change("UPDATE flower_runs SET messages = 4, seq = 7, link = (SELECT link FROM flower_replies WHERE seq = 7)")
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
    assert "run vision: retention has deleted its messages" in made.notes
    assert "which was written down" in made.found(Head("vision", end.seq, "0" * 64))[0][1]
    made.change("UPDATE flower_runs SET dropped_at = ended_at + 5")
    assert made.found() == [("flower", "its messages were dropped earlier than retention does it")]
