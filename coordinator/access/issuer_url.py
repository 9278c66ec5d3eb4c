"""The rule for addresses of an issuer: nobody on the way may change what they answer."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def require_https(url: str) -> str:
    """The address. ValueError where it is neither https, nor http on this machine."""
    parts = urlsplit(url)
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and _is_here(parts.hostname))):
        raise ValueError(f"{url[:200]!r} is no https address: others could change the issuer's keys on their way")
    return url


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
