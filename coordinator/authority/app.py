"""The authority over HTTP, with the sockets, limits and problem documents of a coordinator's service.

It serves holders of keys and whoever fetches the list. Nothing here lists devices, makes tokens or revokes others'
keys: operators do that on the authority's machine.

An authority is a process of its own, which locks its folder. A coordinator needs none to go on with its rounds: only
the list's next update, renewals and new devices do. For trials on one machine (``quorate serve --dev-authority``) it is
inside a coordinator's process, in a folder like any other, with the tokens of this start beside it. That is the one
exception to what an authority is for: this coordinator has the key, so it could make devices up, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from client_sdk.credentials.certificate import HolderClass
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.credentials.errors import BadCredential
from client_sdk.protocol.authority import REVOCATIONS_MEDIA_TYPE, AuthorityRoute, CertificateRequest
from client_sdk.protocol.problems import ProblemError
from coordinator.authority.answering import AuthorityAnswers, SignedRequest
from coordinator.authority.folder import KEY_FILE, make_authority, opened, write_policy
from coordinator.authority.issuer import DAY_S, AuthorityPolicy, Issuer, make_token
from coordinator.authority.ledger import LedgerRows
from coordinator.authority.proofs import EnrolmentProof
from coordinator.datafolder import locked, write_private
from coordinator.group_commit import PendingCommit
from coordinator.service.core import Serving, at_once
from coordinator.service.edge import Edge
from coordinator.service.errors import problem_of, problem_response
from coordinator.service.observe import Meters
from coordinator.service.process import (
    Inside,
    bind,
    certificate_of,
    collect_only_what_is_new,
    local_url,
    locked_folder,
    raise_file_limit,
)
from coordinator.service.route import LeanRoute, json_response, read_body
from coordinator.service.sockets import HttpServer
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
        at = clock()

        def begin() -> Any:
            return at_once(PendingCommit(answers.enrolments, answers.enrol(body, at)))

        return json_response(await service.settled(await service.work(begin)))

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


def serve_authority(
    folder: Path,
    settings: Settings,
    proof: EnrolmentProof,
    on_ready: Callable[[str, Issuer], None],
) -> None:
    """Serves the authority of this folder until SIGINT or SIGTERM, under the limits of ``settings``.
    ``on_ready(url, issuer)`` is called when requests are answered, with the address that is listened on.

    Must run in the process's main thread. CannotServe, AuthorityFolderError.
    """
    certificate = certificate_of(settings)
    raise_file_limit()
    with opened(folder) as (issuer, ledger), locked_folder(folder, "authority"):
        listener = bind(settings.host, settings.port)
        try:
            url = local_url(settings, listener)
            app = create_authority_app(AuthorityAnswers(issuer, ledger, proof), settings, time.time)

            def ready() -> None:
                collect_only_what_is_new()
                on_ready(url, issuer)

            HttpServer(app, listener, ready, certificate).run()
        finally:
            listener.close()


_LASTS_S = 3_650 * DAY_S
_USES = 1_000_000
_LEFT_S = 30 * DAY_S
"""A token that lasts less long is replaced at the next start."""


@contextlib.contextmanager
def inside_authority(folder: Path, url: str, clock: Callable[[], float]) -> Iterator[Inside]:
    """The authority in this folder, which is made where there is none, under the coordinator's URL of this start.
    ``clock``: Unix seconds. AuthorityFolderError, FolderError."""
    if not (folder / KEY_FILE).exists():
        make_authority(folder, AuthorityPolicy(url=url), at=clock())
    with locked(folder, "authority"), opened(folder) as (issuer, ledger):
        if issuer.policy.url != url:
            issuer = replace(issuer, policy=issuer.policy.model_copy(update={"url": url}))
            write_policy(folder, issuer.policy)
        with ledger.writing() as rows:
            files = [_token_file(folder, rows, issuer, holder, clock()) for holder in ("device", "worker")]
        answers = AuthorityAnswers(issuer, ledger)
        yield Inside(
            issuer.trusted,
            lambda: answers.revocations(clock()),
            lambda service: holders_routes(service, answers, clock),
            *files,
        )


def _token_file(folder: Path, rows: LedgerRows, issuer: Issuer, holder: HolderClass, at: float) -> Path:
    """The file with the token of this class: that of the last start under today's URL, or a new one."""
    path = folder / f"{holder}-token"
    token = _last(path, issuer)
    row = rows.token(token.secret_digest) if token is not None else None
    if token is None or row is None or row.uses_left < 1 or at >= row.expires_at - _LEFT_S:
        token = make_token(
            rows, issuer, holder=holder, uses=_USES, lasts_s=_LASTS_S, label="dev", who="quorate serve", at=at
        )
    write_private(path, token.text.encode() + b"\n")
    return path


def _last(path: Path, issuer: Issuer) -> EnrolmentToken | None:
    try:
        found = EnrolmentToken.parse(path.read_text("ascii").strip())
    except (FileNotFoundError, UnicodeDecodeError, BadCredential):
        return None
    return EnrolmentToken(issuer.policy.url, issuer.trusted.digest, found.secret)
