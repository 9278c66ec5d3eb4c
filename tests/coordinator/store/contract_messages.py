"""What every store must do for the short messages of secure rounds."""

from __future__ import annotations

from contextlib import suppress

import pytest

from coordinator.store.port import Store, StoreError
from coordinator.store.rows import MessageRow
from tests.coordinator.store import rows

LONG = bytes(range(256)) * 256


def message(digest: str, *, run: str = "r1", round: int = 1, content: bytes = b"") -> MessageRow:
    return MessageRow(run=run, round=round, digest=digest * 64, content=content or digest.encode())


class MessagesContract:
    def test_messages_are_found_by_their_digests(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_run(rows.run("r2"))
        with store.transaction("r1") as tx:
            tx.insert_messages([message("a", content=LONG), message("b", round=2), message("a", run="r2")])
            tx.insert_messages([])
            assert tx.messages("r1", ["b" * 64]) == {"b" * 64: b"b"}
        assert store.messages("r1", ["a" * 64, "c" * 64]) == {"a" * 64: LONG}
        assert store.messages("r2", ["a" * 64, "b" * 64]) == {"a" * 64: b"a"}
        assert store.messages("r1", []) == store.messages("r3", ["a" * 64]) == {}
        assert store.message_rounds("r1") == {"a" * 64: 1, "b" * 64: 2}
        assert store.message_rounds("r3") == {}
        assert "\\x01\\x02" not in repr(message("a", content=LONG)), "they may hold shares"

    def test_many_messages_are_read_at_once(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            made = [MessageRow(run="r1", round=1, digest=f"{n:064x}", content=bytes([n % 256])) for n in range(1300)]
            tx.insert_messages(made)
        assert store.messages("r1", [row.digest for row in made]) == {row.digest: row.content for row in made}

    def test_a_message_that_is_there_is_of_the_newer_round(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_messages([message("a"), message("b")])
        with store.transaction("r1") as tx:
            tx.insert_messages([message("a", round=2)])
        assert store.message_rounds("r1") == {"a" * 64: 2, "b" * 64: 1}
        assert store.message_rounds("r1", 1) == {"b" * 64: 1}
        assert store.messages("r1", ["a" * 64]) == {"a" * 64: b"a"}

    def test_the_messages_of_a_round_are_dropped_together(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_run(rows.run("r2"))
            tx.insert_messages([message("a"), message("b"), message("c", round=2), message("a", run="r2")])
        with store.transaction("r1") as tx:
            tx.drop_messages("r1", 1)
            tx.drop_messages("r1", 7)
        assert store.message_rounds("r1") == {"c" * 64: 2}
        assert store.message_rounds("r2") == {"a" * 64: 1}

    def test_messages_go_with_their_transaction(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_messages([message("a")])
        with suppress(ZeroDivisionError), store.transaction("r1") as tx:
            tx.insert_messages([message("b")])
            tx.drop_messages("r1", 1)
            _ = 1 / 0
        assert store.message_rounds("r1") == {"a" * 64: 1}

    def test_messages_of_an_unknown_run_are_refused(self, store: Store) -> None:
        with pytest.raises(StoreError), store.transaction() as tx:
            tx.insert_messages([message("a", run="r9")])
        assert store.message_rounds("r9") == {}
