"""The outermost layer of each request: host, origin, protocol version, problems, meters. Raw ASGI, no tasks.

The service listens on loopback, which every web page in a browser can reach: a Host that is not a loopback name means
that a name was rebound to this machine, and a write from another origin means that a page tries to act as the operator.
Both are refused.
"""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_OLDEST, PROTOCOL_VERSION
from client_sdk.protocol.problems import Problem, problem
from coordinator.service.errors import plain, problem_of, problem_response
from coordinator.service.observe import Meters
from coordinator.settings import is_loopback

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_STANDING = [
    (PROTOCOL_HEADER.lower().encode(), str(PROTOCOL_VERSION).encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class Edge:
    """The outermost layer of the service."""

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self.app = app
        self.meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0
        sent = 0

        async def counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_STANDING]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            refused = refusal(scope)
            if refused is not None:
                await self.refuse(refused, scope, receive, counted)
            else:
                await self.app(scope, receive, counted)
        except ClientDisconnect:
            status = status or 499
        except Exception as error:  # noqa: BLE001 - the last place where a bug can become an answer
            found = problem_of(error, path=scope["path"])
            if status == 0:
                await self.refuse(found, scope, receive, counted)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self.meters.answered(route, scope["method"], status, time.perf_counter() - began, sent)

    async def refuse(self, found: Problem, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with the document and counts it."""
        self.meters.refused(found)
        await problem_response(found)(scope, receive, send)


def refusal(scope: Scope) -> Problem | None:
    """Returns why a request is refused before it is routed; None: it is not."""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not is_loopback(_name(host)):
        return plain(421, f"This coordinator answers to localhost only, not to {host[:100]!r}.")
    if scope["method"] not in _READS:
        origin = headers.get("origin")
        if (origin is not None and urlsplit(origin).netloc != host) or headers.get("sec-fetch-site") == "cross-site":
            return plain(403, "Writes from pages of another origin are refused.")
    version = headers.get(PROTOCOL_HEADER)
    return None if version is None else version_refusal(version)


def version_refusal(version: str | None) -> Problem | None:
    """Returns the answer for a peer that is too old, too new, or has no version; None: the version is supported."""
    spoken = (
        f"version {PROTOCOL_VERSION}"
        if PROTOCOL_OLDEST == PROTOCOL_VERSION
        else f"versions {PROTOCOL_OLDEST} to {PROTOCOL_VERSION}"
    )
    if version is None:
        detail = (
            f"The request has no {PROTOCOL_HEADER} header. This coordinator speaks {spoken}: send it with each request."
        )
    elif not version.isascii() or not version.isdigit() or len(version) > 9:
        detail = f"{PROTOCOL_HEADER} must be a whole number, not {version[:40]!r}. This coordinator speaks {spoken}."
    elif int(version) < PROTOCOL_OLDEST:
        detail = (
            f"The device speaks protocol version {version}, this coordinator {spoken}: upgrade the device's quorate."
        )
    elif int(version) > PROTOCOL_VERSION:
        detail = f"The device speaks protocol version {version}, this coordinator {spoken}: upgrade the coordinator."
    else:
        return None
    return problem("protocol-version", detail).problem


def _name(host: str) -> str:
    """A Host header without its port: ``[::1]:8470`` -> ``[::1]``."""
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.rpartition(":")[0] if ":" in host else host
