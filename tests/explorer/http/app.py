"""The application of a replica. To build one costs as much CPU time as a schedule, so a process builds one for each
replica, and every start of the replica gives it a new state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from fastapi import FastAPI

from coordinator.runtime.coordinator import Coordinator
from coordinator.service import errors
from coordinator.service.app import create_app
from coordinator.service.core import Service, Threads
from coordinator.settings import Settings
from tests.explorer.faults import Broken

T = TypeVar("T")


class CurrentCoordinator:
    """Stands in for the coordinator that a replica has now."""

    coordinator: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.coordinator, name)


def started(replica: int, coordinator: Coordinator) -> FastAPI:
    """Returns the application of this replica, as a process has it that has just started with this coordinator."""
    app, current = _built(replica)
    current.coordinator = coordinator
    fresh = Service(cast("Coordinator", current), coordinator.core.settings, coordinator.core.signals)
    vars(app.state.service).update(vars(fresh))
    app.state.service.threads = _OfTheLoop(1, "unused")
    return app


class _OfTheLoop(Threads):
    """Calls go by the event loop, whose virtual time they are part of."""

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(None, call)


@cache
def _built(replica: int) -> tuple[FastAPI, CurrentCoordinator]:
    """One for each replica, since two of them serve at the same time."""
    settings = Settings()
    current = CurrentCoordinator()
    current.coordinator = _Unused(settings)
    return create_app(cast("Coordinator", current), settings), current


class _Unused:
    """What an application reads of a coordinator while it is built: of all parts, only the settings matter."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.insight = SimpleNamespace(system=SimpleNamespace())

    def __getattr__(self, part: str) -> _Unused:
        return self


class _Log:
    """Takes the place of the service's log: a bug that the service would answer with 500 ends the schedule."""

    def warning(self, event: str, **about: Any) -> None:
        """A fault of the explorer, as a rule."""

    def error(self, event: str, *, exc_info: BaseException | None = None, **about: Any) -> None:
        if event == "bug":
            raise Broken("no-bug", f"the service raised {exc_info!r} at {about.get('path')}") from exc_info


@contextmanager
def watched_log() -> Iterator[None]:
    """While the block runs, the service logs nothing, and its bugs are found."""
    real = vars(errors)["log"]
    vars(errors)["log"] = _Log()
    try:
        yield
    finally:
        vars(errors)["log"] = real
