"""Routes about the process itself: is it alive, can it work, its meters, its pages; and what it says of
itself in ``/v1/system``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

import structlog
from fastapi import Request
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, RedirectResponse, Response

from client_sdk.protocol.insight import GroupRequests
from coordinator.access import Operator
from coordinator.requests import Permission, identify
from coordinator.runtime.insight.insight import Insight
from coordinator.service.core import Service
from coordinator.service.declaring import declared, security
from coordinator.service.route import bearer
from coordinator.store.port import StoreError


def process_routes(service: Service, home_path: Callable[[], str]) -> list[APIRoute]:
    """``home_path`` gives where a browser is redirected to from ``/``."""
    coordinator = service.coordinator

    def viewer(credentials: str) -> Callable[[str], bool] | None:
        """Which runs the caller sees; None: everything. ProblemError where it is no operator."""
        caller = identify(coordinator, Permission.VIEWER, credentials, scoped=True)
        return None if not isinstance(caller, Operator) or caller.sees_everything else caller.sees

    def state(credentials: str) -> tuple[bool, dict[str, Any]]:
        """Whether all that is needed works; and what the readiness check reads, as far as the caller may see it."""
        checks = coordinator.healthy()
        works = all(value is not False for value in checks.values())
        if not credentials:
            return works, {}
        sees = viewer(credentials)
        found: dict[str, Any] = {**checks, "stalled": coordinator.stalled()}
        if sees is None:
            return works, found
        shown: dict[str, Any] = {name: found[name] for name in ("stalled", "run_errors") if name in found}
        shown = {name: {run: why for run, why in runs.items() if sees(run)} for name, runs in shown.items()}
        return works, shown | {name: found[name] for name in ("authority",) if name in found}

    async def healthz() -> Response:
        """The process answers."""
        return JSONResponse({"ok": True})

    async def readyz(request: Request) -> Response:
        """The database can be read and the process does not stop; 503 otherwise. With an API key `stalled` says in one
        line for each run in scope that makes no progress why; restarting this process would not help such a run.
        `authority` says why devices cannot register, or secure rounds wait, where that is so, and to a caller who sees
        everything `damaged` names stored files that have other bytes than were stored."""
        given = "authorization" in request.headers
        works, found = await service.work(state, bearer(request, Permission.VIEWER) if given else "")
        ready = works and not service.stopping
        return JSONResponse({"ok": ready, **found}, 200 if ready else 503)

    async def metrics(request: Request) -> Response:
        """Meters for Prometheus; for a caller who does not see everything, only those of runs in scope."""
        credentials = bearer(request, Permission.VIEWER)
        text = await service.work(lambda: service.meters.text(viewer(credentials)))
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def home() -> Response:
        return RedirectResponse(service.settings.prefix + home_path())

    def route(
        path: str, endpoint: Any, permission: Permission, summary: str, *, shown: bool = True, method: str = "GET"
    ) -> APIRoute:
        found = APIRoute(
            path,
            endpoint,
            methods=[method],
            summary=summary,
            tags=["process"],
            include_in_schema=shown,
            response_class=Response,
            openapi_extra=security(permission),
        )
        return declared(found, permission, scoped=True)

    everybody = Permission.NOBODY
    return [
        route("/healthz", healthz, everybody, "Check that the process is alive"),
        route("/readyz", readyz, everybody, "Check that the process can work"),
        route("/healthz", healthz, everybody, "", shown=False, method="HEAD"),
        route("/readyz", readyz, everybody, "", shown=False, method="HEAD"),
        route("/metrics", metrics, Permission.VIEWER, "Read the meters"),
        route(DOCS_PATH, docs_page, everybody, "This page", shown=False),
        route(f"{DOCS_PATH}.js", docs_script, everybody, "Its script", shown=False),
        route("/", home, everybody, "The page to open", shown=False),
    ]


# ------------------------------------------------------------ the page of the API

DOCS_PATH = "/docs"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def _asset(name: str) -> bytes:
    return (files("coordinator.service") / "assets" / name).read_bytes()


async def docs_page() -> Response:
    """Returns the page that describes the API for people. It loads from this server only, so it works without
    internet. Its script renders ``/openapi.json``."""
    return Response(_asset("docs.html"), media_type="text/html", headers={"Content-Security-Policy": _POLICY})


async def docs_script() -> Response:
    """Returns the page's script."""
    return Response(_asset("docs.js"), media_type="text/javascript", headers={"Cache-Control": "no-cache"})


# ------------------------------------------------------------ what the process says of itself

NOTE_S = 30.0
"""Seconds between two notes."""

log = structlog.get_logger("coordinator.service")


class MeterReport:
    """What the server of this process says of itself in ``/v1/system``: the ``ProcessReport`` of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def requests(self) -> list[GroupRequests]:
        return self._service.meters.times.view()

    def streams(self) -> int:
        return self._service.stream_slots.amount

    def viewers(self) -> int:
        return self._service.viewer_slots.amount


async def keep_noting(insight: Insight) -> None:
    """The task that notes that this process is alive: notes what is counted by time, until it is cancelled. A database
    that does not answer stops nothing."""
    failed = False
    while True:
        try:
            await asyncio.to_thread(insight.note)
            failed = False
        except StoreError as error:
            if not failed:
                log.warning("what is counted by time was not noted; trying on", reason=str(error))
            failed = True
        await asyncio.sleep(NOTE_S)
