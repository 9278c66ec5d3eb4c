"""Which devices of a secure round are woken, and when: once for each place that the round has got to, in one order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.engine import rounds
from coordinator.engine.plan import Plan
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import Member, Members, RunState, altered
from coordinator.runtime.core import AnswerWakes
from coordinator.runtime.signals import secure_key

PLAN = Plan.parse(
    {
        "name": "woken",
        "task": {"learner": "tests:marks"},
        "cohort": {"select": 6, "goal": 6, "quorum": 1.0},
        "aggregation": {"partial": "refuse"},
        "secure": {"max_norm": 1.0, "max_abs": 1.0, "minimum_cohort": 5, "reserve": 0},
    }
)
DEVICES = ("e", "b", "a", "d", "c")
KEYS = [secure_key(device) for device in sorted(DEVICES)]


def state(phase: str, devices: tuple[str, ...] = DEVICES, attempt: int = 0, **secure: Any) -> RunState:
    """A run in this phase of its first round."""
    begun = rounds.begin("woken", PLAN, "0" * 64)
    opened = begun if begun.round is not None else rounds.step(begun, _created())[0]
    current = opened.current
    members = {device: Member(examples=5) for device in devices}
    made = SecureRound(**secure)
    return opened.with_round(altered(current, phase=phase, attempt=attempt, members=Members(members), secure=made))


def _created() -> Any:
    from coordinator.engine import events as ev

    return ev.Created(at=0.0)


def test_all_devices_are_woken_in_the_order_of_their_names_when_the_round_moves_on() -> None:
    wakes = AnswerWakes()
    places = [
        state("collecting"),
        state("collecting", header="aa"),
        state("sharing", header="aa", roster="bb"),
        state("masking", header="aa", roster="bb"),
        state("collecting", attempt=1),
        state("collecting", attempt=1, header="cc"),
    ]
    for place in places:
        assert wakes.keys(place) == KEYS
        assert wakes.keys(place) == [], "nobody is woken twice for one place"


def test_a_phase_that_has_an_answer_for_nobody_wakes_nobody() -> None:
    wakes = AnswerWakes()
    wakes.keys(state("collecting", header="aa"))
    assert wakes.keys(state("sharing", header="aa")) == [], "they wait for the roster"
    assert wakes.keys(state("sharing", header="aa", roster="bb")) == KEYS
    wakes.keys(state("unmasking", header="aa", roster="bb"))
    committing = state("committing", header="aa", roster="bb")
    assert wakes.keys(committing) == [], "they wait for the end of the round"
    assert wakes.keys(replace(committing, round=None)) == KEYS


def test_a_message_that_ends_nothing_wakes_nobody() -> None:
    wakes = AnswerWakes()
    wakes.keys(state("masking", header="aa", roster="bb"))
    assert wakes.keys(state("masking", header="aa", roster="bb", masked={"a": "cc"})) == []


def test_the_end_of_a_round_wakes_who_was_in_it() -> None:
    wakes = AnswerWakes()
    under_way = state("unmasking", header="aa", roster="bb")
    wakes.keys(under_way)
    over = replace(under_way, round=None)
    assert wakes.keys(over) == KEYS
    assert wakes.keys(over) == [], "they are told once"


def test_who_joins_and_who_was_there_before_are_woken_together() -> None:
    wakes = AnswerWakes()
    wakes.keys(state("collecting", devices=("b", "z")))
    found = wakes.keys(state("sharing", devices=("a", "b"), roster="bb"))
    assert found == [secure_key(device) for device in ("a", "b", "z")]


def test_an_older_state_after_a_newer_one_wakes_again_and_hides_nothing() -> None:
    """Two threads may ask in the other order: to be woken twice does no harm, not to be woken would."""
    wakes = AnswerWakes()
    newer, older = state("masking", header="aa", roster="bb"), state("sharing", header="aa", roster="bb")
    assert wakes.keys(newer) == KEYS
    assert wakes.keys(older) == KEYS
    assert wakes.keys(newer) == KEYS
