"""The server's half of secure aggregation: which event of a secure round is decided where.

Knows the order of the exchanges. Has never heard of keys, shares or vectors: it sees digests and counts.
"""

from __future__ import annotations

from coordinator.engine import secure_events as ev
from coordinator.engine.collecting import refuse
from coordinator.engine.lifecycle import Step
from coordinator.engine.state import RunState

SecureEvent = (
    ev.Announced
    | ev.Advertised
    | ev.Rostered
    | ev.Shared
    | ev.Masked
    | ev.Complained
    | ev.Faulted
    | ev.Signed
    | ev.Revealed
    | ev.Opened
    | ev.OpeningFailed
    | ev.Discarded
    | ev.Advanced
)


def happened(state: RunState, event: SecureEvent) -> Step:
    """What one of these events makes of the state. In a plain round none of them fits."""
    if state.secure is None:
        return refuse(state, "stale", f"round {event.round} is not a secure round under way")
    return refuse(state, "stale", f"round {event.round} is {state.phase}")
