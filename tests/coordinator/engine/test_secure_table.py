"""Every event in every phase of a secure round: what happens. No pair is left out, and a refusal changes nothing."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.event_fields import Group
from coordinator.engine.secure import messages
from coordinator.engine.state import Phase
from tests.coordinator.engine.secure_story import SIX, SecureStory
from tests.coordinator.engine.story import digest_of, refusal

PLACES: dict[str, Callable[[], SecureStory]] = {
    "selecting": lambda: _checked_story(SecureStory().selecting()),
    "unannounced": lambda: _unannounced(),
    "collecting": lambda: _collecting(),
    "gathering": lambda: SecureStory().gathering(),
    "sharing": lambda: _sharing(),
    "masking": lambda: _masking(),
    "agreeing": lambda: _agreeing(),
    "unmasking": lambda: SecureStory().unmasking(),
    "opening": lambda: SecureStory().opening(),
    "committing": lambda: SecureStory().summed(),
    "exhausted": lambda: SecureStory().exhausted(),
    "advancing": lambda: _advancing(),
    "idle": lambda: _idle(),
}
"""Where a secure run can be. All but *exhausted* (round 3), *advancing* (round 3) and *idle* (after it) are in round 1.
In each exchange the device f has not spoken yet, and four or five others have."""


def _checked_story(story: Any) -> SecureStory:
    assert isinstance(story, SecureStory)
    return story


def _unannounced() -> SecureStory:
    story = SecureStory()
    story.created()
    story.drawn_from(*SIX, "g", "h")
    return story


def _collecting() -> SecureStory:
    story = SecureStory().cohort()
    for device in "abcdg":
        story.advertised(device)
    return story


def _sharing() -> SecureStory:
    story = SecureStory().sharing()
    for device in "abcde":
        story.shared(device)
    return story


def _masking() -> SecureStory:
    story = SecureStory().masking()
    for device in "abcde":
        story.masked(device)
    return story


def _agreeing() -> SecureStory:
    story = SecureStory().agreeing()
    for device in "abcd":
        story.signed(device)
    return story


def _advancing() -> SecureStory:
    story = SecureStory().exhausted()
    story.advanced()
    return story


def _idle() -> SecureStory:
    story = SecureStory().cohort()
    story.paused()
    story.tick(60)
    return story


@functools.cache
def _story_up_to(place: str) -> SecureStory:
    return PLACES[place]()


def story_at(place: str) -> SecureStory:
    """A copy of a story that is at this place; the events before it are run once."""
    return copy.deepcopy(_story_up_to(place))


MESSAGE: dict[str, Any] = {"device": "f", "bytes": 1}
FIELDS: dict[str, dict[str, Any]] = {
    "Drawn": {"cohort": tuple((device, 10) for device in "abcdgh"), "waiting": 6},
    "Started": {"device": "f"},
    "Reported": {**MESSAGE, "digest": "", "examples": 1, "steps": 1, "steps_planned": 1, "complete": True},
    "UpdateRefused": {**MESSAGE, "digest": "", "reason": "delta holds NaN"},
    "UpdateLost": {"device": "f", "digest": ""},
    "Withdrew": {"device": "f", "reason": "moved"},
    "Announced": {"header": "ab" * 32, "expires_at": 5000},
    "Advertised": MESSAGE,
    "Rostered": {"groups": (Group(order=SIX, threshold=5, signers=5, fewest=5),)},
    "Shared": MESSAGE,
    "Masked": MESSAGE,
    "Complained": {**MESSAGE, "dealers": ("a",)},
    "PairsOpened": {**MESSAGE, "holders": ("a",)},
    "Faulted": {"device": "f", "reason": "its message is too short"},
    "Spent": {"device": "f"},
    "Declined": {"device": "f", "reason": "it advertised 8 times here"},
    "Unbarred": {"device": "f", "by": "olga"},
    "Vouched": {"version": 0, "signature": "5e" * 64},
    "Signed": MESSAGE,
    "Revealed": MESSAGE,
    "Opened": {"bytes": 9, "weight": 30},
    "OpeningFailed": {"lost": ("a",), "reason": "no shares fit"},
    "Committed": {"bytes": 9},
    "CommitFailed": {"reason": "not finite"},
    "Discarded": {},
    "Advanced": {"by": "olga"},
    "Renamed": {"name": "another"},
    "Seeded": {},
    "ClockFell": {"by_s": 5.0},
    "Scored": {"version": 0, "source": "evaluator", "examples": 5, "metrics": {"accuracy": 0.5}},
    "Leased": {"fence": 1, "worker": "v", "instance": "i1", "waiting": 0},
    "Heartbeat": {"fence": 1, "worker": "w", "step": 7},
    "LeaseEnded": {"fence": 1, "worker": "w", "failed": False, "reason": "moved"},
    "Delivered": {"fence": 1, "worker": "w", "steps": 1, "examples": 1, "bytes": 9},
    "FleetReturned": {"waiting": 3},
}


def event_of(kind: str, story: SecureStory) -> ev.Event:
    """An event of this kind that fits where one can fit: of this attempt, of device f, under a digest of its own."""
    cls = next(cls for cls in get_args(ev.Event) if cls.kind == kind)
    usual = {
        "at": story.at,
        "round": story.state.round_number,
        "attempt": story.attempt,
        "digest": digest_of(kind, "f"),
    }
    given = {**usual, **FIELDS.get(kind, {}), "at": story.at}
    if kind in ("Reported", "UpdateRefused"):
        given["digest"] = digest_of(kind)
    return cls(**{name: value for name, value in given.items() if name in cls.__dataclass_fields__})  # type: ignore[no-any-return]


# "-": nothing, the very same state. "x kind": refused so. "+": taken, the phase stays. Else the phase that begins.
WORDS = """
               selecting       unannounced     collecting      gathering     sharing         masking
Created        -               -               -               -             -               -
Tick           draws           selecting       sharing         collecting    masking         agreeing
ClockFell      +               +               +               +             +               +
Recovered      -               +               +               -             +               +
Drawn          collecting      x stale         x stale         x stale       x stale         x stale
Started        x not-selected  +               +               -             -               -
Reported       x not-selected  x invalid-update  x invalid-update  x invalid-update  x invalid-update  x invalid-update
UpdateRefused  x not-selected  x invalid-update  x invalid-update  x invalid-update  x invalid-update  x invalid-update
Withdrew       x not-selected  +               +               +             masking         agreeing
Announced      x stale         +               x conflict      x conflict    x conflict      x conflict
Advertised     x not-selected  x stale         sharing         x duplicate   x duplicate     x duplicate
Rostered       x stale         x stale         x stale         +             x conflict      x conflict
Shared         x not-selected  x stale         x stale         x stale       masking         x duplicate
Masked         x not-selected  x stale         x stale         x stale       x stale         agreeing
Complained     x not-selected  x stale         x stale         x stale       x stale         +
PairsOpened    x not-selected  x stale         x stale         x stale       x stale         x invalid-request
Faulted        x not-selected  +               +               +             masking         agreeing
Spent          x not-selected  +               +               +             masking         agreeing
Declined       x not-selected  +               +               +             masking         agreeing
Signed         x not-selected  x stale         x stale         x stale       x stale         x stale
Revealed       x not-selected  x stale         x stale         x stale       x stale         x stale
Opened         x stale         x stale         x stale         x stale       x stale         x stale
OpeningFailed  x stale         x stale         x stale         x stale       x stale         x stale
Committed      x stale         x stale         x stale         x stale       x stale         x stale
CommitFailed   x stale         x stale         x stale         x stale       x stale         x stale
Discarded      -               -               -               -             -               -
Advanced       x conflict      x conflict      x conflict      x conflict    x conflict      x conflict
Unbarred       x conflict      x conflict      x conflict      x conflict    x conflict      x conflict
Vouched        x conflict      x conflict      x conflict      x conflict    x conflict      x conflict
Leased         x stale         x stale         x stale         x stale       x stale         x stale
Heartbeat      x lease-lost    x lease-lost    x lease-lost    x lease-lost  x lease-lost    x lease-lost
LeaseEnded     x lease-lost    x lease-lost    x lease-lost    x lease-lost  x lease-lost    x lease-lost
Delivered      x lease-lost    x lease-lost    x lease-lost    x lease-lost  x lease-lost    x lease-lost
FleetReturned  x stale         x stale         x stale         x stale       x stale         x stale
Scored         scored          scored          scored          scored        scored          scored
Paused         +               +               +               +             +               +
Resumed        x conflict      x conflict      x conflict      x conflict    x conflict      x conflict
Stopped        idle            idle            idle            idle          idle            idle
"""
AFTER = """
               agreeing        unmasking       opening         committing      exhausted       advancing       idle
Created        -               -               -               -               -               -               -
Tick           selecting       selecting       +               -               -               -               -
ClockFell      +               +               +               -               -               -               -
Recovered      +               +               +               -               -               -               -
Drawn          x stale         x stale         x stale         x stale         selecting       x stale         x stale
Started        -               -               -               -               x not-selected  x not-selected  x late
Reported       x invalid-update  x invalid-update  x invalid-update  x invalid-update  x not-selected  x not-selected  x late
UpdateRefused  x invalid-update  x invalid-update  x invalid-update  x invalid-update  x not-selected  x not-selected  x late
Withdrew       +               +               +               -               x not-selected  x not-selected  x late
Announced      x conflict      x conflict      x conflict      x conflict      x stale         x stale         x stale
Advertised     x duplicate     x duplicate     x duplicate     x duplicate     x not-selected  x not-selected  x late
Rostered       x conflict      x conflict      x conflict      x conflict      x stale         x stale         x stale
Shared         x duplicate     x duplicate     x duplicate     x duplicate     x not-selected  x not-selected  x late
Masked         x duplicate     x duplicate     x duplicate     x duplicate     x not-selected  x not-selected  x late
Complained     x late          x late          x late          x late          x not-selected  x not-selected  x late
PairsOpened    x late          x late          x late          x late          x not-selected  x not-selected  x late
Faulted        x late          x late          x late          x late          x not-selected  x not-selected  x late
Spent          +               -               -               -               x not-selected  x not-selected  x late
Declined       +               -               -               -               x not-selected  x not-selected  x late
Signed         unmasking       x duplicate     x duplicate     x duplicate     x not-selected  x not-selected  x late
Revealed       x stale         +               +               x late          x not-selected  x not-selected  x late
Opened         x stale         x stale         committing      x late          x stale         x stale         x stale
OpeningFailed  x stale         x stale         selecting       x late          x stale         x stale         x stale
Committed      x stale         x stale         x stale         selecting       x stale         selecting       x stale
CommitFailed   x stale         x stale         x stale         selecting       x stale         selecting       x stale
Discarded      -               -               -               -               -               -               -
Advanced       x conflict      x conflict      x conflict      x conflict      committing      x conflict      x conflict
Unbarred       x conflict      x conflict      x conflict      x conflict      x conflict      x conflict      x conflict
Vouched        x conflict      x conflict      x conflict      x conflict      x conflict      x conflict      x conflict
Leased         x stale         x stale         x stale         x stale         x stale         x stale         x stale
Heartbeat      x lease-lost    x lease-lost    x lease-lost    x lease-lost    x lease-lost    x lease-lost    x lease-lost
LeaseEnded     x lease-lost    x lease-lost    x lease-lost    x lease-lost    x lease-lost    x lease-lost    x lease-lost
Delivered      x lease-lost    x lease-lost    x lease-lost    x lease-lost    x lease-lost    x lease-lost    x lease-lost
FleetReturned  x stale         x stale         x stale         x stale         x stale         x stale         x stale
Scored         scored          scored          scored          scored          scored          scored          scored
Paused         +               +               +               +               idle            +               x conflict
Resumed        x conflict      x conflict      x conflict      x conflict      x conflict      x conflict      selecting
Stopped        idle            idle            idle            +               idle            +               +
"""  # noqa: E501
TABLE: dict[str, dict[str, str]] = {}
for block in (WORDS, AFTER):
    lines = [re.split(r"\s{2,}", line.strip()) for line in block.strip().splitlines()]
    for name, *words in lines[1:]:
        TABLE.setdefault(name, {}).update(zip(lines[0], words, strict=True))
TABLE["Renamed"] = dict.fromkeys(TABLE["Withdrew"], "+")
TABLE["Seeded"] = dict.fromkeys(TABLE["Withdrew"], "x stale")
TABLE["UpdateLost"] = dict.fromkeys(TABLE["Withdrew"], "x stale")


def test_the_table_has_every_event_and_every_place() -> None:
    assert set(TABLE) == {cls.kind for cls in get_args(ev.Event)}
    assert all(set(row) == set(PLACES) for row in TABLE.values())
    assert {PLACES[place]().state.phase for place in PLACES} == set(get_args(Phase)) - {"leasing", "training"}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", TABLE)
def test_what_happens(kind: str, place: str) -> None:
    story = story_at(place)
    before = story.state
    if kind == "Recovered":
        story.at += 10
    if kind == "Tick":
        story.at += 5000 if place == "gathering" else 100
    effects = story.happens(event_of(kind, story))
    after, wanted = story.state, TABLE[kind][place]
    if wanted.startswith("x "):
        assert after is before
        assert refusal(effects) == wanted.removeprefix("x ")
        assert {type(effect) for effect in effects} <= {fx.Refused, fx.RecordRefusal}
        return
    assert not any(isinstance(effect, fx.Refused) for effect in effects)
    match wanted:
        case "-":
            assert after is before
            assert [effect for effect in effects if not isinstance(effect, fx.Accepted)] == []
        case "draws":
            assert after is before
            assert effects == [fx.Draw(round=before.round_number)]
        case "scored":
            assert [type(effect) for effect in effects] == [fx.RecordMetrics]
        case "+":
            assert after is not before
            assert (after.phase, after.round_number) == (before.phase, before.round_number)
        case phase:
            assert after.phase == phase
            assert after is not before


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [cls.kind for cls in get_args(messages.Message)])
def test_what_a_message_gets_is_known_without_a_step(kind: str, place: str) -> None:
    story = story_at(place)
    before, event = story.state, event_of(kind, story)
    found = messages.answered(before, event)
    after, effects = rounds.step(before, event)
    if found is None:
        assert after is not before
    else:
        assert found == (after, effects)
        assert after is before
