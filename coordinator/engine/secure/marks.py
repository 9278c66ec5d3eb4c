"""Devices that contribute to the current checkpoint no more: spent, as they have signed there, or declined, for another
reason of their own. A run forgets both with its next checkpoint; the marks stay, by the digest of the model's tensors,
and hold for every run that comes to the same tensors. What was declined in a *fast* round holds for *fast* rounds
alone: only there does a device bound how often it advertises on a checkpoint.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import Literal

from coordinator.engine import effects as fx
from coordinator.engine.reasons import printable
from coordinator.engine.state import RunState, altered


def with_spent(state: RunState, device: str) -> tuple[RunState, fx.RecordMark]:
    """The state in which this device is spent, and its mark."""
    at = bisect_left(state.spent, device)
    known = state.spent[at : at + 1] == (device,)
    spent = state.spent if known else (*state.spent[:at], device, *state.spent[at:])
    return altered(state, spent=spent), _mark(state, device, "spent")


def with_declined(state: RunState, device: str, reason: str) -> tuple[RunState, fx.RecordMark]:
    """The state in which this device has declined, for this reason, and its mark."""
    declined = {**state.declined, device: printable(reason)}
    fast = state.plan.secure is not None and state.plan.secure.profile == "fast"
    return replace(state, declined=declined), _mark(state, device, "declined-fast" if fast else "declined")


def _mark(state: RunState, device: str, kind: Literal["spent", "declined", "declined-fast"]) -> fx.RecordMark:
    return fx.RecordMark(tensors=state.marked_on, device=device, round=state.round_number, kind=kind)
