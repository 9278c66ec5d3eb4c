"""Builds the HTTP service: routes, errors, health, meters, docs.

The coordinator's driver starts when the server starts, and is closed when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from importlib.metadata import entry_points

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from client_sdk.extensions import installed_version
from client_sdk.protocol.problems import Problem
from coordinator.requests import TABLE, Permission, Table
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.driver import Driver
from coordinator.service.core import Service, Serving
from coordinator.service.declaring import declared, require_declarations
from coordinator.service.downloads import checkpoint_routes, content_routes
from coordinator.service.edge import Edge
from coordinator.service.errors import log, plain, problem_of, problem_response
from coordinator.service.issuer_login import issuer_login_routes
from coordinator.service.openapi import complete
from coordinator.service.process_routes import DOCS_PATH, MeterReport, keep_noting, process_routes
from coordinator.service.revocations import FetchList, ListKeeper, revocation_routes
from coordinator.service.route import Uploads
from coordinator.service.routes import table_routes
from coordinator.service.shortcut import ANSWERED, Shortcut
from coordinator.service.stream import stream_routes
from coordinator.service.stream_viewers import live_routes
from coordinator.settings import Settings

_ABOUT = """\
A federated learning coordinator. Devices register, check in, train and report; operators create runs and follow them.
Every error is a problem document (RFC 9457) that states in one sentence what is wrong and how to correct it."""

_TAGS = [
    {"name": "runs", "description": "Requests of operators: create, follow and end training jobs."},
    {"name": "fleet", "description": "The devices, as operators see them."},
    {"name": "checkpoints", "description": "Model versions, addressed by the SHA-256 of their bytes."},
    {"name": "devices", "description": "Requests of devices, in the order in which they send them."},
    {"name": "flower", "description": "Flower runs: requests of their ServerApps and of the devices that serve them."},
    {"name": "workers", "description": "Requests of datacenter workers."},
    {"name": "access", "description": "API keys of operators, the audit, and the authority's revocation list."},
    {"name": "process", "description": "Health and meters of this process."},
]


def create_app(
    coordinator: Coordinator,
    settings: Settings,
    table: Table = TABLE,
    *,
    fetch_list: FetchList | None = None,
    more: Callable[[Serving], Iterable[BaseRoute]] = lambda _: (),
) -> FastAPI:
    """Returns the ASGI application of one coordinator: the routes of the table, and those that only HTTP has.

    ``fetch_list``: where the revocation list comes from while the app runs; None: nowhere. ``more``: routes for
    everybody, beside the coordinator's own. UndeclaredRoute where one of them does not declare who may ask for it."""
    service = Service(coordinator, settings, coordinator.core.signals)
    service.meters.times.know(table)
    coordinator.insight.system.process = MeterReport(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        driver = Driver(coordinator)
        await service.work(driver.start)
        keeping = [asyncio.create_task(keep_noting(coordinator.insight))]
        if fetch_list is not None:
            keeper = ListKeeper(coordinator.identities, fetch_list, settings.revocations_s)
            keeping.append(asyncio.create_task(keeper.keep()))
        try:
            yield
        finally:
            for task in keeping:
                task.cancel()
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
        root_path_in_servers=False,
    )
    app.state.service = service
    app.router.routes += [  # they are tried in turn, so what devices ask for in each round is in front
        *checkpoint_routes(service),
        *table_routes(service, Uploads(service), table),
        *content_routes(service),
        *stream_routes(service),
        *live_routes(service),
        *revocation_routes(service),
        *issuer_login_routes(service),
        *(declared(route, Permission.NOBODY) for route in more(service)),
        *process_routes(service, lambda: app.state.page or DOCS_PATH),
    ]
    app.state.page = _mount_pages(app)
    for route in app.router.routes:
        if getattr(route, "path", None) == app.openapi_url:
            declared(route, Permission.NOBODY)
    require_declarations(app.router.routes)
    complete(app, table, settings.public_url)

    async def on_error(request: Request, error: Exception) -> Response:
        found, headers = problem_of(error, path=request.url.path), None
        no_route = isinstance(error, HTTPException) and error.status_code in (404, 405)
        if no_route or (_is_of_no_such_thing(error) and _belongs_to_another(app, request)):
            found, headers = _no_route(app, request)
        service.meters.refused(found)
        return problem_response(found, headers)

    for kind in ANSWERED:
        app.add_exception_handler(kind, on_error)
    app.add_middleware(Shortcut, routes=app.router.routes, problem=on_error)
    app.add_middleware(Edge, meters=service.meters, hosts=service.hosts, admission=service.admission)
    return app


def _no_route(app: FastAPI, request: Request) -> tuple[Problem, dict[str, str]]:
    path, resource = request.url.path[:200], _resource(app, request)
    if resource is None:
        docs = request.scope["root_path"] + DOCS_PATH
        return plain(404, f"There is nothing at {path}; the page {docs} lists what there is."), {}
    methods = {name for route in _routes(app) if route.path == resource for name in route.methods or ()}
    allowed = ", ".join(sorted(methods))
    return plain(405, f"{request.method} is not possible at {path}; possible: {allowed}."), {"Allow": allowed}


def _is_of_no_such_thing(error: Exception) -> bool:
    """Whether the path was filled with something that does not exist, so that another route may be meant."""
    return isinstance(error, RequestValidationError) or getattr(error, "kind", "") == "unknown-device"


def _belongs_to_another(app: FastAPI, request: Request) -> bool:
    """Whether the route that was taken only seemed to match: ``POST /v1/runs/x/rounds`` fits
    ``/v1/runs/{run}/{action}``, whose actions do not include *rounds*; ``GET /v1/devices/left`` fits a device's."""
    return _resource(app, request) != getattr(request.scope.get("route"), "path", None)


def _resource(app: FastAPI, request: Request) -> str | None:
    """The path template to which this path belongs, whatever the method: the one with the fewest parameters."""
    path = request.url.path.removeprefix(request.scope["root_path"])
    found = [route.path for route in _routes(app) if route.path_regex.match(path)]
    return min(found, key=lambda path: path.count("{"), default=None)


def _routes(app: FastAPI) -> list[APIRoute]:
    return [route for route in app.router.routes if isinstance(route, APIRoute)]


def _mount_pages(app: FastAPI) -> str | None:
    """Mounts the installed pages (entry points ``quorate.pages``: a callable that returns an ASGI app, under its name,
    or None where it has nothing to show). They are for everybody: what they show they read over the API, as the reader.
    A page hides no route of the coordinator: one whose name begins the path of a route is not mounted.

    Returns the path of the first page, to which a browser is redirected from ``/``; None where none is installed.
    """
    first, taken = None, {getattr(route, "path", "/").split("/")[1] for route in app.router.routes}
    for page in sorted(entry_points(group="quorate.pages"), key=lambda page: page.name):
        try:
            if page.name in taken:
                raise ValueError(f"the coordinator has routes below /{page.name}: give this page another name")
            shown = page.load()()
            if shown is None:
                continue
            mount = Mount(f"/{page.name}", shown, name=page.name)
        except Exception as error:  # noqa: BLE001 - a page that is broken must not stop the coordinator
            log.error("a page could not be loaded", page=page.name, exc_info=error)
        else:
            app.router.routes.append(declared(_to_page(page.name), Permission.NOBODY))
            app.router.routes.append(declared(mount, Permission.NOBODY))
            first = first or f"/{page.name}/"
    return first


def _to_page(name: str) -> Route:
    """Leads who leaves out the slash to the page: its files are named relative to it."""

    async def lead(request: Request) -> Response:
        return RedirectResponse(f"{name}/")

    return Route(f"/{name}", lead, include_in_schema=False)
