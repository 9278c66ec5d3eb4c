"""Builds the HTTP service: routes, errors, health, meters, docs.

The coordinator's driver starts when the server starts, and is closed when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response

from client_sdk.extensions import installed_version
from client_sdk.protocol.problems import Problem, ProblemError
from coordinator.requests import TABLE, Table
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.driver import Driver
from coordinator.service.checkpoints import checkpoint_routes
from coordinator.service.core import Service
from coordinator.service.docs import DOCS_PATH, docs_page, docs_script
from coordinator.service.edge import Edge
from coordinator.service.errors import log, plain, problem_of, problem_response
from coordinator.service.openapi import complete
from coordinator.service.routes import table_routes
from coordinator.service.stream import stream_routes
from coordinator.service.uploads import Uploads
from coordinator.settings import Settings

_ABOUT = """\
A federated learning coordinator. Devices enrol, check in, train and report; operators create runs and follow them.
Every error is a problem document (RFC 9457) that states in one sentence what is wrong and how to correct it."""

_TAGS = [
    {"name": "runs", "description": "Requests of operators: create, follow and end training jobs."},
    {"name": "fleet", "description": "The devices, as operators see them."},
    {"name": "checkpoints", "description": "Model versions, addressed by the SHA-256 of their bytes."},
    {"name": "devices", "description": "Requests of devices, in the order in which they send them."},
    {"name": "workers", "description": "Requests of datacenter workers, and of operators who register them."},
    {"name": "process", "description": "Health and meters of this process."},
]


def create_app(coordinator: Coordinator, settings: Settings, table: Table = TABLE) -> FastAPI:
    """Returns the ASGI application of one coordinator: the routes of the ``table``, and those that only HTTP has."""
    service = Service(coordinator, settings, coordinator.core.signals)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        driver = Driver(coordinator)
        await service.work(driver.start)
        try:
            yield
        finally:
            service.stop()
            await asyncio.to_thread(driver.close)  # not behind the requests that wait for one of the service's threads
            await asyncio.to_thread(service.close)

    app = FastAPI(
        title="Quorate",
        version=installed_version(),
        description=_ABOUT,
        openapi_tags=_TAGS,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    app.router.routes += [
        *table_routes(service, Uploads(service), table),
        *checkpoint_routes(service),
        *stream_routes(service),
        *_process_routes(service, _mount_pages(app)),
    ]
    complete(app, table)
    app.add_middleware(Edge, meters=service.meters)

    async def on_error(request: Request, error: Exception) -> Response:
        found, headers = problem_of(error, path=request.url.path), None
        no_route = isinstance(error, HTTPException) and error.status_code in (404, 405)
        if no_route or (isinstance(error, RequestValidationError) and _belongs_to_another(app, request)):
            found, headers = _no_route(app, request)
        service.meters.refused(found)
        return problem_response(found, headers)

    for kind in (ProblemError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, on_error)
    return app


def _process_routes(service: Service, home_path: str) -> list[APIRoute]:
    async def healthz() -> Response:
        """The process answers."""
        return JSONResponse({"ok": True})

    async def readyz() -> Response:
        """The database can be read and the process does not stop; 503 otherwise. `stalled` says in one line for each
        run that makes no progress why; restarting this process would not help such a run."""
        checks = await service.work(service.coordinator.healthy)
        stalled = await service.work(service.coordinator.stalled)
        ready = not service.stopping and all(value is not False for value in checks.values())
        return JSONResponse({"ok": ready, **checks, "stalled": stalled}, 200 if ready else 503)

    async def metrics() -> Response:
        """Meters for Prometheus."""
        return Response(await service.work(service.meters.text), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def docs() -> Response:
        return docs_page()

    async def script() -> Response:
        return docs_script()

    async def home() -> Response:
        return RedirectResponse(home_path)

    def route(path: str, endpoint: Any, summary: str, shown: bool = True) -> APIRoute:
        return APIRoute(
            path, endpoint, methods=["GET"], summary=summary, tags=["process"], include_in_schema=shown,
            response_class=Response,
        )  # fmt: skip

    return [
        route("/healthz", healthz, "Is the process alive?"),
        route("/readyz", readyz, "Can it work?"),
        route("/metrics", metrics, "Prometheus"),
        route(DOCS_PATH, docs, "This page", shown=False),
        route(f"{DOCS_PATH}.js", script, "Its script", shown=False),
        route("/", home, "The page to open", shown=False),
    ]


def _no_route(app: FastAPI, request: Request) -> tuple[Problem, dict[str, str]]:
    path, resource = request.url.path[:200], _resource(app, request)
    if resource is None:
        return plain(404, f"There is nothing at {path}; the page /docs lists what there is."), {}
    methods = {name for route in _routes(app) if route.path == resource for name in route.methods or ()}
    allowed = ", ".join(sorted(methods))
    return plain(405, f"{request.method} is not possible at {path}; possible: {allowed}."), {"Allow": allowed}


def _belongs_to_another(app: FastAPI, request: Request) -> bool:
    """Whether the route that was taken only seemed to match: ``POST /v1/runs/x/rounds`` fits
    ``/v1/runs/{run}/{action}``, whose actions do not include *rounds*."""
    return _resource(app, request) != getattr(request.scope.get("route"), "path", None)


def _resource(app: FastAPI, request: Request) -> str | None:
    """The path template to which this path belongs, whatever the method: the one with the fewest parameters."""
    found = [route.path for route in _routes(app) if route.path_regex.match(request.url.path)]
    return min(found, key=lambda path: path.count("{"), default=None)


def _routes(app: FastAPI) -> list[APIRoute]:
    return [route for route in app.router.routes if isinstance(route, APIRoute)]


def _mount_pages(app: FastAPI) -> str:
    """Mounts the installed pages (entry points ``quorate.pages``: a callable that returns an ASGI app, under its name).

    Returns the path to which a browser is redirected from ``/``: the first page, or the docs where none is installed.
    """
    first = ""
    for page in sorted(entry_points(group="quorate.pages"), key=lambda page: page.name):
        try:
            app.mount(f"/{page.name}", page.load()())
        except Exception as error:  # noqa: BLE001 - a page that is broken must not stop the coordinator
            log.error("a page could not be loaded", page=page.name, exc_info=error)
        else:
            first = first or f"/{page.name}/"
    return first or DOCS_PATH
