"""Whether the next round of a run opens, and opens it. ``rounds.step`` asks after each event that has left the run
without a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from coordinator.engine.kinds import KINDS
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step
from coordinator.engine.phases.round_kind import wanted
from coordinator.engine.secure.disputes import still_in_dispute
from coordinator.engine.secure.state import still_barred
from coordinator.engine.state import Member, Round, RunState


class NotOpened(NamedTuple):
    """Why no round opens."""

    kind: str
    """For programs."""
    reason: str
    """For people, a sentence without a full stop."""


def reason_against(state: RunState, at: float) -> NotOpened | None:
    """Why a run without a round opens none now; None: it opens one. It is asked again after each event that changes the
    state and whenever the coordinator looks at the clock, so the reason may end by itself."""
    if not state.begun:
        return NotOpened("not-begun", "the run has not begun: its first event is not in the log")
    if state.status != "running":
        return NotOpened(state.status, state.reason)
    return None


def open_next(state: RunState, at: float, kept: Mapping[str, Member]) -> Step:
    """The next round, in the first phase of its kind. ``kept``: devices that train on from the one before."""
    turn, number, fallback = wanted(state, at), state.round_number + 1, state.fallback
    away_since = number if turn.falls_back and fallback.away_since is None else fallback.away_since
    kind = KINDS[turn.kind]
    opened = Round(
        number=number,
        kind=turn.kind,
        phase=kind.first_phase,
        opened_at=at,
        because=turn.because,
        planned=turn.planned,
    )
    following = replace(
        state,
        round=opened,
        round_number=number,
        barred=still_barred(state.barred, number),
        disputes=still_in_dispute(state.disputes, number),
        fallback=replace(fallback, away_since=away_since, back_with=None, tried=fallback.tried or turn.falls_back),
    )
    following = kind.opened(following, at, kept)
    return following, [record(following, "open"), *kind.pending(following)]
