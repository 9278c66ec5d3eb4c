"""Bugs of buffered rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.engine.kinds import buffered
from coordinator.runtime import drawing
from tests.explorer.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]


@mutant("stale-as-fresh", "named", "public", "claims", "late-report", "ack-durable")
def _stale_as_fresh() -> Patches:
    """An update of an older version weighs as much as one of the newest, however old it is."""
    return [(buffered, "staleness", lambda state, since: 0)]


@mutant("newest-for-all", "offer", "parent")
def _newest_for_all() -> Patches:
    """Who asks again for its assignment after a commit is given the newest version."""
    assigned = buffered.Buffered.assigned

    def newest(self: Any, state: Any, round: int, device: str) -> Any:
        found = assigned(self, state, round, device)
        return None if found is None else (state.version, found[1])

    return [(buffered.Buffered, "assigned", newest)]


@mutant("places-lost", "claims", "log", "public")
def _places_lost() -> Patches:
    """A commit ends all places, and the assignments stay."""
    return [(buffered.Buffered, "kept", lambda self, following, ended, goes_on: ({}, []))]


@mutant("too-stale-stays", "claims", "log", "late-report")
def _too_stale_stays() -> Patches:
    """A device keeps its place however old its version is."""
    return [(buffered, "most_stale", lambda plan: 1000)]


@mutant("turn-after-turn", "draw", "log", "counts-once")
def _turn_after_turn() -> Patches:
    """Who has reported is drawn again in the same round."""
    return [
        (buffered.Buffered, "drawable", lambda self, current, device: True),
        (drawing, "_without_place", lambda state: ()),
    ]


@mutant("one-seed-for-all-draws", "draw")
def _one_seed_for_all_draws() -> Patches:
    """All draws of a round have the same seed."""
    look = drawing._Draw._look

    def first(self: Any, reader: Any, state: Any, now: float, **more: Any) -> Any:
        current = state.round
        return look(
            self, reader, state if current is None else replace(state, round=replace(current, pools=())), now, **more
        )

    return [(drawing._Draw, "_look", first)]
