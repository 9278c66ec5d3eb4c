"""The address under which peers know a coordinator: scheme, host, port and path prefix.

The prefix is never stripped: a service that accepts both forms cannot tell ``/v1/runs`` below the prefix ``/v1`` from
the bare route, and signed requests name the URL that the device used. Forwarded headers are required from a named
proxy and count from nobody else: without them all clients would be one address, on loopback an unlimited one. There is
no redirect from http to https, which would hide that the first request sent its token as plain text. Certificates are
looked at by time and size when a connection arrives: a signal or a route to reload them would have to be sent by
somebody.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self, cast
from urllib.parse import urlsplit

from client_sdk.http.urls import is_loopback

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_PORTS = {"http": 80, "https": 443}

Scheme = Literal["http", "https"]


@dataclass(frozen=True, slots=True)
class PublicUrl:
    """One public URL, as it is compared: lower case, without the default port of its scheme."""

    scheme: Scheme
    host: str
    port: int
    prefix: str
    """The path in front of every route: empty, or begins with a slash and ends with none."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the parts. ValueError, in a sentence, where the text is no URL of scheme, host, port and path."""
        try:
            parts = urlsplit(text)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            parts, host, port = urlsplit(""), "", None
        prefix = parts.path.rstrip("/")
        odd = parts.username is not None or "?" in text or "#" in text or not _PREFIX.fullmatch(prefix)
        if parts.scheme not in _PORTS or not host or odd or "." in prefix.split("/") or ".." in prefix.split("/"):
            raise ValueError(
                f"{text!r} is no public URL: give scheme, host, and where needed port and path, "
                "such as https://fl.example.org/quorate"
            )
        scheme = cast("Scheme", parts.scheme)
        return cls(scheme, host.removesuffix("."), port if port is not None else _PORTS[scheme], prefix)

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def hosts(self) -> frozenset[str]:
        """The values of a Host header that name this URL: without the port too, where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        named = {f"{host}:{self.port}", f"{host}.:{self.port}"}
        return frozenset(named | {host, f"{host}."} if self.port == _PORTS[self.scheme] else named)

    @property
    def origins(self) -> frozenset[str]:
        """The values of an Origin header of this URL's own pages."""
        return frozenset(f"{self.scheme}://{host}" for host in self.hosts)

    @property
    def origin(self) -> str:
        """The URL without its path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    def __str__(self) -> str:
        return self.origin + self.prefix
