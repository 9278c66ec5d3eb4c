"""The authority over HTTP, with the sockets, limits and problem documents of a coordinator's service.

It serves holders of keys and whoever fetches the list. Nothing here lists devices, makes tokens or revokes others'
keys: operators do that on the authority's machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from client_sdk.protocol.authority import REVOCATIONS_MEDIA_TYPE, AuthorityRoute, CertificateRequest
from client_sdk.protocol.problems import ProblemError
from coordinator.authority.answering import AuthorityAnswers, SignedRequest
from coordinator.service.edge import Edge
from coordinator.service.errors import problem_of, problem_response
from coordinator.service.observe import Meters
from coordinator.service.route import LeanRoute, json_response, read_body
from coordinator.service.serving import Serving
from coordinator.settings import Settings

Endpoint = Callable[..., Awaitable[Response]]


def create_authority_app(answers: AuthorityAnswers, settings: Settings, clock: Callable[[], float]) -> FastAPI:
    """Returns the ASGI application of one authority. ``clock``: Unix seconds."""
    service = Serving(settings, Meters(None))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            service.stop()
            await asyncio.to_thread(service.close)

    app = FastAPI(
        title="Quorate authority",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    app.router.routes += [
        *holders_routes(service, answers, clock),
        _list_route(service, answers, clock),
        *_process_routes(service, answers, clock),
    ]
    app.add_middleware(Edge, meters=service.meters, hosts=service.hosts, admission=service.admission)

    async def on_error(request: Request, error: Exception) -> Response:
        found = problem_of(error, path=request.url.path)
        service.meters.refused(found)
        return problem_response(found, error.headers if isinstance(error, HTTPException) else None)

    for kind in (ProblemError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, on_error)
    return app


def holders_routes(service: Serving, answers: AuthorityAnswers, clock: Callable[[], float]) -> list[LeanRoute]:
    """The routes of the holders of keys, and of who wants to be one."""

    async def signed(request: Request, path: AuthorityRoute) -> SignedRequest:
        at = clock()  # a request is judged by when its head arrived
        body = await read_body(request)
        query: bytes = request.scope["query_string"]
        return SignedRequest(path, request.headers.raw, body, at, query, complete_at=clock())

    async def authority(request: Request) -> Response:
        return json_response(answers.key())

    async def enrolled(request: Request, body: CertificateRequest) -> Response:
        return json_response(await service.work(answers.enrol, body, clock()))

    async def renewed(request: Request) -> Response:
        asked = await signed(request, AuthorityRoute.RENEWED)
        return json_response(await service.work(answers.renew, asked))

    async def rotated(request: Request) -> Response:
        asked = await signed(request, AuthorityRoute.ROTATED)
        return json_response(await service.work(answers.rotate, asked))

    async def left(request: Request) -> Response:
        asked = await signed(request, AuthorityRoute.LEFT)
        await service.work(answers.leave, asked)
        return Response(status_code=204)

    return [
        _route("GET", AuthorityRoute.AUTHORITY, authority),
        _route("POST", AuthorityRoute.CERTIFICATES, enrolled),
        _route("POST", AuthorityRoute.RENEWED, renewed),
        _route("POST", AuthorityRoute.ROTATED, rotated),
        _route("POST", AuthorityRoute.LEFT, left),
    ]


def _list_route(service: Serving, answers: AuthorityAnswers, clock: Callable[[], float]) -> LeanRoute:
    async def revocations(request: Request) -> Response:
        return Response(await service.work(answers.revocations, clock()), media_type=REVOCATIONS_MEDIA_TYPE)

    return _route("GET", AuthorityRoute.REVOCATIONS, revocations)


def _process_routes(service: Serving, answers: AuthorityAnswers, clock: Callable[[], float]) -> list[LeanRoute]:
    async def healthz(request: Request) -> Response:
        """The process answers."""
        return JSONResponse({"ok": True})

    async def readyz(request: Request) -> Response:
        """The ledger can be read and has a list; an error or 503 otherwise."""
        await service.work(answers.revocations, clock())
        return JSONResponse({"ok": not service.stopping}, 503 if service.stopping else 200)

    async def metrics(request: Request) -> Response:
        """Meters for Prometheus."""
        return Response(await service.work(service.meters.text), headers={"Content-Type": CONTENT_TYPE_LATEST})

    probes = {"/healthz": healthz, "/readyz": readyz}
    found = [_route(method, path, probe) for path, probe in probes.items() for method in ("GET", "HEAD")]
    return [*found, _route("GET", "/metrics", metrics)]


def _route(method: str, path: str, endpoint: Endpoint) -> LeanRoute:
    return LeanRoute(path, endpoint, methods=[method], response_class=Response, include_in_schema=False)
