"""Engines train the clients of a simulated round. ``engine_called`` finds one by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from simulation.engines.kernel import Kernel
from simulation.engines.port import CannotTrain, Done, Engine, Job, Result
from simulation.engines.serial import SerialEngine
from simulation.errors import SimulationError

__all__ = ["CannotTrain", "Done", "Engine", "EngineName", "Job", "Kernel", "MakeEngine", "Result", "engine_called"]

EngineName = Literal["serial", "processes", "ray"]
MakeEngine = Callable[[Kernel], Engine]


def engine_called(engine: EngineName | MakeEngine, workers: int | None = None) -> MakeEngine:
    """Returns the factory of the engine. ValueError for an unknown name, or for workers where the engine has none."""
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers={workers!r}: at least one worker is needed")
    if workers is not None and engine not in ("processes", "ray"):
        raise ValueError('workers are those of engine="processes" and engine="ray"')
    if callable(engine):
        return engine
    if engine == "serial":
        return SerialEngine
    if engine == "processes":
        from simulation.engines.processes import ProcessEngine

        return lambda kernel: ProcessEngine(kernel, workers)
    if engine == "ray":
        try:
            from simulation.engines.ray_actors import RayEngine
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise SimulationError("engine=\"ray\" needs Ray: `pip install 'quorate[ray]'`") from None
        return lambda kernel: RayEngine(kernel, workers)
    raise ValueError(f"there is no engine {engine!r}; there are {', '.join(get_args(EngineName))}")
