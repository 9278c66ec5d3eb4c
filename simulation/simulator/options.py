"""The types of ``simulate``'s options, for every function that passes them on.

Their meaning is in the documentation of ``simulate``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

from client_sdk.tensors import Tensors
from client_sdk.tensors.manifest import StatisticRole
from coordinator.engine.plan import Plan
from simulation.clients import Clients
from simulation.engines import EngineName, MakeEngine
from simulation.virtual.behaviour import Behaviour

PlanLike = Plan | Mapping[str, Any] | str | PathLike[str]
ClientsLike = Clients | Mapping[str, Any] | Sequence[Any]
BehaviourLike = Behaviour | Mapping[str, Behaviour] | None
ClassesLike = Mapping[str, str] | Callable[[str], str] | None
Keep = int | Literal["all"] | None
SecureWay = Literal["masked", "quantized"]
InitLike = Tensors | str | PathLike[str] | None


class SimulateOptions(TypedDict, total=False):
    """The options of any run."""

    test: Any
    score_clients: int | Literal["all"]
    score_every: int
    behaviour: BehaviourLike
    classes: ClassesLike
    engine: EngineName | MakeEngine
    workers: int | None
    init: InitLike
    statistics: Mapping[str, StatisticRole] | None
    secure: SecureWay
    seed: int
    folder: str | PathLike[str] | None
    keep_checkpoints: Keep
    progress: bool | None


class AllSimulateOptions(SimulateOptions, total=False):
    """All options, with those that recipes set themselves."""

    datacenter: Mapping[str, Any] | None
    rounds: int | None
