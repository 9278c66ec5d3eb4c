"""Federated runs on one machine, by the engine, the sessions and the learning code of deployment.

::

    from simulation import partition, simulate

    history = simulate(plan, learner, clients=partition(dataset, 1000, by="dirichlet", alpha=0.3, seed=0))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_sdk.imports import load

if TYPE_CHECKING:
    from coordinator.engine.plan import Plan as Plan
    from simulation.clients import Clients as Clients
    from simulation.errors import ClientFailed as ClientFailed
    from simulation.errors import SimulationError as SimulationError
    from simulation.errors import Stalled as Stalled
    from simulation.history import History as History
    from simulation.partitioning import partition as partition
    from simulation.simulator.simulate import simulate as simulate
    from simulation.virtual.behaviour import Behaviour as Behaviour

_HOMES = {
    "Behaviour": "simulation.virtual.behaviour",
    "ClientFailed": "simulation.errors",
    "Clients": "simulation.clients",
    "History": "simulation.history",
    "Plan": "coordinator.engine.plan",
    "SimulationError": "simulation.errors",
    "Stalled": "simulation.errors",
    "partition": "simulation.partitioning",
    "simulate": "simulation.simulator.simulate",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Load a public name when it is first used: commands that need no torch do not wait for it."""
    return load(__name__, name, _HOMES, extra="simulation")
