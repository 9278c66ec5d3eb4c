"""The outermost layer of each request: host, origin, protocol version, problems, meters. Raw ASGI, no tasks.

What a request costs its address: ``coordinator.limits``.

Every web page in a browser can reach a service on loopback, and a page of any name can be made to point to it: a Host
that is neither the public one nor, on this machine, a loopback name means that a name was rebound. A write from another
origin means that a page tries to act as the operator. Both are refused, and so is a request of which two readers could
see two hosts. Probes say nothing but a status, and are answered under any name. Names of hosts have no case, and may
end with a dot (RFC 9110, section 4.2.3; RFC 1034, section 3.1).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_sdk.http.urls import is_loopback
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_OLDEST, PROTOCOL_VERSION
from client_sdk.protocol.problems import Problem, problem
from coordinator.limits import Admission
from coordinator.limits.admission import COSTLY, LOCAL, Sender
from coordinator.network_settings import PublicUrl
from coordinator.runtime import log_context
from coordinator.service.errors import plain, problem_of, problem_response
from coordinator.service.observe import Meters

MALFORMED = "malformed-request"
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:\[\]\s]*)(?::[0-9]{0,5})?")
"""A Host header: its name, and its port (RFC 9110, section 7.2)."""


class Hosts:
    """Which Host and Origin headers a request may have, and under which path the routes are. ``probes`` are the routes,
    without the prefix, that are read by whoever watches the process, a proxy, a kubelet or a load balancer, under
    whatever name it knows it by."""

    def __init__(self, public: PublicUrl | None, probes: frozenset[str] = frozenset()) -> None:
        self.prefix = "" if public is None else public.prefix
        self._public = public
        self._hosts = frozenset() if public is None else public.hosts
        self._origins = frozenset() if public is None else public.origins
        self._probes = frozenset(self.prefix + probe for probe in probes)

    def refusal(self, scope: Scope, headers: Headers, sender: Sender) -> Problem | None:
        """Returns why a request is refused by where it was sent to, or from; None: it is not."""
        hosts = headers.getlist("host")
        if len(hosts) > 1 or (not hosts and scope["http_version"] == "1.1"):
            return problem(MALFORMED, f"A request has one Host header; this one has {len(hosts) or 'none'}.").problem
        host = hosts[0].lower() if hosts else ""
        found = _HOST.fullmatch(host)
        if found is None:
            return problem(MALFORMED, f"The Host header {host[:100]!r} is no host, or no host and port.").problem
        if scope["path"] in self._probes and scope["method"] in _READS:
            return None
        if sender.way == "unnamed":
            detail = "A proxy names the client of each request by X-Forwarded-For and X-Forwarded-Proto, or Forwarded."
            return problem(MALFORMED, detail).problem
        public = host in self._hosts
        if not public and not (sender.local and is_loopback(found[1].removesuffix("."))):
            return plain(421, f"This coordinator answers to {self._public or 'localhost'} only, not to {host[:100]!r}.")
        if sender.way == "forwarded" and self._public is not None and scope["scheme"] != self._public.scheme:
            return plain(403, f"Requests come by {self._public.scheme}, and the proxy took this one otherwise.")
        if scope["method"] not in _READS and self._foreign(headers, None if public else host):
            return plain(403, "Writes from pages of another origin are refused.")
        if not (scope["path"] + "/").startswith(self.prefix + "/"):
            detail = f"All paths begin with {self.prefix}: a proxy passes them on unchanged."
            return plain(404, detail)
        return None

    def own_page(self, scope: Scope, headers: Headers) -> bool:
        """Whether nothing says that another page than one of this service makes the request."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        return site in ("same-origin", "none") and (
            origin is None or origin.lower() in self._own_origins(scope, headers)
        )

    def proven_page(self, scope: Scope, headers: Headers) -> bool:
        """Whether the browser says that a page of this service makes the request."""
        said = "origin" in headers or "sec-fetch-site" in headers
        return said and self.own_page(scope, headers)

    def _own_origins(self, scope: Scope, headers: Headers) -> frozenset[str]:
        host = headers.get("host", "").lower()
        return self._origins if host in self._hosts else frozenset({f"{scope['scheme']}://{host}"})

    def here(self, scope: Scope) -> str:
        """The URL of this service: the public one, or where there is none the name by which the sender knows this
        machine."""
        if self._public is not None:
            return str(self._public)
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return f"{scope['scheme']}://{host.decode('latin-1').lower()}"

    def target_uri(self, scope: Scope) -> str:
        """The URI that the sender of a request has signed, as RFC 9421 names it: the public URL with the path and the
        query as they were sent. Without a public URL it is that of this machine, by the name that the sender used."""
        origin = self.here(scope) if self._public is None else self._public.origin
        path: bytes = scope["raw_path"].partition(b"?")[0]
        query: bytes = scope["query_string"]
        return origin + (path + b"?" + query if query else path).decode("latin-1")

    def _foreign(self, headers: Headers, local_host: str | None) -> bool:
        """Whether a page of another origin sends the request."""
        if headers.get("sec-fetch-site") == "cross-site":
            return True
        origin = headers.get("origin")
        if origin is None or origin.lower() in self._origins:
            return False
        return local_host is None or _site(origin) != local_host


def _site(origin: str) -> str | None:
    """Host and port of an Origin header; None where it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


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
