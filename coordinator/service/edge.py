"""The outermost layer of each request: host, origin, protocol version, problems, meters. Raw ASGI, no tasks.

The service listens on loopback, which every web page in a browser can reach: a Host that is not a loopback name means
that a name was rebound to this machine, and a write from another origin means that a page tries to act as the operator.
Both are refused, and so is a request of which two readers could see two hosts. Names of hosts have no case, and may end
with a dot (RFC 9110, section 4.2.3; RFC 1034, section 3.1).
"""

from __future__ import annotations

import re
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

MALFORMED = "malformed-request"
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:\[\]\s]*)(?::[0-9]{0,5})?")
"""A Host header: its name, and its port (RFC 9110, section 7.2)."""
STANDING = [
    (PROTOCOL_HEADER.lower().encode(), str(PROTOCOL_VERSION).encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
"""Headers of every answer."""


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
                message["headers"] = [*message.get("headers", ()), *STANDING]
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
        close = {"Connection": "close"} if found.kind == MALFORMED else None
        await problem_response(found, close)(scope, receive, send)


def refusal(scope: Scope) -> Problem | None:
    """Returns why a request is refused before it is routed; None: it is not."""
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) > 1 or (not hosts and scope["http_version"] == "1.1"):
        return problem(MALFORMED, f"A request has one Host header; this one has {len(hosts) or 'none'}.").problem
    host = hosts[0].lower() if hosts else ""
    found = _HOST.fullmatch(host)
    if found is None:
        return problem(MALFORMED, f"The Host header {host[:100]!r} is no host, or no host and port.").problem
    if not is_loopback(found[1].removesuffix(".")):
        return plain(421, f"This coordinator answers to localhost only, not to {host[:100]!r}.")
    if scope["method"] not in _READS:
        origin = headers.get("origin")
        if (origin is not None and _site(origin) != host) or headers.get("sec-fetch-site") == "cross-site":
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


def _site(origin: str) -> str | None:
    """Host and port of an Origin header; None where it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
