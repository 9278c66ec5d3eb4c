"""Which phase follows which, and by what event: observed of the engine, not written down.

Every event is tried in every place of ``test_table`` and ``test_secure_table`` and in those below, which stand at the
end of a phase; the ways that lead to these places count too. The map's diagram of phases is drawn from this.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, get_args

from coordinator.engine import events as ev
from tests.coordinator.engine import test_secure_table, test_table
from tests.coordinator.engine.secure_story import SecureStory
from tests.coordinator.engine.story import FALLBACK, Story, Transition

KINDS = tuple(cls.kind for cls in get_args(ev.Event))
TIMES_S: dict[str, tuple[float, ...]] = {"Tick": (25.0, 45.0, 70.0, 5000.0), "Heartbeat": (15.0,), "Recovered": (15.0,)}
"""How much later an event happens than what led to its place: leases, exchanges and rounds end at different times."""


def _collecting(reported: str, withdrawn: str) -> Story:
    """A plain cohort of a, b, c and d, goal 3, quorum 2. What these devices sent is there; d's message is to come."""
    story = Story().collecting()
    for device in reported:
        story.reported(device)
    for device in withdrawn:
        story.withdrew(device)
    return story


def _without(story: SecureStory, *devices: str) -> SecureStory:
    """These devices are at fault; the others go on."""
    for device in devices:
        story.faulted(device)
    return story


def _deserted() -> SecureStory:
    """Collecting, and with one device less there is no roster."""
    story = SecureStory().cohort()
    for device in "abgh":
        story.withdraws(device)
    return story


def _agreeing() -> SecureStory:
    """With one device less too few can sign."""
    story = SecureStory().agreeing()
    story.withdraws("e")
    return story


def _unmasking() -> SecureStory:
    """All but e and f have revealed, e has withdrawn, and one more is needed."""
    story = SecureStory().unmasking()
    for device in "abcd":
        story.revealed(device)
    story.withdraws("e")
    return story


def _masking() -> SecureStory:
    """Too few have masked; enough devices are left for a fresh attempt."""
    story = SecureStory().masking()
    for device in "abcd":
        story.masked(device)
    return story


def _disputed() -> SecureStory:
    """All but one have masked, and a dealer owes that one its pair, or has opened it."""
    story = SecureStory().masking()
    story.complained("a", "f")
    for device in "bcde":
        story.masked(device)
    return story


PLAIN: dict[str, Callable[[], Story]] = {
    **test_table.PLACES,
    "a quorum has reported": lambda: _collecting("ab", ""),
    "a quorum, one may still come": lambda: _collecting("ab", "c"),
    "with one less no quorum": lambda: _collecting("", "ab"),
    "in the datacenter by plan": lambda: Story(datacenter={**FALLBACK, "every": 1}),
    "falls back": lambda: Story(datacenter=FALLBACK).collecting(),
}
SECURE: dict[str, Callable[[], SecureStory]] = {
    **test_secure_table.PLACES,
    "deserted": _deserted,
    "gathering the fewest": lambda: _without(SecureStory().gathering(), "a", "b"),
    "sharing with the fewest": lambda: _without(SecureStory().sharing(), "a"),
    "masking with the fewest": lambda: _without(SecureStory().masking(), "a"),
    "masked too few": _masking,
    "in dispute": _disputed,
    "agreeing with too few": _agreeing,
    "unmasking with too few": _unmasking,
    "exhausted, waits for a worker": lambda: SecureStory(datacenter={**FALLBACK, "patience": 2}).exhausted(),
}


@cache
def transitions() -> frozenset[Transition]:
    """Every transition that was observed."""
    seen: set[Transition] = set()
    for make in PLAIN.values():
        seen.update(*_from(make(), test_table.event_of))
    for make_secure in SECURE.values():
        seen.update(*_from(make_secure(), test_secure_table.event_of))
    return frozenset(seen)


def arrows(steps: Iterable[Transition]) -> set[tuple[str, str]]:
    """(phase, the phase that follows in the same round, or *ended*), whatever the event."""
    return {(step.phase, "ended" if step.ended else step.following) for step in steps}


def _from(place: Any, event_of: Callable[[str, Any], ev.Event]) -> Iterator[list[Transition]]:
    """The steps that led here, and those of each event from here."""
    for kind in KINDS:
        for later_s in TIMES_S.get(kind, (0.0,)):
            at = copy.deepcopy(place)
            at.at += later_s
            for event in _variants(event_of(kind, at)):
                story = copy.deepcopy(at)
                story.happens(event)
                yield story.steps


def _variants(event: ev.Event) -> list[ev.Event]:
    """Where an event says how something ended: each way that it can have ended."""
    match event:
        case ev.LeaseEnded():
            return [replace(event, failed=failed) for failed in (False, True)]
        case ev.OpeningFailed():
            return [event, replace(event, lost=())]
        case _:
            return [event]


__all__ = ["KINDS", "Transition", "arrows", "transitions"]
