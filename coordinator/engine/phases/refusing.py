"""The result of a refused event: the same state, and the reason. Also why a device has no place in a round."""

from __future__ import annotations

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.state import RunState

Step = tuple[RunState, list[fx.Effect]]
"""The next state, and the effects."""


def refuse(state: RunState, kind: str, reason: str, report: ev.Reported | ev.UpdateRefused | None = None) -> Step:
    """The state unchanged, the reason, and, for an update, a record of it."""
    effects: list[fx.Effect] = [fx.Refused(kind=kind, reason=reason)]
    if report is not None:
        effects.append(
            fx.RecordRefusal(round=report.round, device=report.device, digest=report.digest, kind=kind, reason=reason)
        )
    return state, effects


def membership(state: RunState, round: int, attempt: int, device: str) -> tuple[str, str] | None:
    """Why this device has no open place in this round: (kind, reason), or None."""
    current = state.round
    if round > state.round_number:
        return "stale", f"round {round} has not been opened: the run is at round {state.round_number}"
    if current is None or round < current.number:
        return "late", f"round {round} is over"
    if attempt > current.attempt:
        return "stale", f"attempt {attempt} of round {round} has not been opened: it is at attempt {current.attempt}"
    if device not in current.members:
        return "not-selected", f"device {device} was not selected for round {round}"
    if attempt < current.attempt:
        return "stale", f"attempt {attempt} of round {round} is over: it is at attempt {current.attempt}"
    return None
