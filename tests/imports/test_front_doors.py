"""The public names of the rooms, listed once here too: a name that goes or comes is a change that users see."""

from __future__ import annotations

import simulation

SIMULATION = [
    "Behaviour",
    "ClientFailed",
    "Clients",
    "History",
    "Plan",
    "SimulationError",
    "Stalled",
    "partition",
    "simulate",
]


def test_front_door_of_the_simulation() -> None:
    assert simulation.__all__ == SIMULATION
    for name in SIMULATION:
        assert getattr(simulation, name).__name__ == name
