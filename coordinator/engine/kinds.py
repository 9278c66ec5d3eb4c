"""Whose turn the next round is: the fleet's or the datacenter's.

::

    federated --patience rounds in a row abandoned--> datacenter, round after round, until enough devices wait
    federated --the next version is one of every k--> datacenter, once
    datacenter --given up (devices wait, it failed, it took too long)--> federated, once at least

Looks at the state between two rounds, and at nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.engine.state import Kind, RunState


class Turn(NamedTuple):
    kind: Kind
    because: str = ""
    """Why it is not the fleet's turn, for people."""
    planned: bool = False
    """Whether it is the datacenter's by plan, and not for want of devices."""
    falls_back: bool = False


def wanted(state: RunState) -> Turn:
    """The kind of the round that opens next."""
    section = state.plan.datacenter
    if section is None or state.fleet_first:
        return Turn("federated")
    if section.every is not None and (state.version + 1) % section.every == 0:
        told = "every version is" if section.every == 1 else f"one version in {section.every} is"
        return Turn("datacenter", f"{told} made in the datacenter, by plan", planned=True)
    if section.patience is None:
        return Turn("federated")
    if state.away_since is not None:
        told = f"too few devices wait: the run fell back to the datacenter in round {state.away_since}"
        return Turn("datacenter", told, falls_back=True)
    if state.abandoned_in_a_row >= section.patience:
        rounds = f"{state.abandoned_in_a_row} federated round{'s' if state.abandoned_in_a_row > 1 else ''} in a row"
        return Turn("datacenter", f"{rounds} had to be abandoned", falls_back=True)
    return Turn("federated")
