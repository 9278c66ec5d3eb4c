"""The way of a request from the edge to a lean route, past what Starlette and FastAPI do for routes of any kind.

Starlette tries one route after the other, each by a regular expression, and wraps the answer at each of its layers.
Here the routes that can match are found by the method and the number of the path's segments, and a ``LeanRoute`` is
called at once. Its problems are answered by the same function as those of all others, whose requests take the usual
way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from fastapi.exceptions import RequestValidationError
from starlette._utils import get_route_path
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_sdk.protocol.problems import ProblemError
from coordinator.service.route import LeanRoute

ANSWERED = (ProblemError, RequestValidationError, HTTPException)
"""Errors that are answered with their problem."""


class Shortcut:
    """The layer within the edge. ``routes``: all of them, in the sequence in which they are tried. ``problem``: answers
    an error of ``ANSWERED``."""

    def __init__(
        self, app: ASGIApp, routes: Iterable[BaseRoute], problem: Callable[[Request, Exception], Awaitable[Response]]
    ) -> None:
        self.app = app
        self._problem = problem
        self._routes: dict[tuple[str, int], list[Route]] = defaultdict(list)
        for route in routes:
            if isinstance(route, Route):
                for method in route.methods or ():
                    self._routes[method, route.path.count("/")].append(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._found(scope) if scope["type"] == "http" else None
        if found is None:
            await self.app(scope, receive, send)
            return
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        scope.update(found)
        try:
            await found["route"].app(scope, receive, noting)
        except ANSWERED as error:
            if begun:
                raise
            await (await self._problem(Request(scope, receive), error))(scope, receive, send)

    def _found(self, scope: Scope) -> Scope | None:
        """What Starlette adds to the scope of the lean route that the request is for; None: it is for another one."""
        path = get_route_path(scope)
        for route in self._routes.get((scope["method"], path.count("/")), ()):
            match = route.path_regex.match(path)
            if match is not None:
                names = {name: route.param_convertors[name].convert(text) for name, text in match.groupdict().items()}
                lean = isinstance(route, LeanRoute)
                return {"route": route, "endpoint": route.endpoint, "path_params": names} if lean else None
        return None
