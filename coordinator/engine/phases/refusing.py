"""The result of a refused event: the same state, and the reason."""

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
