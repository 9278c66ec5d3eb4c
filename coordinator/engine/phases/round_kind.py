"""Decides the kind of the next round: the fleet's or the datacenter's.

::

    federated --patience rounds in a row abandoned--> datacenter, round after round, until enough devices wait
    federated --the next version is one of every k--> datacenter, once
    datacenter --committed while enough devices wait--> federated
    datacenter --given up (devices wait, it failed, it took too long)--> federated, once at least
    datacenter --FAILURES rounds in a row that a worker could not train--> federated, for the length of a rest

It is a function of the state between two rounds and of the time.
"""

from __future__ import annotations

from typing import NamedTuple

from client_sdk.protocol.operators import Kind
from coordinator.engine.state import RunState

FAILURES = 3
"""Datacenter rounds in a row that a worker could not train, after which the datacenter rests."""
REST_S = 600.0
"""The first rest. Each further failure doubles it."""
MOST_REST_S = 86_400.0


class Turn(NamedTuple):
    kind: Kind
    because: str = ""
    """Why it is not the fleet's turn, or why it is again, as text for the operator."""
    planned: bool = False
    """Whether it is the datacenter's by plan, and not because devices are missing."""
    falls_back: bool = False


def wanted(state: RunState, at: float) -> Turn:
    """The kind of the round that opens next."""
    section, fallback, fleet = state.plan.datacenter, state.fallback, state.plan.kind
    if section is None:
        return Turn(fleet)
    if fallback.rests_until is not None and at < fallback.rests_until:
        why = f"the datacenter rests after {fallback.failures} rounds in a row that could not be trained there"
        return Turn(fleet, f"{why}, the last one because {fallback.failure.rstrip('.')}")
    if fallback.fleet_first:
        return Turn(fleet)
    if section.every is not None and (state.version + 1) % section.every == 0:
        why = "every version is" if section.every == 1 else f"one version in {section.every} is"
        return Turn("datacenter", f"{why} made in the datacenter, by plan", planned=True)
    if fallback.back_with is not None:
        why = f"{fallback.back_with} eligible devices waited when the last round in the datacenter ended"
        return Turn(fleet, why)
    if section.patience is None:
        return Turn(fleet)
    if fallback.away_since is not None:
        why = f"too few devices wait: the run fell back to the datacenter in round {fallback.away_since}"
        return Turn("datacenter", why, falls_back=True)
    if fallback.abandoned_in_a_row >= section.patience:
        count = fallback.abandoned_in_a_row
        why = "1 federated round in a row had to be abandoned"
        if count > 1:
            why = f"{count} attempts at a federated round in a row failed"
        return Turn("datacenter", why, falls_back=True)
    return Turn(fleet)


def lasts(state: RunState, at: float) -> bool:
    """Whether the turn stays what it is until a version is made, however many rounds fail and whatever time passes."""
    section, rests_until = state.plan.datacenter, state.fallback.rests_until
    return section is None or (section.patience is None and (rests_until is None or at >= rests_until))


def rest_s(failures: int) -> float:
    """How long the datacenter rests after so many failures in a row; 0 for few."""
    if failures < FAILURES:
        return 0.0
    return min(MOST_REST_S, REST_S * 2.0 ** min(failures - FAILURES, 32))
