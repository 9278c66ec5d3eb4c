"""Every event in every phase: what happens. No pair is left out, and a refused event leaves the very same state."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.event_fields import Group
from coordinator.engine.state import Phase
from tests.coordinator.engine.story import FALLBACK, Story, digest_of, refusal

PLACES: dict[str, Callable[[], Story]] = {
    "new": Story,
    "selecting": lambda: Story().selecting(),
    "collecting": lambda: Story().collecting(),
    "leasing": lambda: Story(datacenter=FALLBACK).leasing(),
    "training": lambda: Story(datacenter=FALLBACK).training(),
    "committing": lambda: Story().committing(),
    "paused": lambda: _paused(),
    "finished": lambda: Story(finish={"rounds": 1}).whole_round(),
    "stopped": lambda: _stopped(),
}
"""Where a run can be. *new*, *paused*, *finished* and *stopped* are the idle phase; all but *new* are after round 1.
*leasing* and *training* are in round 2: round 1 was abandoned."""


def _paused() -> Story:
    story = Story().collecting()
    story.paused()
    for device in ("a", "b", "c"):
        story.reported(device)
    story.committed()
    return story


def _stopped() -> Story:
    story = Story().collecting()
    story.stopped()
    return story


LEASE: dict[str, Any] = {"round": 2, "attempt": 1, "fence": 1, "worker": "w"}


SECURE: dict[str, Any] = {"round": 1, "attempt": 0}
_MESSAGE: dict[str, Any] = {"device": "d", "digest": digest_of("message"), "bytes": 1}
SECURE_EVENTS: dict[str, dict[str, Any]] = {
    "Announced": {"header": "00", "expires_at": 9999},
    "Advertised": _MESSAGE,
    "Rostered": {
        "digest": digest_of("roster"),
        "groups": (Group(order=("a", "b", "c"), threshold=3, signers=3, fewest=3),),
    },
    "Shared": _MESSAGE,
    "Masked": _MESSAGE,
    "Complained": {**_MESSAGE, "dealers": ("a",)},
    "PairsOpened": {**_MESSAGE, "holders": ("a",)},
    "Faulted": {"device": "d", "reason": "its bundle is too short"},
    "Spent": {"device": "d"},
    "Declined": {"device": "d", "reason": "it advertised 8 times"},
    "Signed": _MESSAGE,
    "Revealed": _MESSAGE,
    "Opened": {"digest": digest_of("sum"), "bytes": 9, "weight": 30},
    "OpeningFailed": {"lost": ("a",), "reason": "no shares fit"},
}
"""What happens in secure rounds only: in all of these places it is refused."""


def event_of(kind: str, story: Story, **more: Any) -> ev.Event:
    """An event of this kind that fits, where one can fit: of round 1, of a device of its cohort."""
    usual: dict[str, dict[str, Any]] = {
        "ClockFell": {"by_s": 5.0},
        "Drawn": {"round": 1, "cohort": (("a", 10), ("b", 10), ("c", 10)), "waiting": 3},
        "Started": {"round": 1, "attempt": 0, "device": "d"},
        "Reported": {
            "round": 1,
            "attempt": 0,
            "device": "d",
            "digest": digest_of("d", 1),
            "bytes": 1,
            "examples": 1,
            "steps": 1,
            "steps_planned": 1,
            "complete": True,
        },
        "UpdateRefused": {
            "round": 1,
            "attempt": 0,
            "device": "d",
            "digest": digest_of("d", 1),
            "reason": "delta holds NaN",
        },
        "UpdateLost": {"round": 1, "attempt": 0, "device": "a", "digest": digest_of("a", 1)},
        "Withdrew": {"round": 1, "attempt": 0, "device": "d", "reason": "moved"},
        "Committed": {"round": 1, "digest": digest_of("model", 1), "bytes": 1},
        "CommitFailed": {"round": 1, "reason": "not finite"},
        "Leased": {**LEASE, "worker": "v", "instance": "i1", "waiting": 0},
        "Heartbeat": {**LEASE, "step": 7},
        "LeaseEnded": {**LEASE, "failed": False, "reason": "moved"},
        "Delivered": {**LEASE, "digest": digest_of("result", 2), "bytes": 9, "steps": 1, "examples": 1},
        "FleetReturned": {"round": 2, "waiting": 3},
        **{kind: {**SECURE, **fields} for kind, fields in SECURE_EVENTS.items()},
        "Scored": {"version": 0, "source": "evaluator", "examples": 5, "metrics": {"accuracy": 0.5}},
    }
    cls = next(cls for cls in get_args(ev.Event) if cls.kind == kind)
    usual |= {"Discarded": {"round": 1}, "Advanced": {"round": 1, "by": "olga"}, "Unbarred": {"device": "d", "by": "o"}}
    usual |= {"Vouched": {"version": 0, "signature": "5e" * 64}}
    usual |= {"Renamed": {"name": "another"}, "Seeded": {"round": 1, "digest": digest_of("seed", 1)}}
    event: ev.Event = cls(**{"at": story.at, **usual.get(kind, {}), **more})
    return event


# What each event does in each place. "-": nothing, the very same state. "x kind": refused so. Else where the run is
# then, or what became of it.
WORDS = """
               new           selecting        collecting      committing    paused        finished      stopped
Created        selecting     -                -               -             -             -             -
Tick           -             asks for a draw  selecting       -             -             -             -
ClockFell      -             deadline moved   deadline moved  -             -             -             -
Recovered      -             -                -               -             -             -             -
Drawn          x stale       collecting       x stale         x stale       x stale       x stale       x stale
Started        x stale       x not-selected   device trains   -             x late        x late        x late
Reported       x stale       x not-selected   reported        x late        x late        x late        x late
UpdateRefused  x stale       x not-selected   refused         x late        x late        x late        x late
Withdrew       x stale       x not-selected   withdrawn       -             x late        x late        x late
Committed      x stale       x stale          x stale         selecting     x stale       x stale       x stale
CommitFailed   x stale       x stale          x stale         selecting     x stale       x stale       x stale
Leased         x stale       x stale          x stale         x stale       x stale       x stale       x stale
Heartbeat      x lease-lost  x lease-lost     x lease-lost    x lease-lost  x lease-lost  x lease-lost  x lease-lost
LeaseEnded     x lease-lost  x lease-lost     x lease-lost    x lease-lost  x lease-lost  x lease-lost  x lease-lost
Delivered      x lease-lost  x lease-lost     x lease-lost    x lease-lost  x lease-lost  x lease-lost  x lease-lost
FleetReturned  x stale       x stale          x stale         x stale       x stale       x stale       x stale
Scored         scored        scored           scored          scored        scored        scored        scored
Paused         paused        paused           paused          paused        x conflict    x conflict    x conflict
Resumed        x conflict    x conflict       x conflict      x conflict    selecting     x conflict    x conflict
Stopped        stopped       stopped          stopped         ends later    stopped       x conflict    x conflict
"""
IN_THE_DATACENTER = """
               leasing         training
Created        -               -
Tick           -               selecting
ClockFell      deadline moved  deadline moved
Recovered      -               -
Drawn          x stale         x stale
Started        x late          x late
Reported       x late          x late
UpdateRefused  x late          x late
Withdrew       x late          x late
Committed      x stale         x stale
CommitFailed   x stale         x stale
Leased         training        x conflict
Heartbeat      x lease-lost    kept
LeaseEnded     x lease-lost    leasing
Delivered      x lease-lost    leasing
FleetReturned  selecting       x stale
Scored         scored          scored
Paused         paused, idle    paused
Resumed        x conflict      x conflict
Stopped        stopped         stopped
"""
TABLE: dict[str, dict[str, str]] = {}
for block in (WORDS, IN_THE_DATACENTER):
    lines = [re.split(r"\s{2,}", line.strip()) for line in block.strip().splitlines()]
    for kind, *words in lines[1:]:
        TABLE.setdefault(kind, {}).update(zip(lines[0], words, strict=True))
for kind, fields in SECURE_EVENTS.items():
    of_device = {"-": "x stale", "device trains": "x stale"} if "device" in fields else {}
    TABLE[kind] = {
        place: of_device.get(word, word) if of_device else "x stale" for place, word in TABLE["Started"].items()
    }
TABLE["UpdateLost"] = {**dict.fromkeys(PLACES, "x stale"), "committing": "collecting"}
TABLE["Renamed"] = dict.fromkeys(PLACES, "renamed")
TABLE["Seeded"] = dict.fromkeys(PLACES, "x stale")  # the plan has no noise
TABLE["Discarded"] = dict.fromkeys(PLACES, "-")
TABLE["Advanced"] = TABLE["Unbarred"] = TABLE["Vouched"] = dict.fromkeys(PLACES, "x conflict")
PAIRS = [(kind, place) for kind in TABLE for place in PLACES]


def test_the_table_has_every_event_and_every_place() -> None:
    assert set(TABLE) == {cls.kind for cls in get_args(ev.Event)}
    assert all(set(row) == set(PLACES) for row in TABLE.values())
    secure = {"sharing", "masking", "agreeing", "unmasking"}
    assert {PLACES[place]().state.phase for place in PLACES} == set(get_args(Phase)) - secure


@pytest.mark.parametrize(("kind", "place"), PAIRS)
def test_what_happens(kind: str, place: str) -> None:
    story = PLACES[place]()
    before = story.state
    if kind in ("Tick", "Heartbeat"):
        story.at += 3600 if kind == "Tick" else 10
    effects = story.happens(event_of(kind, story))
    after, wanted = story.state, TABLE[kind][place]
    if wanted.startswith("x "):
        assert after is before, "a refused event changes nothing"
        assert refusal(effects) == wanted.removeprefix("x ")
        assert {type(effect) for effect in effects} <= {fx.Refused, fx.RecordRefusal}
        recorded = any(isinstance(effect, fx.RecordRefusal) for effect in effects)
        late = wanted == "x late"
        left = (kind in ("Reported", "UpdateRefused") and late) or kind == "Delivered"
        assert recorded == left, "a late update, and any result, leaves its reason behind"
        return
    assert not any(isinstance(effect, fx.Refused) for effect in effects)
    match wanted:
        case "-":
            assert after is before
            assert effects == []
        case "asks for a draw":
            assert after is before
            assert effects == [fx.Draw(round=1)]
        case "deadline moved":
            assert before.deadline is not None
            assert after.deadline == before.deadline - 5.0
        case "scored":
            assert (after.phase, after.status) == (before.phase, before.status)
            assert [type(effect) for effect in effects] == [fx.RecordMetrics]
        case "renamed":
            assert (after, effects) == (replace(before, renamed="another"), [])
        case "device trains" | "reported" | "withdrawn" | "refused":
            assert after.current.members["d"].status == ("training" if wanted == "device trains" else wanted)
            assert after.phase == "collecting"
        case "paused":
            assert after.status == "paused"
            assert after.phase == before.phase, "the round under way goes on"
        case "paused, idle":
            assert (after.status, after.phase) == ("paused", "idle"), "a round that no worker has begun ends"
        case "kept":
            assert (after.phase, after.current.lease and after.current.lease.step) == ("training", 7)
        case "stopped":
            assert (after.status, after.phase, after.deadline) == ("stopped", "idle", None)
        case "ends later":
            assert (after.status, after.phase) == ("running", "committing")
            assert after.ending == ("stopped", "stopped by the operator")
        case phase:
            assert (after.phase, after.status) == (phase, "running")
            assert after is not before


@pytest.mark.parametrize("place", PLACES)
def test_pending_names_what_must_be_in_flight(place: str) -> None:
    state = PLACES[place]().state
    wanted: dict[str, list[type]] = {
        "new": [],
        "selecting": [fx.Draw],
        "collecting": [fx.Wake],
        "leasing": [fx.Discard, fx.Offer],
        "training": [fx.Discard],
        "committing": [fx.Fold, fx.Fold, fx.Fold, fx.Commit],
        "paused": [fx.Discard],
        "finished": [fx.Discard],
        "stopped": [fx.Discard],
    }
    assert [type(action) for action in rounds.pending(state)] == wanted[place]


def test_a_run_that_was_stopped_or_paused_before_it_began_opens_no_round() -> None:
    """A crash between the run's row and its first event leaves such a run: Created comes late, from recovery."""
    stopped = Story()
    stopped.stopped()
    assert stopped.created() == []
    assert (stopped.state.status, stopped.state.phase) == ("stopped", "idle")
    paused = Story()
    paused.paused()
    assert paused.created() == []
    paused.resumed()
    assert (paused.state.phase, paused.state.round_number) == ("selecting", 1)
