"""Which URLs a client may send credentials to, and whose answers it may believe: https anywhere, http on this machine
only.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether ``host`` (a name or an address, without port) is a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_url(coordinator: str) -> str:
    """The URL without a slash at its end. ValueError, in a sentence, where it is none, has more than a scheme, a host,
    a port and a path, or would send tokens and keys over a network as plain text."""
    url, look = coordinator.rstrip("/"), "it looks like http://127.0.0.1:8470 or https://fl.example.org"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"{coordinator!r} is not a coordinator's URL; {look}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"{coordinator!r} is not a coordinator's URL; {look}")
    if parts.username is not None or parts.query or parts.fragment or "?" in url or "#" in url:
        raise ValueError(f"A coordinator's URL has a scheme, a host, a port and a path, and nothing else; {look}")
    if parts.scheme == "http" and not is_loopback(host):
        raise ValueError(
            f"{url} would send tokens and keys over the network as plain text. Beyond this machine a coordinator is "
            "reached by https only: use its https URL, or an SSH tunnel to its machine"
        )
    return url


def require_https(url: str) -> str:
    """The address, of an issuer for one. ValueError where it is neither https, nor http on this machine: somebody on
    the way could change what it answers."""
    parts = urlsplit(url)
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))):
        raise ValueError(f"{url[:200]!r} is no https address: others could change the issuer's keys on their way")
    return url
