"""Applications for tests that do not ask how one is built: a process builds few, and lends each to one coordinator
after another, since to build one takes 50 ms of CPU."""

from __future__ import annotations

from typing import Any, cast

from fastapi import FastAPI

from coordinator.requests import TABLE
from coordinator.runtime.coordinator import Coordinator
from coordinator.service import create_app
from coordinator.service.core import Service
from coordinator.service.edge import Edge
from coordinator.service.process_routes import MeterReport
from coordinator.settings import Settings

_idle: list[FastAPI] = []


class _Lent:
    """Stands in for the coordinator that has the application now."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.now: Any = coordinator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


def lent(coordinator: Coordinator, settings: Settings) -> FastAPI:
    """The application of a process that has just started with this coordinator. Of ``settings`` the public address is
    that of the process's first test."""
    app = _idle.pop() if _idle else create_app(cast("Coordinator", _Lent(coordinator)), settings)
    lender = app.state.service.coordinator
    lender.now = coordinator
    fresh = Service(lender, settings, coordinator.core.signals)
    fresh.meters.times.know(TABLE)
    coordinator.insight.system.process = MeterReport(fresh.meters)
    vars(app.state.service).update(vars(fresh))
    app.user_middleware.clear()
    app.middleware_stack = None
    app.add_middleware(Edge, meters=fresh.meters, hosts=fresh.hosts, admission=fresh.admission)
    return app


def give_back(app: FastAPI) -> None:
    """After the test: another one may have it now."""
    _idle.append(app)
