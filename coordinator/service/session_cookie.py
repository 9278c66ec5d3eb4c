"""The cookie that has a browser's session, and the proof that a page of this service sends it.

Scripts cannot read the cookie, and it goes to this host alone. Under TLS its name has the prefix ``__Host-``: no other
host of the same domain can set it. On loopback, where cookies go to every port, its name has the port.

A browser sends a cookie whichever page asks. Requests by cookie therefore come from an own page, as far as the browser
says (RFC 6454, Origin; Fetch Metadata). A request that changes something, or logs in, must say it, and has the header
``Quorate-Request``, which makes a browser ask first before it sends the request from another origin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from client_sdk.protocol.access import REQUEST_HEADER, REQUEST_VALUE
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.access.sessions import NewSession
from coordinator.service.errors import plain

if TYPE_CHECKING:
    from coordinator.service.core import Serving

_READS = frozenset({"GET", "HEAD"})
_PORT = re.compile(r":([0-9]+)$")


def session_of(request: Request) -> str | None:
    """The text of the session by whose cookie the request is made; None where it has none. ProblemError of
    *unauthenticated* where it has several, and with status 403 where no page of ours makes it."""
    found = list(cookies(request, session_name(request)))
    if not found:
        return None
    if len(found) > 1:
        raise problem("unauthenticated", "This request has several session cookies: delete the cookies of this site.")
    if request.method not in _READS:
        require_proof(request)
    elif not _service(request).hosts.own_page(request.scope, request.headers):
        raise ProblemError(plain(403, "A page of another origin asks with your session: that is refused."))
    return found[0]


def require_proof(request: Request) -> None:
    """ProblemError with status 403 where nothing proves that a page of this service makes the request."""
    headers = request.headers
    if headers.get(REQUEST_HEADER) != REQUEST_VALUE:
        raise ProblemError(
            plain(403, f"A browser's request that changes something has {REQUEST_HEADER}: {REQUEST_VALUE}.")
        )
    if not _service(request).hosts.proven_page(request.scope, headers):
        raise ProblemError(
            plain(403, "The request has neither the Origin of this service nor Sec-Fetch-Site: same-origin.")
        )


def with_session(request: Request, response: Response, opened: NewSession) -> Response:
    """The response, which gives the browser its session."""
    return set_cookie(request, response, session_name(request), opened.secret, opened.lasts_s)


def without_session(request: Request, response: Response) -> Response:
    """The response, which takes the cookie away."""
    return set_cookie(request, response, session_name(request), "", 0)


def set_cookie(request: Request, response: Response, name: str, value: str, lasts_s: float) -> Response:
    """Sets a cookie that only this service sees. ``lasts_s`` 0: removes it."""
    response.headers["Cache-Control"] = "no-store"
    response.set_cookie(
        name, value, max_age=int(lasts_s), path="/", secure=_secure(request), httponly=True, samesite="lax"
    )
    return response


def session_name(request: Request) -> str:
    return cookie_name(request, "quorate")


def cookie_name(request: Request, name: str) -> str:
    """The name of a cookie of this service."""
    if _secure(request):
        return f"__Host-{name}"
    port = _PORT.search(request.headers.get("host", ""))
    return f"{name}-{port[1] if port else 80}"


def cookies(request: Request, name: str) -> Iterator[str]:
    """The values of all cookies of this name. Starlette's dictionary has the last one only."""
    for header in request.headers.getlist("cookie"):
        for part in header.split(";"):
            found, _, value = part.strip().partition("=")
            if found == name:
                yield value


def _secure(request: Request) -> bool:
    settings = _service(request).settings
    return settings.tls or (settings.public is not None and settings.public.scheme == "https")


def _service(request: Request) -> Serving:
    found: Serving = request.app.state.service
    return found
