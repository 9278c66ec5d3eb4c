"""``verify`` names what somebody has changed in the rows or the contents of a Flower run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_sdk.protocol.flower import FlowerError
from coordinator.blobs import BlobFolder, FileBlobs
from coordinator.runtime.flower.retention import ENDED_S
from coordinator.store.sql import SqlStore
from coordinator.verify import verify
from tests.coordinator import databases
from tests.coordinator.runtime.flower_world import FlowerWorld, digest_of


class Doctored:
    """A Flower run on a disk: a reply, an error, a message that waits, and one that has expired."""

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
        self.world.clock.at += 6

    def found(self) -> list[tuple[str, str]]:
        return [(one.invariant, one.what) for one in verify(self.store, BlobFolder(self.blobs.folder))]

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
COPIED = f"""INSERT INTO flower_replies SELECT run, '{"8" * 64}', content, bytes, code, reason, at FROM flower_replies
WHERE {FIRST}"""
WAITS = "message = (SELECT message FROM flower_messages WHERE position = 3)"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (f"DELETE FROM flower_replies WHERE {FIRST}", "is marked as answered, and has no reply"),
        (f"UPDATE flower_replies SET message = '{'9' * 64}' WHERE {FIRST}", "belongs to 9999"),
        (f"UPDATE flower_messages SET answered = 0 WHERE {FIRST}", "has a reply unmarked"),
        (COPIED, "belongs to 888888888888, which is no message"),
        ("UPDATE flower_runs SET replies = 2", "it has counted 2 replies, and has 1"),
        ("UPDATE flower_runs SET errors = 0", "it has counted 0 errors, and has 1"),
        ("UPDATE flower_runs SET messages = 9", "it has counted 9 messages, and has 4"),
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
    assert made.found() == [("flower", "it has counted 1 replies, and its rounds have 4")]


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
