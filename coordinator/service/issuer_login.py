"""Logging a browser in at the OpenID Connect issuer: two redirects, and a cookie that binds the second to the first.

Nothing is stored of a browser that has not logged in. An error is a problem document; a browser, which asks for HTML,
gets a page with the same sentence.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from html import escape
from typing import TYPE_CHECKING, Annotated

from fastapi import Query, Request
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse, RedirectResponse, Response

from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.access.sessions import NewSession
from coordinator.requests import Permission
from coordinator.service.core import Service
from coordinator.service.declaring import declared
from coordinator.service.errors import plain, problem_response
from coordinator.service.session_cookie import cookie_name, cookies, set_cookie, with_session

if TYPE_CHECKING:
    from coordinator.access.code_flow import CodeFlow

_COOKIE = "quorate-login"
_LASTS_S = 600.0
_SECRET_BYTES = 32
_LOCATION = {
    "Location": {"schema": {"type": "string"}, "description": "An address of the issuer, or a page of this site"}
}
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body><h1>{title}</h1><p>{detail}</p><p><a href="{home}">Back</a></p></body></html>
"""

Next = Annotated[str, Query(description="the path of the page to which the browser comes back")]
Endpoint = Callable[..., Awaitable[Response]]


def issuer_login_routes(service: Service) -> list[APIRoute]:
    """The two routes of a login at the issuer."""
    access, prefix = service.coordinator.access, service.settings.prefix

    def flow() -> CodeFlow:
        if access.code_flow is None:
            raise ProblemError(plain(404, "Nobody logs in at an issuer here: QUORATE_OIDC_CLIENT is not set."))
        service.admit()
        return access.code_flow

    def redirect_uri(request: Request) -> str:
        return service.hosts.here(request.scope) + Route.OIDC_CALLBACK

    async def begin(request: Request, next: Next = "") -> Response:
        """Sends a browser to the issuer, where its user logs in."""
        page = next or f"{prefix}/"
        if not page.startswith(f"{prefix}/"):
            raise problem("invalid-request", f"next: should be a path that begins with {prefix}/.")
        secret = service.coordinator.core.entropy(_SECRET_BYTES).hex()
        place = await service.work(flow().begin, secret, page, redirect_uri(request))
        return set_cookie(request, _to(place), cookie_name(request, _COOKIE), secret, _LASTS_S)

    async def finish(
        request: Request, state: str = "", code: str = "", error: str = "", iss: str | None = None
    ) -> Response:
        """Takes a browser that comes back from the issuer, logs it in, and sends it to the page where it began."""
        login = flow()
        try:
            opened, page = await service.work(
                log_in, login, secret_of(request), state, code, error, iss, redirect_uri(request)
            )
            response = with_session(request, _to(page), opened)
        except ProblemError as refused:
            service.meters.refused(refused.problem)
            response = _refusal(request, refused, prefix)
        return set_cookie(request, response, cookie_name(request, _COOKIE), "", 0)

    def log_in(
        login: CodeFlow, secret: str, state: str, code: str, error: str, iss: str | None, redirect_uri: str
    ) -> tuple[NewSession, str]:
        page = ""

        def open_session() -> NewSession:
            nonlocal page
            page = login.page(secret, state, iss)
            if error or not code:
                raise login.refused(error)
            return access.sessions.open_for(login.person(secret, code, redirect_uri))

        return access.log_in(open_session), page

    def secret_of(request: Request) -> str:
        found = list(cookies(request, cookie_name(request, _COOKIE)))
        return found[0] if len(found) == 1 else ""

    return [
        _route(Route.SESSION_OIDC, begin, "Log in at the issuer"),
        _route(Route.OIDC_CALLBACK, finish, "Come back from the issuer"),
    ]


def _to(place: str) -> Response:
    return RedirectResponse(place, status_code=303, headers=_HEADERS)


def _refusal(request: Request, refused: ProblemError, prefix: str) -> Response:
    found = refused.problem
    if "text/html" not in request.headers.get("accept", ""):
        return problem_response(found, _HEADERS)
    text = _PAGE.format(title=escape(found.title), detail=escape(found.detail), home=escape(f"{prefix}/"))
    return HTMLResponse(text, found.status, {**_HEADERS, "Content-Security-Policy": "default-src 'none'"})


def _route(path: str, endpoint: Endpoint, summary: str) -> APIRoute:
    found = APIRoute(
        path,
        endpoint,
        methods=["GET"],
        summary=summary,
        tags=["access"],
        status_code=303,
        response_class=Response,
        responses={303: {"description": "Where the browser goes next", "headers": _LOCATION}},
    )
    return declared(found, Permission.NOBODY)
