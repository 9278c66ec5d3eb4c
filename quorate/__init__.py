"""The front door: what a first user needs, under one name.

::

    from quorate import Learner, partition, simulate

Nothing is defined here. Each name is loaded when it is first used, so ``import quorate`` costs nothing and a bare
install has ``Client`` and ``Update``; a name that needs an extra says which one. The rooms behind the door have more:
``client_sdk`` for devices, ``simulation`` for research.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it for type checkers: its import takes longer than this file

if TYPE_CHECKING:
    from client_sdk.http.client import Client as Client
    from client_sdk.learning.learner import Learner as Learner
    from client_sdk.update import Update as Update
    from coordinator.engine.plan import Plan as Plan
    from simulation.history import History as History
    from simulation.partitioning import partition as partition
    from simulation.simulator.simulate import simulate as simulate

_HOMES = {
    "Client": "client_sdk.http.client",
    "History": "simulation.history",
    "Learner": "client_sdk.learning.learner",
    "Plan": "coordinator.engine.plan",
    "Update": "client_sdk.update",
    "partition": "simulation.partitioning",
    "simulate": "simulation.simulator.simulate",
}

_EXTRAS = {"History": "simulation", "Learner": "torch", "partition": "simulation", "simulate": "simulation"}
"""Name -> the extra whose packages it may need; a bare install has the others."""

__all__ = ["Client", "History", "Learner", "Plan", "Update", "partition", "simulate"]


def __getattr__(name: str) -> object:
    """Load a public name, once it is certain that no file of the user's hides the package that has it."""
    if name not in _HOMES:
        raise AttributeError(f"quorate has no {name!r}; it has {', '.join(__all__)}")
    check_client_sdk()
    from client_sdk.imports import check, load

    if not _HOMES[name].startswith("client_sdk."):  # the SDK imports no other room
        check()
    return load("quorate", name, _HOMES, extra=_EXTRAS.get(name))


def __dir__() -> list[str]:
    return __all__


def check_client_sdk() -> None:
    """Raise ImportError where a file of the user's hides ``client_sdk``, which looks after the other packages."""
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("client_sdk")
    if spec is None or spec.origin is None:
        return
    origin, ours = Path(spec.origin), Path(__file__).parent.parent / "client_sdk"
    other = origin.parent if origin.stem == "__init__" else origin
    if other.resolve() != ours.resolve():
        raise ImportError(
            f"{other} hides quorate's own package 'client_sdk', because Python finds it first: rename it.",
            name="client_sdk",
            path=str(other),
        )
