"""Routes about the process itself: is it alive, can it work, its meters, its pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, RedirectResponse, Response

from coordinator.access import Operator
from coordinator.requests import Permission, identify
from coordinator.service.core import Service
from coordinator.service.declaring import declared
from coordinator.service.describing import security
from coordinator.service.docs import DOCS_PATH, docs_page, docs_script
from coordinator.service.signatures import bearer


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
        shown: dict[str, Any] = {name: found[name] for name in ("stalled", "troubles") if name in found}
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

    async def docs() -> Response:
        return docs_page()

    async def script() -> Response:
        return docs_script()

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
        route(DOCS_PATH, docs, everybody, "This page", shown=False),
        route(f"{DOCS_PATH}.js", script, everybody, "Its script", shown=False),
        route("/", home, everybody, "The page to open", shown=False),
    ]
