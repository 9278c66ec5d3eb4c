"""What every store must do for Flower runs: names, nodes, contents, messages with their replies, and rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.store.chain import flower_beginning, flower_end_link, flower_message_link, flower_reply_link
from coordinator.store.flower_rows import FlowerRound
from coordinator.store.port import Conflict, Store, StoreError, Transaction
from tests.coordinator.store import flower_rows as flower
from tests.coordinator.store import rows


def world(tx: Transaction) -> None:
    """Devices d1 to d3, and the runs f1 and f2."""
    rows.world(tx)
    for name in ("f1", "f2"):
        tx.insert_flower_run(flower.run(name))


class FlowerContract:
    def test_a_flower_run_comes_back_as_it_was_and_changes(self, store: Store) -> None:
        row = flower.run("f1", config={"lr": 0.1, "rounds": 3, "on": True, "name": "ä"}, max_reply=2**40)
        with store.transaction() as tx:
            tx.insert_flower_run(row)
            assert tx.flower_run("f1") == row
        assert store.flower_run("f1") == row
        assert store.flower_run("f2") is None
        changed = replace(row, messages=3, rounds=1, largest=7, state="c" * 64)
        with store.transaction("f1") as tx:
            tx.change_flower_run(changed)
        assert store.flower_runs() == [changed]
        with pytest.raises(StoreError, match="no Flower run f9"), store.transaction("f9") as tx:
            tx.change_flower_run(flower.run("f9"))

    def test_the_status_of_an_ended_flower_run_is_final(self, store: Store) -> None:
        ended = flower.run("f1", status="finished", ended_at=9.5)
        with store.transaction() as tx:
            tx.insert_flower_run(flower.run("f1"))
            tx.change_flower_run(ended)
            tx.drop_all_flower_contents("f1", 20.5)
        for status in ("stopped", "running", "finished"):
            with pytest.raises(Conflict), store.transaction() as tx:
                tx.change_flower_run(replace(ended, status=status, reason="other"))
        assert store.flower_run("f1") == replace(ended, dropped_at=20.5)

    def test_a_name_belongs_to_one_run_of_either_kind(self, store: Store) -> None:
        with store.transaction() as tx:
            tx.insert_run(rows.run("r1"))
            tx.insert_flower_run(flower.run("f1"))
        for name in ("r1", "f1"):
            with pytest.raises(Conflict), store.transaction() as tx:
                tx.insert_flower_run(flower.run(name, app="x/other"))
            with pytest.raises(Conflict), store.transaction() as tx:
                tx.insert_run(rows.run(name, name="other"))
        assert [row.run for row in store.runs()] == ["r1"]
        assert store.flower_runs() == [flower.run("f1")]

    def test_flower_runs_are_listed_oldest_first(self, store: Store) -> None:
        with store.transaction() as tx:
            for name, at in (("b", 3.0), ("c", 1.0), ("a", 3.0)):
                tx.insert_flower_run(flower.run(name, created_at=at))
        assert [row.run for row in store.flower_runs()] == ["c", "a", "b"]
        with store.transaction() as tx:
            tx.change_flower_run(flower.run("a", created_at=3.0, status="failed"))
        assert [row.run for row in store.flower_running()] == ["c", "b"]

    def test_devices_become_nodes_are_found_and_are_forgotten_as_nodes(self, store: Store) -> None:
        said = {"apps": [{"name": "acme/vision"}]}
        with store.transaction() as tx:
            world(tx)
            for name, node, at in (("d1", 30, 5.0), ("d2", 20, 6.0), ("d3", 2**63 - 1, 7.0)):
                assert tx.put_flower_node(name, node, said, at)
            assert tx.put_flower_node("d1", 30, {**said, "secure_only": True}, 8.0)
            assert not tx.put_flower_node("d9", 99, said, 8.0)
        found = store.device("d1")
        assert found == rows.device("d1", node=30, last_seen_at=8.0, facts={**said, "secure_only": True})
        assert [row.device for row in store.flower_nodes(7.0)] == ["d1", "d3"]
        assert store.flower_nodes_among([20, 2**63 - 1, 4]) == {20: "d2", 2**63 - 1: "d3"}
        assert store.flower_nodes_among([]) == {}
        with pytest.raises(Conflict), store.transaction() as tx:
            tx.put_flower_node("d1", 20, said, 9.0)
        with store.transaction() as tx:
            tx.drop_flower_nodes(7.0)
            tx.forget_device("d3", 9.0)
            assert not tx.put_flower_node("d3", 2**63 - 1, said, 9.5)
            tx.seen({"d2": said}, 9.5)
        assert [row.device for row in store.flower_nodes(0.0)] == ["d1"]
        assert store.flower_nodes_among([20, 30]) == {30: "d1"}

    def test_contents_belong_to_runs(self, store: Store) -> None:
        a, b = "a" * 64, "b" * 64
        with store.transaction() as tx:
            world(tx)
            tx.put_flower_content(flower.content(a))
            tx.put_flower_content(flower.content(a, stored_at=9.5))
            tx.put_flower_content(flower.content(b, bytes=2**40))
            tx.put_flower_content(flower.content(a, run="f2"))
        assert store.flower_content("f1", a) == flower.content(a, stored_at=9.5)
        assert store.flower_content("f2", b) is None
        assert [row.digest for row in store.flower_contents("f1", limit=1)] == [a]
        assert [row.digest for row in store.flower_contents("f1", after=a)] == [b]
        assert store.flower_contents_among("f1", [a, b, "c" * 64]) == {a: 100, b: 2**40}
        assert store.flower_digests() == {a, b}
        with store.transaction("f1") as tx:
            tx.drop_flower_contents("f1", [a])
        assert store.flower_content("f1", a) is None
        assert store.flower_digests() == {a, b}
        with pytest.raises(StoreError), store.transaction() as tx:
            tx.put_flower_content(flower.content(a, run="f9"))
        with store.transaction("f1") as tx:
            tx.change_flower_run(flower.run("f1", status="finished", ended_at=9.5))
            tx.drop_all_flower_contents("f1", 20.5)
        assert store.flower_contents("f1") == []
        assert [row.digest for row in store.flower_contents("f2")] == [a]
        assert store.flower_run("f1") == flower.run("f1", status="finished", ended_at=9.5, dropped_at=20.5)

    def test_messages_come_in_the_order_of_their_push_and_once(self, store: Store) -> None:
        first, second, other = flower.message(2, grouped=False), flower.message(1), flower.message(1, run="f2")
        with store.transaction() as tx:
            world(tx)
            tx.insert_flower_messages([first, second])
            tx.insert_flower_messages([other])
            tx.insert_flower_messages([])
        assert store.flower_message("f1", first.message) == first
        assert store.flower_message("f2", first.message) is None
        assert store.flower_messages("f1") == [second, first]
        assert store.flower_messages("f1", after=1, limit=5) == [first]
        assert store.flower_messages("f1", limit=1) == [second]
        named = [first.message, second.message, first.message, "9" * 64]
        assert store.flower_messages_among("f1", named) == [second, first]
        many = [f"{number:064x}" for number in range(5000, 6200)]
        assert store.flower_messages_among("f1", [*many, first.message]) == [first]
        for taken in (first, flower.message(2, message="7" * 64)):
            with pytest.raises(Conflict), store.transaction("f1") as tx:
                tx.insert_flower_messages([taken])

    def test_a_message_is_open_for_its_device_until_it_is_answered_or_expired(self, store: Store) -> None:
        old, new, of_other = flower.message(1), flower.message(2, created_at=11.0), flower.message(3, device="d2")
        with store.transaction() as tx:
            world(tx)
            tx.insert_flower_messages([new, old, of_other])
            tx.insert_flower_messages([flower.message(1, run="f2", created_at=10.5, expires_at=50.0)])
        assert [(row.run, row.position) for row in store.flower_open("d1", 20.0)] == [("f1", 1), ("f2", 1), ("f1", 2)]
        assert [(row.run, row.position) for row in store.flower_open("d1", 50.0)] == [("f1", 1), ("f1", 2)]
        with store.transaction("f1") as tx:
            tx.deliver_flower_message("f1", new.message, 21.5)
            tx.deliver_flower_message("f1", new.message, 22.5)
        assert store.flower_open("d1", 30.0)[0] == replace(new, delivered_at=21.5)
        assert store.flower_under_way(30.0) == [replace(new, delivered_at=21.5)]
        assert store.flower_under_way(100.0) == []
        with store.transaction("f1") as tx:
            tx.answer_flower_message(flower.answered(new))
        assert [(row.run, row.position) for row in store.flower_open("d1", 30.0)] == [("f1", 1), ("f2", 1)]
        with store.transaction("f1") as tx:
            tx.change_flower_run(flower.run("f1", status="stopped"))
        assert [(row.run, row.position) for row in store.flower_open("d1", 30.0)] == [("f2", 1)]
        with pytest.raises(StoreError, match="no message"), store.transaction("f1") as tx:
            tx.deliver_flower_message("f1", "9" * 64, 1.0)

    def test_an_expired_message_is_offered_again_as_new(self, store: Store) -> None:
        message = flower.message(1, expires_at=50.0)
        with store.transaction() as tx:
            world(tx)
            tx.insert_flower_messages([message])
            tx.deliver_flower_message("f1", message.message, 20.0)
        assert store.flower_expired("f1", 49.0) == 0
        assert store.flower_expired("f1", 50.0) == 1
        with store.transaction("f1") as tx:
            tx.offer_flower_message("f1", message.message, 90.0)
        assert store.flower_expired("f1", 50.0) == 0
        assert store.flower_open("d1", 60.0) == [replace(message, expires_at=90.0)]

    def test_a_message_has_one_reply(self, store: Store) -> None:
        first, second = flower.message(1), flower.message(2)
        answered, failed = flower.answered(first), flower.failed(second)
        with store.transaction() as tx:
            world(tx)
            tx.insert_flower_messages([first, second, flower.message(3)])
            tx.insert_flower_messages([flower.message(1, run="f2")])
            tx.answer_flower_message(answered)
            tx.answer_flower_message(failed)
            assert tx.flower_message("f1", first.message) == answered
        assert store.flower_messages("f1") == [answered, failed, flower.message(3)]
        assert store.flower_messages("f2") == [flower.message(1, run="f2")]
        with pytest.raises(Conflict, match="has a reply already"), store.transaction("f1") as tx:
            tx.answer_flower_message(replace(answered, reply="e" * 64))
        with pytest.raises(StoreError, match="no message"), store.transaction("f1") as tx:
            tx.answer_flower_message(flower.answered(flower.message(9)))
        assert store.flower_message("f1", first.message) == answered

    def test_messages_replies_and_the_end_are_one_chain(self, store: Store) -> None:
        first, second = flower.message(1), flower.message(2)
        with store.transaction() as tx:
            world(tx)
            tx.insert_flower_messages([first])
            tx.answer_flower_message(flower.answered(first))
            tx.insert_flower_messages([second])
            tx.change_flower_run(flower.run("f1", messages=2))
            tx.change_flower_run(flower.run("f1", messages=2, status="finished", ended_at=9))
        run, messages = store.flower_run("f1"), store.flower_messages("f1")
        assert run is not None
        link = flower_message_link(flower_beginning(run), 1, first)
        assert (messages[0].seq, messages[0].link) == (1, link)
        link = flower_reply_link(link, 2, flower.answered(first))
        assert (messages[0].reply_seq, messages[0].reply_link) == (2, link)
        link = flower_message_link(link, 3, second)
        assert (messages[1].seq, messages[1].link) == (3, link)
        assert (run.seq, run.link) == (4, flower_end_link(link, 4, run, [(second.message, second.expires_at, None)]))

    def test_a_group_is_a_round_in_numbers(self, store: Store) -> None:
        messages = [flower.message(number, created_at=10.0 + number) for number in (1, 2, 3, 4)]
        late = flower.message(5, round=2, group_id="2", created_at=30.0)
        with store.transaction() as tx:
            world(tx)
            tx.insert_flower_messages([*messages, late])
            tx.deliver_flower_message("f1", messages[0].message, 20.0)
            tx.answer_flower_message(flower.answered(messages[0], reply_bytes=70, replied_at=41.5))
            tx.answer_flower_message(flower.failed(messages[1]))
        assert store.flower_round_of("f1", "1") == 1
        assert store.flower_round_of("f1", "2") == 2
        assert store.flower_round_of("f1", "3") is None
        first, second = store.flower_rounds("f1", 60.0)
        assert first == FlowerRound(
            round=1, group_id="1", opened_at=11.0, messages=4, delivered=1, replies=1, errors=1, expired=0,
            bytes_in=70, last_at=41.5,
        )  # fmt: skip
        assert first.open == 2
        assert second.last_at is None
        assert [row.expired for row in store.flower_rounds("f1", 100.0)] == [2, 1]
        assert store.flower_rounds("f1", 60.0, after=1) == [second]
        assert store.flower_rounds("f1", 60.0, limit=1) == [first]
        assert store.flower_rounds("f2", 60.0) == []

    def test_contents_without_use_are_those_that_no_open_message_no_reply_and_no_state_has(self, store: Store) -> None:
        used = {name: name * 64 for name in "abcdef"}
        answered, waiting = flower.message(1, content=used["a"]), flower.message(2, content=used["b"])
        again = flower.message(3, content=used["f"])
        with store.transaction() as tx:
            world(tx)
            for digest in used.values():
                tx.put_flower_content(flower.content(digest, stored_at=5.0))
            tx.insert_flower_messages([answered, waiting, again])
            tx.answer_flower_message(flower.answered(answered, reply=used["c"]))
            tx.answer_flower_message(flower.answered(again, reply=used["f"]))
            tx.change_flower_run(flower.run("f1", state=used["d"]))
        assert store.flower_unneeded("f1", 9.0) == [used["a"], used["e"]]
        assert store.flower_unneeded("f1", 5.0) == []
        assert store.flower_unneeded("f2", 9.0) == []
        with store.transaction("f1") as tx:
            tx.change_flower_run(flower.run("f1", state=used["a"]))
        assert store.flower_unneeded("f1", 9.0) == [used["d"], used["e"]]
        assert store.flower_addressed("f1", "d1", used["b"])
        assert not store.flower_addressed("f1", "d2", used["b"])
        assert not store.flower_addressed("f1", "d1", used["c"])
        assert not store.flower_addressed("f2", "d1", used["b"])
