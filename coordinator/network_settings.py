"""Where a server process listens, how peers reach it, and what one address or one caller may use of it.

A server on loopback needs none of this. Beyond loopback there are two ways, and a mixture that could be read in two
ways is refused with one sentence:

::

    --tls-cert, --tls-key, --public-url https://...       this process ends TLS
    --behind-proxy CIDR,   --public-url https://...       a proxy ends TLS; only from there do forwarded headers count

The prefix of a public URL is never stripped: a service that accepts both forms cannot tell ``/v1/runs`` below the
prefix ``/v1`` from the bare route, and signed requests name the URL that the device used. Forwarded headers are
required from a named proxy and count from nobody else: without them all clients would be one address, on loopback an
unlimited one. There is no redirect from http to https, which would hide that the first request sent its token as plain
text. Certificates are looked at by time and size when a connection arrives: a signal or a route to reload them would
have to be sent by somebody.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode

from client_sdk.http.urls import is_loopback

MIB = 1024 * 1024

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Networks = Annotated[tuple[IpNetwork, ...], NoDecode]


class NetworkSettings(BaseSettings):
    """Settings of a listening process: frozen, validated, each with a working default. ValidationError."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback it needs TLS here or at a proxy, and a public URL."""
    port: int = Field(default=8470, ge=0, le=65_535)
    """TCP port. 0: the system chooses a free one, which ``quorate serve`` prints."""
    public_url: str | None = None
    """The URL under which peers know this server: ``https://fl.example.org/quorate``. Host and Origin headers are
    compared with it, and every URL that is printed or sent begins with it. A proxy passes paths on unchanged. None: the
    loopback address."""
    tls_cert: Path | None = None
    """PEM file of this server's certificate, followed by those between it and the authority. Read again when it
    changes."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key, without a password."""
    behind_proxy: Networks = ()
    """Networks of the proxies that end TLS, such as ``127.0.0.1/32``: X-Forwarded-For, X-Forwarded-Proto and Forwarded
    count from there only, and must be there. ``QUORATE_BEHIND_PROXY=10.0.3.0/24,10.0.4.0/24``."""

    # ------------------------------------------------------------ limits by address and by caller

    requests_per_address: float = Field(default=100.0, gt=0, le=1e6, allow_inf_nan=False)
    """Requests a second that one address may send for long. IPv6 addresses count by their /64. A thousand devices
    behind one address send some 40 a second."""
    burst_per_address: int = Field(default=1000, ge=1, le=10**7)
    """Requests that one address may send at once after a pause."""
    refusals_per_address: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    """Requests a second that may be refused to one address for long, for their credentials or their form. Beyond that
    it gets no new connection."""
    refusal_burst_per_address: int = Field(default=50, ge=1, le=10**6)
    """Refusals at once after a pause: devices that register again after a coordinator has lost its database."""
    connections_per_address: int = Field(default=512, ge=1, le=65_536)
    """Connections that one address may have open, and at most an eighth of all; behind a proxy: requests under way."""
    requests_per_caller: float = Field(default=20.0, gt=0, le=1e6, allow_inf_nan=False)
    """Requests a second that one device, worker or key may send for long. A device sends some five a round."""
    burst_per_caller: int = Field(default=400, ge=1, le=10**7)
    """Requests that one caller may send at once after a pause."""
    message_memory_bytes: int = Field(default=256 * MIB, ge=MIB, le=64 * 1024 * MIB)
    """Memory for parts of JSON bodies longer than 16 KiB that are being received, of all peers; 1/16 of it for one
    address."""
    unlimited: Networks = (ipaddress.IPv4Network("127.0.0.1/32"), ipaddress.IPv6Network("::1/128"))
    """Networks whose addresses are not counted: a fleet of simulated devices has one address."""

    @field_validator("behind_proxy", "unlimited", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """``a, b`` in the environment; a list from the command line."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("behind_proxy", "unlimited")
    @classmethod
    def _not_everybody(cls, value: tuple[IpNetwork, ...]) -> tuple[IpNetwork, ...]:
        four = [network for network in value if isinstance(network, ipaddress.IPv4Network)]
        six = [network for network in value if isinstance(network, ipaddress.IPv6Network)]
        # Networks that lie side by side may be everybody together: 0.0.0.0/1 and 128.0.0.0/1.
        together: list[IpNetwork] = [*ipaddress.collapse_addresses(four), *ipaddress.collapse_addresses(six)]
        for network in together:
            if network.prefixlen == 0:
                raise ValueError(f"{network} is every address: name the networks")
        return value

    @field_validator("public_url")
    @classmethod
    def _normal(cls, value: str | None) -> str | None:
        return None if value is None else str(PublicUrl.parse(value))

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        wrong = _contradiction(self)
        if wrong is not None:
            raise ValueError(wrong)
        return self

    @property
    def tls(self) -> bool:
        """Whether this process ends TLS."""
        return self.tls_cert is not None

    @property
    def on_loopback(self) -> bool:
        """Whether only programs on this machine reach the server, and know it by a name of this machine."""
        known_here = self.public is None or self.public.is_loopback
        return is_loopback(self.host) and not self.behind_proxy and known_here

    @property
    def public(self) -> PublicUrl | None:
        return None if self.public_url is None else PublicUrl.parse(self.public_url)

    @property
    def prefix(self) -> str:
        """The path in front of every route; often empty."""
        public = self.public
        return "" if public is None else public.prefix


def _contradiction(settings: NetworkSettings) -> str | None:
    """Returns why peers could not reach such a server safely, with the fix; None: they can."""
    cert, key, public = settings.tls_cert, settings.tls_key, settings.public
    proxied, beyond = bool(settings.behind_proxy), not is_loopback(settings.host)
    if (cert is None) != (key is None):
        given, missing = ("--tls-cert", "--tls-key") if key is None else ("--tls-key", "--tls-cert")
        return f"{given} is given without {missing}: a certificate and its private key are given together"
    if beyond and cert is None and not proxied:
        return (
            f"{settings.host} is beyond this machine, where API keys and updates need TLS: give --tls-cert and "
            "--tls-key, or --behind-proxy where a proxy ends TLS, or listen on 127.0.0.1"
        )
    if (beyond or proxied) and public is None:
        return "Say by --public-url how peers reach this server, such as https://fl.example.org"
    if public is None:
        return None
    if public.scheme == "http" and (cert is not None or not public.is_loopback):
        end = "--tls-cert ends TLS here" if cert is not None else "it is beyond this machine"
        return f"--public-url {public} is plain http, and {end}: give an https URL"
    if public.scheme == "https" and cert is None and not proxied:
        return f"--public-url {public} is https, and nothing ends TLS: give --tls-cert and --tls-key, or --behind-proxy"
    if beyond and public.is_loopback:
        return f"--public-url {public} is on this machine, and --host {settings.host} is not: name the public address"
    return None


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
