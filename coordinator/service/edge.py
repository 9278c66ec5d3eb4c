"""The outermost layer of each request: host, origin, protocol version, problems, meters. Raw ASGI, no tasks.

Which names a request may be sent to, and from which pages: ``hosts``. What it costs its address: ``limits``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_OLDEST, PROTOCOL_VERSION
from client_sdk.protocol.problems import Problem, problem
from coordinator.runtime import log_context
from coordinator.service.errors import problem_of, problem_response
from coordinator.service.hosts import MALFORMED, Hosts
from coordinator.service.limits import Admission
from coordinator.service.limits.admission import COSTLY, LOCAL, Sender
from coordinator.service.observe import Meters

STANDING = [
    (PROTOCOL_HEADER.lower().encode(), str(PROTOCOL_VERSION).encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
"""Headers of every answer."""
_UNLESS_SAID = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]
"""Headers of an answer that has none of that name itself, as pages have: nothing is loaded from it, kept or framed."""


class Edge:
    """The outermost layer of the service."""

    def __init__(self, app: ASGIApp, meters: Meters, hosts: Hosts, admission: Admission) -> None:
        self.app = app
        self.meters = meters
        self.hosts = hosts
        self.admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        log_context.begin()
        sender: Sender = scope.get("state", {}).get("sender", LOCAL)
        scope["root_path"] = self.hosts.prefix
        status = 0
        sent = 0

        async def counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = _with_standing(message.get("headers", ()))
                if status in COSTLY and self.admission.charge(sender.key):
                    message["headers"].append((b"connection", b"close"))
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            refused = self.refusal(scope, sender)
            if refused is not None:
                await self.refuse(refused, scope, receive, counted)
            else:
                with self.under_way(sender):
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

    def refusal(self, scope: Scope, sender: Sender) -> Problem | None:
        """Returns why a request is refused before it is routed; None: it is not."""
        headers = Headers(scope=scope)
        refused = self.hosts.refusal(scope, headers, sender)
        if refused is not None:
            return refused
        if headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            detail = "Nothing is decompressed here: send the body without a Content-Encoding."
            return problem("compressed", detail).problem
        version = headers.get(PROTOCOL_HEADER)
        return None if version is None else version_refusal(version)

    def under_way(self, sender: Sender) -> AbstractContextManager[object]:
        """Counts the request of an address that has no connections of its own here."""
        if sender.way != "forwarded" or not sender.key:
            return nullcontext()
        return self.admission.under_way.held(sender.key, 1)


def _with_standing(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    found = list(headers)
    said = {name for name, _ in found}
    return [*found, *STANDING, *(header for header in _UNLESS_SAID if header[0] not in said)]


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
