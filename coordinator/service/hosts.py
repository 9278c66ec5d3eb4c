"""Which Host and Origin headers a request may have, and under which path the routes are.

Every web page in a browser can reach a service on loopback, and a page of any name can be made to point to it: a Host
that is neither the public one nor, on this machine, a loopback name means that a name was rebound. A write from another
origin means that a page tries to act as the operator. Both are refused, and so is a request of which two readers could
see two hosts. Probes say nothing but a status, and are answered under any name. Names of hosts have no case, and may
end with a dot (RFC 9110, section 4.2.3; RFC 1034, section 3.1).
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from client_sdk.http.urls import is_loopback
from client_sdk.protocol.problems import Problem, problem
from coordinator.public_url import PublicUrl
from coordinator.service.errors import plain
from coordinator.service.limits.admission import Sender

MALFORMED = "malformed-request"
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:\[\]\s]*)(?::[0-9]{0,5})?")
"""A Host header: its name, and its port (RFC 9110, section 7.2)."""


class Hosts:
    """The names of one service. ``probes`` are the routes, without the prefix, that are read by whoever watches the
    process, a proxy, a kubelet or a load balancer, under whatever name it knows it by."""

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
