"""The lines and the totals of a run, from what the Grid tells."""

from __future__ import annotations

from coordinator.flower.tally import (
    GroupLine,
    MessagesPushed,
    NodesAwaited,
    Notice,
    ReplyTaken,
    RunTally,
    Totals,
    awaited,
    first_line,
)


def test_a_group_has_a_line_when_the_next_one_begins_and_the_totals_come_last() -> None:
    now, lines = [0.0], list[GroupLine | str]()
    tally = RunTally(lines.append, clock=lambda: now[0])
    tally.happened(MessagesPushed("train", "1", 2, 0))
    now[0] = 1.5
    tally.happened(ReplyTaken("train", "1", None))
    tally.happened(ReplyTaken("train", "1", "no\nmemory"))
    assert lines == []
    tally.happened(MessagesPushed("evaluate", "1", 1, 0))
    tally.happened(ReplyTaken("train", "1", None))  # late: counted, and in no line
    tally.happened(ReplyTaken("evaluate", "1", None))
    now[0] = 2.0
    assert tally.end() == Totals(rounds=1, replies=3, errors=1, seconds=2.0)
    assert [str(line) for line in lines] == [
        "round 1, train: 2 of 2 replied, 1 of them errors (the first: no memory), 1.5 s",
        "round 1, evaluate: 1 of 1 replied, 0.0 s",
    ]
    assert all(isinstance(line, GroupLine) and line.done for line in lines)


def test_threads_that_push_one_message_each_are_one_line() -> None:
    lines = list[GroupLine | str]()
    tally = RunTally(lines.append)
    for _ in range(3):
        tally.happened(MessagesPushed("train", "1", 1, 0))
        tally.happened(ReplyTaken("train", "1", None))
    assert tally.end().replies == 3
    assert [(line.messages, line.replies) for line in lines if isinstance(line, GroupLine)] == [(3, 3)]


def test_a_long_group_has_lines_before_it_is_over() -> None:
    now, lines = [0.0], list[GroupLine | str]()
    tally = RunTally(lines.append, clock=lambda: now[0])
    tally.happened(MessagesPushed("query", "", 100, 0))
    for number in range(100):
        now[0] = number / 10
        tally.happened(ReplyTaken("query", "", None))
    tally.end()
    assert [(line.replies, line.done) for line in lines if isinstance(line, GroupLine)] == [
        (21, False),
        (41, False),
        (61, False),
        (81, False),
        (100, True),
    ]
    assert str(lines[-1]).startswith("query: 100 of 100 replied")


def test_sentences_go_through() -> None:
    lines = list[GroupLine | str]()
    tally = RunTally(lines.append)
    tally.happened(Notice("The coordinator answers again."))
    tally.happened(NodesAwaited(0))
    tally.end()
    assert lines == ["The coordinator answers again.", awaited(0, {})]


def test_what_is_said_of_a_server_app_that_waits() -> None:
    assert awaited(0, {}).startswith(
        "The ServerApp waits for more devices: no device is there that can serve it. Start"
    )
    said = awaited(1, {"It has version 2 of the app.": 3})
    assert "1 device is there that can serve it. 3 more cannot serve it: It has version 2 of the app. Start" in said
    assert awaited(7, {}).startswith("The ServerApp waits for more devices: 7 devices are there")


def test_a_server_app_that_waits_for_more_nodes_than_are_simulated_is_told_so() -> None:
    lines: list[object] = []
    RunTally(lines.append, simulation=4).happened(NodesAwaited(4))
    assert lines == [
        (
            "The ServerApp waits for more nodes than the 4 that are simulated, and no more will come: stop it and give "
            "--simulation a higher number, or have the strategy ask for fewer (min_available_nodes)."
        )
    ]


def test_a_reason_is_one_line_of_bearable_length() -> None:
    assert first_line("a\n  b") == "a b"
    assert len(first_line("x" * 500)) == 160
