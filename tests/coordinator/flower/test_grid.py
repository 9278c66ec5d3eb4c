"""The Grid against a coordinator in memory: what is pushed is durable, replies come once and in order, none is lost."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count, repeat

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from client_sdk.flower import flwr_private
from client_sdk.protocol.flower import (
    FlowerError,
    FlowerMessage,
    FlowerReply,
    PullReplies,
    Pushed,
    PushMessages,
    Replies,
)
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.flower.grid import QuorateGrid, Quorum
from coordinator.flower.patience import Patience
from coordinator.flower.tally import MessagesPushed, NodesAwaited, Notice, ReplyTaken, ServerAppEvent
from coordinator.settings import Settings
from tests.client_sdk.flower.test_records import told
from tests.flower.fake_link import APP, MemoryLink, echo

NUMBER = 77


class Run:
    """A Grid over a link, and what it told."""

    def __init__(self, link: MemoryLink, **options: object) -> None:
        from client_sdk.protocol.flower import CreateFlowerRun

        self.link, self.told = link, list[ServerAppEvent]()
        flwr_private.create_messages_as(flwr_private.SERVER_NODE, NUMBER)
        view = link.create(CreateFlowerRun(run="trial", app=APP))
        self.patience = Patience(lambda text: self.told.append(Notice(text)), sleep=lambda _: None)
        self.grid = QuorateGrid(link, view, self.patience, self.told.append, **options)  # type: ignore[arg-type]

    def of(self, kind: type[ServerAppEvent]) -> list[ServerAppEvent]:
        return [one for one in self.told if isinstance(one, kind)]


def message(node: int, value: float = 1.0, kind: str = "train", group: str = "1") -> Message:
    return Message(RecordDict({"m": MetricRecord({"value": value})}), node, kind, group_id=group, ttl=60.0)


def values(messages: list[Message]) -> list[object]:
    return [one.content["m"]["value"] for one in messages]


def test_replies_are_those_of_the_messages_in_their_order() -> None:
    run = Run(MemoryLink(answer=lambda one, records: records if one.node != 101 else FlowerError(code=2, reason="no")))
    sent = [message(node, float(node)) for node in (102, 101, 100)]
    replies = run.grid.send_and_receive(sent)
    assert [one.metadata.reply_to_message_id for one in replies] == [one.metadata.message_id for one in sent]
    assert [one.metadata.src_node_id for one in replies] == [102, 101, 100]
    assert (replies[1].has_error(), replies[1].error.code, replies[1].error.reason) == (True, 2, "no")
    assert values([replies[0], replies[2]]) == [102.0, 100.0]
    first = replies[0].metadata
    assert (first.run_id, first.dst_node_id, first.group_id, first.message_type) == (
        77,
        flwr_private.SERVER_NODE,
        "1",
        "train",
    )
    assert run.of(ReplyTaken) == [
        ReplyTaken("train", "1", None),
        ReplyTaken("train", "1", "no"),
        ReplyTaken("train", "1", None),
    ]


def test_a_push_of_many_messages_is_several_requests_that_a_coordinator_reads() -> None:
    run = Run(MemoryLink(nodes=2500))
    lengths: list[int] = []
    push = run.link.push

    def measured(name: str, request: PushMessages) -> Pushed:
        lengths.append(len(request.model_dump_json().encode()))
        return push(name, request)

    run.link.push = measured  # type: ignore[method-assign]
    group = "ä" * 200
    sent = [message(100 + number, group=group) for number in range(2500)]
    assert len(run.grid.send_and_receive(sent)) == 2500
    assert max(lengths) < Settings().max_message_bytes
    assert 2 < len(lengths) < 20


def test_arrays_come_back_exactly() -> None:
    records = RecordDict({"a": ArrayRecord([np.arange(6.0).reshape(2, 3), np.zeros((0, 2), np.int8)])})
    run = Run(MemoryLink())
    [reply] = run.grid.send_and_receive([Message(records, 100, "query")])
    assert told(reply.content) == told(records)


def test_one_content_is_uploaded_once_however_often_it_is_built() -> None:
    run = Run(MemoryLink(nodes=5))
    arrays = ArrayRecord([np.ones(1000)])
    shared = RecordDict({"a": arrays})
    run.grid.send_and_receive([Message(shared, 100 + i, "train", group_id="1") for i in range(5)])
    with ThreadPoolExecutor(5) as threads:

        def one(i: int) -> list[Message]:
            return run.grid.send_and_receive([Message(RecordDict({"a": arrays}), 100 + i, "train", group_id="2")])

        found = list(chain(*threads.map(one, range(5))))
    assert len(found) == 5
    assert len(run.link.uploads) == 1
    assert len(run.link.messages) == 10


def test_content_that_an_iterator_changes_between_messages_is_sent_as_it_was() -> None:
    run = Run(MemoryLink())
    records = RecordDict({"m": MetricRecord({"value": 0})})

    def messages() -> list[Message]:
        for node in (100, 101):
            records["m"]["value"] += 1  # type: ignore[operator]
            yield Message(records, node, "query")  # type: ignore[misc]

    assert values(run.grid.send_and_receive(messages())) == [1, 2]


def test_pull_hands_each_reply_over_once() -> None:
    open_ = threading.Event()
    run = Run(MemoryLink(answer=lambda one, records: records if one.node != 101 or open_.is_set() else None))
    ids = run.grid.push_messages([message(100), message(101)])
    assert [one.metadata.src_node_id for one in run.grid.pull_messages(ids)] == [100]
    assert run.grid.pull_messages(ids) == []
    open_.set()
    run.link.settle()
    assert [one.metadata.src_node_id for one in run.grid.pull_messages(ids)] == [101]
    assert run.grid.pull_messages([*ids, "f" * 64]) == []


def test_waiting_is_one_held_request_not_many() -> None:
    run = Run(MemoryLink(answer=lambda one, records: None))
    assert run.grid.send_and_receive([message(100)], timeout=0.3) == []
    assert 1 <= len(run.link.pulls) <= 3
    assert 0 < run.link.pulls[0].hold_s <= 0.3


def test_quorum_returns_early_and_leaves_the_rest_late() -> None:
    late = threading.Event()
    answer: Callable[[FlowerMessage, RecordDict], RecordDict | None]
    answer = lambda one, records: records if one.node != 103 or late.is_set() else None  # noqa: E731
    run = Run(MemoryLink(nodes=4, answer=answer), quorum=Quorum(0.75))
    sent = [message(100 + i) for i in range(4)]
    assert [one.metadata.src_node_id for one in run.grid.send_and_receive(sent)] == [100, 101, 102]
    late.set()
    run.link.settle()
    assert [one.metadata.src_node_id for one in run.grid.pull_messages([sent[3].metadata.message_id])] == [103]


def test_grace_takes_replies_that_come_after_the_quorum() -> None:
    late = threading.Event()
    run = Run(
        MemoryLink(nodes=4, answer=lambda one, records: records if one.node < 103 or late.is_set() else None),
        quorum=Quorum(0.75, grace_s=20.0),
    )
    timer = threading.Timer(0.1, lambda: (late.set(), run.link.settle()))
    timer.start()
    assert len(run.grid.send_and_receive([message(100 + i) for i in range(4)])) == 4
    timer.join()


@pytest.mark.parametrize(
    ("share", "messages", "needs"), [(0.85, 100, 85), (0.85, 10, 9), (0.5, 3, 2), (1.0, 7, 7), (0.01, 3, 1)]
)
def test_quorum_is_rounded_up(share: float, messages: int, needs: int) -> None:
    assert Quorum(share).needs(messages) == needs


def test_coordinator_that_is_away_is_waited_out_and_named_once() -> None:
    run = Run(MemoryLink())
    run.link.refusals = chain([1, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0], count(0, 0))  # type: ignore[assignment]
    assert values(run.grid.send_and_receive([message(100, 5.0), message(101, 6.0)])) == [5.0, 6.0]
    said = [one.text for one in run.told if isinstance(one, Notice)]
    assert said[0].startswith("The coordinator does not answer now: No coordinator answers at http://x. The ServerApp")
    assert said[1] == "The coordinator answers again."
    assert len(said) == 8, "four outages, however many requests each refused"


@pytest.mark.slow
def test_away_until_the_timeout_gives_what_there_is() -> None:
    now = count()
    run = Run(MemoryLink(answer=lambda one, records: None), clock=lambda: float(next(now)))
    ids = run.grid.push_messages([message(100)])
    run.grid._patience._clock = lambda: float(next(now))  # one clock for both
    run.link.refusals = chain([0, 0], count(1, 0))  # type: ignore[assignment]
    assert run.grid.send_and_receive([message(101)], timeout=9) == []
    assert ids


def test_repro_away_between_two_replies_loses_none_of_those_that_are_there() -> None:
    run = Run(MemoryLink())
    whole = run.link.download

    def then_away(run_name: str, digest: str) -> bytes:
        found = whole(run_name, digest)
        run.link.refusals = repeat(1)  # type: ignore[assignment]
        return found

    run.link.download = then_away  # type: ignore[method-assign]
    sent = [message(100 + i, float(i)) for i in range(3)]
    assert values(run.grid.send_and_receive(sent, timeout=0.2)) == [0.0]
    run.link.refusals, run.link.download = count(0, 0), whole  # type: ignore[method-assign]
    assert values(run.grid.pull_messages([one.metadata.message_id for one in sent])) == [1.0, 2.0]


def test_two_server_apps_that_ask_for_the_same_replies_do_not_spin() -> None:
    rests: list[float] = []
    link = MemoryLink(answer=lambda one, records: None)
    run = Run(link)
    held = link.pull

    def pushed_aside(run_name: str, request: PullReplies) -> Replies:
        """As a coordinator answers the older one of two requests: at once, with nothing."""
        return held(run_name, request.changed(hold_s=0.0))

    def rest(seconds: float) -> None:
        rests.append(seconds)
        link.answer = echo
        link.settle()

    link.pull = pushed_aside  # type: ignore[method-assign]
    run.patience.rest = rest  # type: ignore[method-assign]
    assert values(run.grid.send_and_receive([message(100)])) == [1.0]
    assert (rests, len(link.pulls)) == ([1.0], 2)


def test_refusal_that_is_final_is_raised() -> None:
    run = Run(MemoryLink())

    def refuse(*_: object) -> None:
        raise problem("conflict", "The run trial was stopped.")

    run.link.push = refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(ProblemError, match="was stopped"):
        run.grid.push_messages([message(100)])


def test_started_again_the_same_messages_have_the_same_ids() -> None:
    link = MemoryLink()
    trained: list[str] = []

    def answer(one: FlowerMessage, records: RecordDict) -> RecordDict:
        trained.append(one.message)
        return records

    link.answer = answer
    first = Run(link)
    for round_number in ("1", "2"):
        first.grid.send_and_receive([message(100 + i, float(i), group=round_number) for i in range(3)])
    again = Run(link)
    for round_number in ("1", "2"):  # nodes in another order
        again.grid.send_and_receive([message(100 + i, float(i), group=round_number) for i in (2, 0, 1)])
    assert len(trained) == 6
    assert [(one.messages, one.known) for one in again.of(MessagesPushed)] == [(3, 3), (3, 3)]  # type: ignore[union-attr]
    again.grid.send_and_receive([message(100, 0.0, group="3")])
    assert [one.known for one in again.of(MessagesPushed)] == [3, 3, 0]  # type: ignore[union-attr]


def test_from_the_first_different_group_on_all_is_new() -> None:
    link = MemoryLink()
    first, again = Run(link), Run(link)
    for run, value in ((first, 1.0), (again, 9.0)):
        run.grid.send_and_receive([message(100, 0.0)])
        run.grid.send_and_receive([message(100, value, group="2"), message(101, 0.0, group="2")])
        run.grid.send_and_receive([message(100, 0.0, group="3")])
    assert [one.known for one in again.of(MessagesPushed)] == [1, 1, 0]  # type: ignore[union-attr]


def test_same_message_twice_in_a_group_is_two_messages() -> None:
    run = Run(MemoryLink())
    ids = run.grid.push_messages([message(100), message(100)])
    assert len(set(ids)) == 2
    assert len(run.grid.pull_messages(ids)) == 2


@pytest.mark.parametrize(
    ("node", "ttl", "group", "said"),
    [
        (-3, 60.0, "1", "its dst_node_id is -3; Input should be greater than 0"),
        (100, -5.0, "1", "its ttl is -5.0; Input should be greater than 0"),
        (100, 60.0, "g" * 300, "its group_id is 'ggg"),
    ],
)
def test_metadata_that_no_message_can_have_is_one_sentence(node: int, ttl: float, group: str, said: str) -> None:
    run = Run(MemoryLink())
    with pytest.raises(ValueError, match=re.escape(f"A message cannot be pushed: {said}")) as refused:
        run.grid.push_messages([Message(RecordDict(), node, "train", ttl=ttl, group_id=group)])
    assert "\n" not in str(refused.value)
    assert run.link.messages == {}


def test_repro_node_that_has_left_is_an_error_reply_and_the_others_go_on() -> None:
    run = Run(MemoryLink(nodes=3))
    nodes = run.grid.get_node_ids()
    del run.link.there[1]
    replies = run.grid.send_and_receive([message(node, float(node)) for node in nodes])
    assert [one.metadata.src_node_id for one in replies] == nodes
    assert (replies[1].error.code, replies[1].error.reason) == (
        5, "there is no device with the node id 101 (any more)",
    )  # fmt: skip
    assert values([replies[0], replies[2]]) == [100.0, 102.0]
    [gone] = run.grid.push_messages([message(101)])
    assert [one.error.code for one in run.grid.pull_messages([gone, gone])] == [5]
    assert run.grid.pull_messages([gone]) == []


def test_push_that_fails_names_nothing() -> None:
    link = MemoryLink()
    run, other = Run(link), Run(MemoryLink())
    received = message(102)
    flwr_private.set_message_id(received, "c" * 64)
    with pytest.raises(ValueError, match="cannot push a reply"):
        run.grid.push_messages([message(100), Message(RecordDict(), reply_to=received)])
    assert run.grid.push_messages([message(100)]) == other.grid.push_messages([message(100)])


def test_many_threads_lose_nothing_and_get_their_own() -> None:
    run = Run(MemoryLink(nodes=40))
    with ThreadPoolExecutor(20) as threads:

        def one(node: int) -> object:
            return values(run.grid.send_and_receive([message(node, float(node))]))

        found = list(threads.map(one, range(100, 140)))
    assert found == [[float(node)] for node in range(100, 140)]


def test_round_is_taken_from_the_configuration_where_a_strategy_sets_no_group() -> None:
    run = Run(MemoryLink())
    records = RecordDict({"config": ConfigRecord({"server-round": 4, "lr": 0.1})})
    [reply] = run.grid.send_and_receive([Message(records, 100, "train")])
    pushed = next(iter(run.link.messages.values()))
    assert (pushed.group, pushed.grouped) == ("4", False)
    assert reply.metadata.group_id == ""
    assert run.of(MessagesPushed) == [MessagesPushed("train", "4", 1, 0)]
    run.grid.push_messages([message(101, group="4")])
    assert [one.grouped for one in run.link.messages.values()] == [False, True]


def test_reply_that_nobody_can_read_is_an_error_reply() -> None:
    run = Run(MemoryLink(answer=lambda one, records: None))
    ids = run.grid.push_messages([message(100)])
    run.link.contents["b" * 64] = b"\x80\x04K\x01."
    run.link.replies[ids[0]] = FlowerReply(message=ids[0], node=100, at=1.0, content="b" * 64, bytes=5)
    [reply] = run.grid.pull_messages(ids)
    assert reply.error.reason == "The reply cannot be read: This is no content of a Flower message."


def test_waiting_for_nodes_is_told_once_and_again_when_their_number_changes() -> None:
    now = [0.0]
    run = Run(MemoryLink(nodes=2), clock=lambda: now[0])
    run.link.ineligible = {"It has no app tests/tiny.": 3}

    def ask(times: int) -> None:
        for _ in range(times):
            assert run.grid.get_node_ids() == [node.node for node in run.link.there]
            now[0] += 1.0

    ask(3)
    assert run.of(NodesAwaited) == []
    ask(5)
    assert run.of(NodesAwaited) == [NodesAwaited(2, {"It has no app tests/tiny.": 3})]
    run.link.there.pop()
    ask(3)
    assert len(run.of(NodesAwaited)) == 1, "it may be enough now"
    ask(1)
    assert [one.nodes for one in run.of(NodesAwaited)] == [2, 1]  # type: ignore[union-attr]
    run.grid.send_and_receive([message(100)])
    ask(3)
    assert len(run.of(NodesAwaited)) == 2, "it has sent something: it does not wait"


def test_run_and_nodes_as_flower_has_them() -> None:
    run = Run(MemoryLink(nodes=2))
    assert (run.grid.run.run_id, run.grid.run.fab_id) == (77, "tests/tiny")
    assert [node.node_id for node in run.grid.get_nodes()] == [100, 101]
    run.grid.set_run(run.grid.run)
    with pytest.raises(ValueError, match="of the run 77"):
        run.grid.set_run(flwr_private.run_of(8, "", "", "", {}))
    made = run.grid.create_message(RecordDict(), "query.x", 100, "5", 9.0)
    assert (made.metadata.message_type, made.metadata.group_id, made.metadata.ttl) == ("query.x", "5", 9.0)
