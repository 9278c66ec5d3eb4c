"""The dashboard on this machine, of a coordinator somewhere else: serves the page, and passes its API on.

One origin is what the page may ask, so the API of one coordinator appears below ``/v1`` here. TLS is verified as every
command does it. The browser's session cookie is the coordinator's, under a name of this address; it is passed on to
that coordinator and to nobody else.

What protects the coordinator from other pages stands here too, since its own checks see this process only: a request
goes to a loopback name with our port, no other origin makes it, and one that changes something says that a page of ours
does. A path is passed on as it was sent, and only where nobody can read it as one outside of ``/v1``.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import unquote, urlsplit

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_sdk.http.transport import open_http
from client_sdk.http.urls import check_url, is_loopback
from client_sdk.protocol.access import LoginWays
from client_sdk.protocol.names import NEXT_HEADER, PROBLEM_MEDIA_TYPE
from client_sdk.protocol.names import Route as ApiRoute

READS = frozenset({"GET", "HEAD"})
METHODS = [*sorted(READS), "POST", "PUT", "DELETE"]
_PASSED_ON = ("accept", "content-type", "last-event-id", "content-digest", "quorate-request", "range", "if-range")
_PASSED_BACK = (
    "content-type", "content-length", "content-disposition", "content-digest", "content-range", "accept-ranges", "etag",
    "retry-after", "cache-control", NEXT_HEADER.lower(),
)  # fmt: skip
_PART = re.compile(r"(?!\.\.?$)[A-Za-z0-9._~:@!$&'()*+,;=-]*")
"""A part of a path, as it is meant."""
_QUERY = re.compile(r'[!"$-~]*')
_SESSION = re.compile(r"[A-Za-z0-9_.-]{1,400}")
_STANDING = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of an answer that has none of that name itself, as the page has."""
_NO_ANSWER = "The coordinator at {url} does not answer: {why}. Is it running, and can this machine reach it?"
_LOOK_S = 3.0
"""The longest wait for a first answer, in seconds."""


class ProxyToCoordinator:
    """Passes requests of one browser on to one coordinator."""

    def __init__(self, coordinator: str, port: int, http: httpx2.AsyncClient) -> None:
        self.coordinator = check_url(coordinator)
        parts = urlsplit(self.coordinator)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._theirs = "__Host-quorate" if parts.scheme == "https" else f"quorate-{parts.port or 80}"
        self._ours = f"quorate-dashboard-{port}"
        self._hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        self._http = http

    async def answer(self, request: Request) -> Response:
        """The coordinator's answer, as it comes."""
        refused = self._refusal(request)
        if refused is not None:
            return refused
        target = _target(request.scope)
        if target is None:
            return _problem(404, "This is no path of the coordinator's API.")
        asked = self._http.build_request(
            request.method,
            self.coordinator + target,
            headers=self._headers(request),
            content=None if request.method in READS else request.stream(),
        )
        try:
            found = await self._http.send(asked, stream=True)
        except ClientDisconnect:
            return Response(status_code=499)  # read by nobody
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            return _problem(502, _NO_ANSWER.format(url=self.coordinator, why=why))
        if request.url.path == ApiRoute.SESSION_WAYS and found.status_code == 200:
            # The issuer sends the browser back to the coordinator, not here; and links are for its own machine.
            await found.aclose()
            return JSONResponse(LoginWays(link=False, oidc=None).model_dump())
        headers = {name: found.headers[name] for name in _PASSED_BACK if name in found.headers}
        answer = StreamingResponse(_body(found), found.status_code, headers, background=BackgroundTask(found.aclose))
        self._set_session(found, answer)
        return answer

    def _refusal(self, request: Request) -> Response | None:
        headers = request.headers
        if headers.get("host", "").lower() not in self._hosts:
            return _problem(421, "This dashboard answers to 127.0.0.1 and localhost with its own port only.")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        own = f"http://{headers['host'].lower()}"
        if site not in (None, "same-origin", "none") or origin not in (None, own):
            return _problem(403, "A page of another origin asks: that is refused.")
        if request.method not in READS and origin is None and site is None:
            return _problem(403, "Nothing says that a page of this dashboard makes this request.")
        return None

    def _headers(self, request: Request) -> dict[str, str]:
        given = request.headers
        found = {name: given[name] for name in _PASSED_ON if name in given and given[name].isascii()}
        sessions = self._sessions(request)
        if sessions:
            found["cookie"] = "; ".join(f"{self._theirs}={session}" for session in sessions)
        return found | {"origin": self._origin, "sec-fetch-site": "same-origin", "accept-encoding": "identity"}

    def _sessions(self, request: Request) -> list[str]:
        """The values of our cookie. There may be several, since pages of other ports of this machine can set cookies:
        the coordinator refuses these."""
        parts = (part.strip().partition("=") for part in ";".join(request.headers.getlist("cookie")).split(";"))
        return [value for name, _, value in parts if name == self._ours and _SESSION.fullmatch(value)]

    def _set_session(self, found: httpx2.Response, answer: Response) -> None:
        """Gives the browser the session that the coordinator has opened, or takes away the one that it has ended."""
        for header in found.headers.get_list("set-cookie"):
            (name, _, value), *more = (part.strip().partition("=") for part in header.split(";"))
            if name != self._theirs:
                continue
            said = {key.lower(): text for key, _, text in more}
            lasts_s = int(said["max-age"]) if said.get("max-age", "").isdecimal() else None
            value = value.strip('"')
            answer.set_cookie(self._ours, value, max_age=lasts_s, path="/", httponly=True, samesite="strict")


def why_silent(coordinator: str, tls: ssl.SSLContext | None = None) -> str:
    """Why no coordinator answers at this URL now; empty: one does. Arguments as of ``create_proxy``."""
    with open_http(coordinator, tls=tls) as http:
        try:
            http.get("/healthz", timeout=_LOOK_S)
        except httpx2.TransportError as error:
            return str(error) or type(error).__name__
    return ""


def create_proxy(
    coordinator: str,
    port: int,
    page: ASGIApp,
    tls: ssl.SSLContext | None = None,
    *,
    http: httpx2.AsyncClient | None = None,
) -> Starlette:
    """An application for 127.0.0.1 and this port: the page at ``/dashboard/``, the coordinator's API below ``/v1``.

    ``tls``: whom it trusts; None: the usual authorities. ``http``: what sends the requests, in place of a client of its
    own. ValueError where ``coordinator`` is no URL, or plain http beyond this machine."""
    url = check_url(coordinator)
    direct = is_loopback(urlsplit(url).hostname or "")
    client = http or httpx2.AsyncClient(
        verify=tls if tls is not None else True,
        trust_env=not direct,
        follow_redirects=False,
        timeout=httpx2.Timeout(connect=5.0, read=60.0, write=30.0, pool=30.0),
        limits=httpx2.Limits(max_connections=None),
    )
    proxy = ProxyToCoordinator(url, port, client)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    async def home(_: Request) -> Response:
        return RedirectResponse("/dashboard/")

    return Starlette(
        routes=[
            Route("/", home),
            Route("/v1/{path:path}", proxy.answer, methods=METHODS),
            Mount("/dashboard", page),
        ],
        middleware=[Middleware(_Standing)],
        lifespan=lifespan,
    )


class _Standing:
    """Adds the standing headers to each answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _STANDING.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, with_headers)


def _target(scope: Scope) -> str | None:
    """Path and query as they were sent; None where the path has characters that none of the API's has, or a part that
    somebody may read as a step up or as two parts."""
    path = scope["raw_path"].partition(b"?")[0].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    if not all(_PART.fullmatch(unquote(part, "latin-1")) for part in path.split("/")) or not _QUERY.fullmatch(query):
        return None
    return f"{path}?{query}" if query else path


async def _body(found: httpx2.Response) -> AsyncIterator[bytes]:
    """The body as it comes. A stream of events ends where the coordinator goes away: the browser asks again."""
    try:
        async for piece in found.aiter_raw():
            yield piece
    except httpx2.HTTPError:
        if "content-length" in found.headers:
            raise


def _problem(status: int, detail: str) -> Response:
    found = {"type": "about:blank", "title": "The dashboard refused this", "status": status, "detail": detail}
    return JSONResponse(found, status, media_type=PROBLEM_MEDIA_TYPE)


class PageServer(uvicorn.Server):
    """Serves one application on one listening socket. ``on_ready`` is called when it does: from then on SIGINT ends
    it without a word."""

    def __init__(self, app: ASGIApp, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        self._listener = listener
        self._on_ready = on_ready
        super().__init__(
            uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=1, ws="none")
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([self._listener])
        if self.started:
            self._on_ready()
