"""``quorate rounds --secure``: what people see of real secure rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from client_sdk.protocol.operators import STILL_READ, RoundView, SecureView
from coordinator.commands.watch import print_secure_rounds, seen
from tests.coordinator.served import RUN, SECTION, Served


@pytest.fixture
def world() -> Iterator[Served]:
    made = Served()
    made.secure_run(cohort={"select": 6, "goal": 6, "quorum": 0.6, "select_s": 10, "collect_s": 60})
    yield made
    made.close()


def shown(world: Served, capsys: pytest.CaptureFixture[str]) -> tuple[list[list[str]], str]:
    """The rows of the table as words, and what follows it."""
    capsys.readouterr()
    print_secure_rounds(world.coordinator.operators.rounds(RUN))
    lines = capsys.readouterr().out.splitlines()
    first = next((place for place, line in enumerate(lines) if line.startswith("Round ")), len(lines))
    return [line.split() for line in lines[1:first]], " ".join(lines[first:])


def test_every_exchange_has_its_counts_against_what_it_needs(world: Served, capsys: pytest.CaptureFixture[str]) -> None:
    world.phones[2].stops = "mask"
    world.begin()
    world.play_to_end()
    rows, words = shown(world, capsys)
    assert [row[:7] for row in rows] == [
        ["1", "0", "advertise", "6", "4", "6", "0"],
        ["1", "0", "share", "6", "5", "6", "0"],
        ["1", "0", "mask", "5", "5", "6", "1"],
        ["1", "0", "agree", "5", "5", "5", "0"],
        ["1", "0", "unmask", "5", "5", "5", "0"],
    ]
    assert "the coordinator saw the sum of 5 updates" in words
    assert "1 vanished before they masked" in words
    assert all(float(row[8]) > 0 for row in rows)


def test_repro_of_several_groups_each_sum_was_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """It said "the sum of 9 updates, and no sum of fewer", where the sums of 3 updates were opened."""
    world = Served(9)
    world.secure_run(secure={**SECTION, "groups": 3, "margin": 0})
    world.begin()
    world.play_to_end()
    _, words = shown(world, capsys)
    world.close()
    assert "saw the sums of 3 of 3 groups, of 3 updates each, their total weights" in words
    assert "no sum of fewer than one group's, as long as" in words
    assert "the sum of 9" not in words
    secure = SecureView(attempts=1, groups=4, fallen=1, sums=(3, 2, 3), opened=True)
    said = seen(RoundView(round=1, status="committed", opened_at=0, weight=80, secure=secure), secure)
    assert "the sums of 3 of 4 groups, of 2 to 3 updates each, their total weights (here 80, rounded, together)" in said
    assert "Of 1 more it may have seen the sum as well, which is not in the model." in said
    assert said.endswith(STILL_READ)
    private = secure.model_copy(update={"noise": 2.0})
    said = seen(RoundView(round=1, status="committed", opened_at=0, weight=80, secure=private), private)
    assert said.endswith("Each sum has noise of 2 times the clip in it, that of its devices, for whoever looks at it.")


def test_repro_who_was_not_needed_any_more_is_not_gone(world: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """The sum is opened as soon as enough shares are there."""
    world.phones[2].stops = "unmask"
    world.begin()
    world.play_to_end()
    rows, _ = shown(world, capsys)
    assert [row[:7] for row in rows[3:]] == [
        ["1", "0", "agree", "6", "5", "6", "0"],
        ["1", "0", "unmask", "5", "5", "6", "0"],
    ]


def test_a_round_without_a_sum_says_that_nothing_was_seen(world: Served, capsys: pytest.CaptureFixture[str]) -> None:
    world.begin()
    world.play(lambda: world.state.phase == "masking")
    rows, words = shown(world, capsys)
    assert [row[2] for row in rows] == ["advertise", "share", "mask"]
    assert rows[-1][3] == "0"
    assert "it could see no update and no sum of updates" in words


def test_every_attempt_is_shown_with_why_it_was_given_up(world: Served, capsys: pytest.CaptureFixture[str]) -> None:
    for phone in world.phones[3:5]:
        phone.stops = "mask"
    world.begin()
    world.play()
    world.pass_time(21)
    rows, words = shown(world, capsys)
    assert [row[:6] for row in rows] == [
        ["1", "0", "advertise", "6", "4", "6"],
        ["1", "0", "share", "6", "5", "6"],
        ["1", "0", "mask", "4", "5", "6"],
        ["1", "1", "advertise", "0", "4", "6"],
    ]
    assert "Round 1: attempt 0 was given up: 4 of 6 devices masked in attempt 0; it takes 5." in words


def test_a_run_without_secure_rounds_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_secure_rounds([RoundView(round=1, status="open", opened_at=0)])
    assert "No secure rounds" in capsys.readouterr().out


def test_the_views_show_nothing_of_a_single_device(world: Served) -> None:
    world.begin()
    world.play_to_end()
    (view,) = world.coordinator.operators.rounds(RUN)
    text = view.model_dump_json()
    assert view.secure is not None
    assert sum(phone.member.weight for phone in world.phones) == 210
    assert view.weight == 200, "rounded"
    assert not any(row.device in text for row in world.rows)


def test_the_stream_of_events_has_no_number_of_a_single_device(world: Served) -> None:
    world.begin()
    world.play_to_end()
    shown = world.coordinator.operators.events(RUN)
    stored = world.store.events(RUN, 0)
    assert [event.kind for event in shown] == [row.kind for row in stored]
    drawn = next(event for event in shown if event.kind == "Drawn")
    assert drawn.body["cohort"] == sorted(row.device for row in world.rows)
    for event in shown:
        of_one = {"examples", "seconds", "weight"} - (
            {"examples"} if event is drawn else set()
        )  # there: of all who wait
        assert not of_one & set(event.body), event
        assert "device" not in event.body or "bytes" not in event.body, event


def test_the_stream_of_a_plain_run_has_what_it_had_but_for_sizes_which_are_rounded_up(world: Served) -> None:
    world.coordinator.operators.stop(RUN)
    world.create(name="plain", cohort={"select": 2, "goal": 2, "quorum": 1.0, "select_s": 10})
    world.check_in(examples=10)
    world.pass_time(11)
    (drawn,) = [event.body for event in world.coordinator.operators.events("plain") if event.kind == "Drawn"]
    (stored,) = [row.body for row in world.store.events("plain", 0) if row.kind == "Drawn"]
    cohort = cast("list[list[Any]]", stored["cohort"])
    assert [size for _, size in cohort] == [10, 10]
    assert drawn == {**stored, "cohort": [[device, 16] for device, _ in cohort]}
