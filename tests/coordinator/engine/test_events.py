"""Events, and states, as the JSON that a log keeps: what is read back is what was written."""

from __future__ import annotations

import dataclasses
import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.engine import events as ev
from coordinator.engine import state as states
from coordinator.engine.event_fields import Evidence, Group, Treated, sum_digest, updates_digest
from tests.coordinator.engine.story import FALLBACK, Story

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
METRICS = st.dictionaries(st.text(max_size=5), FLOATS, max_size=2)
NAMED_TENSORS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)
FIELDS: dict[str, st.SearchStrategy[object]] = {
    "float": FLOATS,
    "int": st.integers(),
    "str": st.text(max_size=10),
    "bool": st.booleans(),
    "str | None": st.none() | st.text(max_size=5),
    "int | None": st.none() | st.integers(),
    "dict[str, float]": METRICS,
    "dict[str, list[float]]": st.dictionaries(st.text(max_size=5), st.lists(FLOATS, max_size=3), max_size=2),
    "Treated": st.builds(
        Treated, clipped=st.booleans(), capped=st.booleans(), statistics_cut=st.booleans(), rounding=FLOATS
    ),
    "Annotated[str, Field(exclude_if=not_)]": st.text(max_size=5),
    "NamedTensors": NAMED_TENSORS,
    "Small": st.dictionaries(st.text(max_size=5), st.none() | st.integers() | METRICS, max_size=2),
    "Evidence": st.builds(
        Evidence,
        parent=st.text(max_size=5),
        named_tensors=NAMED_TENSORS,
        updates=st.text(max_size=5),
    ),
    "dict[str, StatisticRole]": st.dictionaries(
        st.text(max_size=5), st.sampled_from(["statistic", "non-negative"]), max_size=3
    ),
    "tuple[float, float, float]": st.tuples(FLOATS, FLOATS, FLOATS),
    "tuple[tuple[str, int], ...]": st.lists(st.tuples(st.text(max_size=3), st.integers()), max_size=3).map(tuple),
    "tuple[str, ...]": st.lists(st.text(max_size=3), max_size=3).map(tuple),
    "tuple[Group, ...]": st.lists(
        st.builds(
            Group,
            order=st.lists(st.text(max_size=3), max_size=3).map(tuple),
            threshold=st.integers(),
            signers=st.integers(),
            fewest=st.integers(),
            ring=st.lists(st.integers(), max_size=3).map(tuple),
            neighbours=st.integers(),
        ),
        max_size=3,
    ).map(tuple),
    "tuple[int, ...]": st.lists(st.integers(), max_size=3).map(tuple),
    "tuple[tuple[str, tuple[str, ...]], ...]": st.lists(
        st.tuples(st.text(max_size=3), st.lists(st.text(max_size=3), max_size=2).map(tuple)), max_size=2
    ).map(tuple),
}
EVENTS = st.one_of(
    [
        st.builds(cls, **{field.name: FIELDS[str(field.type)] for field in dataclasses.fields(cls)})
        for cls in get_args(ev.Event)
    ]
)


@given(event=EVENTS)
def test_an_event_comes_back_from_the_log(event: ev.Event) -> None:
    body = json.loads(json.dumps(ev.to_json(event), allow_nan=False))
    assert "at" not in body, "time has a column of its own"
    assert ev.from_json(event.kind, event.at, body) == event


def test_the_names_in_the_log_are_these_whatever_the_classes_are_called() -> None:
    """Old logs hold them: a name may be added, never changed."""
    assert {cls.kind for cls in get_args(ev.Event)} == {
        "Created",
        "Tick",
        "ClockFell",
        "Recovered",
        "Drawn",
        "Started",
        "Reported",
        "UpdateRefused",
        "UpdateLost",
        "Withdrew",
        "Committed",
        "CommitFailed",
        "Leased",
        "Heartbeat",
        "LeaseEnded",
        "Delivered",
        "FleetReturned",
        "Scored",
        "Seeded",
        "Paused",
        "Resumed",
        "Renamed",
        "Stopped",
        "Announced",
        "Advertised",
        "Rostered",
        "Shared",
        "Masked",
        "Complained",
        "PairsOpened",
        "Faulted",
        "Spent",
        "Declined",
        "Signed",
        "Revealed",
        "Opened",
        "OpeningFailed",
        "Discarded",
        "Advanced",
        "Unbarred",
        "Vouched",
    }
    assert ev.from_json("CommitFailed", 1.0, {"round": 2, "reason": "not finite"}).kind == "CommitFailed"


@pytest.mark.parametrize("kind", ["", "Exploded", "created"])
def test_an_event_of_a_newer_version_is_not_guessed_at(kind: str) -> None:
    with pytest.raises(ValueError, match="does not know: it was written by a newer one"):
        ev.from_json(kind, 0.0, {})


def test_an_event_that_lacks_a_field_is_refused() -> None:
    with pytest.raises(ValueError, match="digest"):
        ev.from_json("Committed", 0.0, {"round": 1, "bytes": 2})


def _stories() -> list[Story]:
    rich = Story(task={"score_held_out": True}, aggregation={"partial": "examples_seen"}).collecting()
    rich.started("d")
    rich.withdrew("c")
    rich.reported(
        "a", steps=1, complete=False, metrics={"loss": 0.1}, held_out={"accuracy": 1 / 3}, held_out_examples=3
    )
    ending = Story().committing()
    ending.stopped()
    watched = Story(finish={"metric": "accuracy", "patience": 3}).whole_round()
    watched.scored(1, 0.25)
    paused = Story().whole_round()
    paused.paused()
    leased = Story(datacenter=FALLBACK).training()
    leased.at += 20
    leased.heartbeat(step=7)
    return [
        Story(),
        Story().selecting(),
        Story(datacenter=FALLBACK).leasing(),
        leased,
        rich,
        ending,
        watched,
        paused,
        Story(finish={"rounds": 1}).whole_round(),
    ]


@pytest.mark.parametrize("story", _stories(), ids=lambda story: f"{story.state.status}-{story.state.phase}")
def test_a_state_comes_back_from_its_snapshot_and_goes_on_alike(story: Story) -> None:
    read = states.from_json(json.loads(json.dumps(states.to_json(story.state), allow_nan=False)))
    assert read == story.state
    twin = Story()
    twin.state, twin.at = read, story.at
    for at_both in (story, twin):
        at_both.tick(100)
        at_both.reported("b")
        at_both.stopped()
    assert twin.state == story.state


def test_the_digests_of_a_commits_evidence_have_no_order_and_leave_nothing_out() -> None:
    counted = [("b", "22", 1), ("a", "11", 2), ("c", "33", 3)]
    one = updates_digest(counted)
    assert updates_digest(reversed(counted)) == one
    assert len({one, updates_digest(counted[1:]), updates_digest([("b", "22", 2), *counted[1:]])}) == 3
    survivors = [("b", "22"), ("a", "11")]
    two = sum_digest("aa", survivors, "bb")
    assert sum_digest("aa", reversed(survivors), "bb") == two
    others = sum_digest("ab", survivors, "bb"), sum_digest("aa", survivors[1:], "bb"), sum_digest("aa", survivors, "bc")
    assert len({two, *others}) == 4
