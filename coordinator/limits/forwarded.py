"""Whose request a proxy passes on: X-Forwarded-For and X-Forwarded-Proto, or Forwarded (RFC 7239), read strictly.

A proxy appends the address that it saw. So the list is read from its end: what trusted proxies wrote is skipped, and
the first address of somebody else is the client's. What stands before it was written by the client, and is not read.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from coordinator.network_settings import IpNetwork

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_SITE = 64


def parse_address(text: str) -> IpAddress:
    """Returns the address; an IPv4 address that is written as IPv6 is an IPv4 address. ValueError where it is none."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped if mapped is not None else address


def counted_as(address: IpAddress) -> str:
    """Returns the name under which limits count the address, one of IPv4, or one /64 of IPv6, which is what a single
    site is given: ``192.0.2.7``, ``2001:db8:1:2::/64``."""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.IPv6Network((int(address) >> _SITE << _SITE, _SITE)))


def within(address: IpAddress, networks: Iterable[IpNetwork]) -> bool:
    """Whether one of the networks has the address."""
    return any(address in network for network in networks if network.version == address.version)


Headers = Sequence[tuple[bytes, bytes]]

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - of the grammar
_PAIR = re.compile(rf'[ \t]*({_TOKEN})=({_TOKEN}|"(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*")[ \t]*(;|,|$)')
_NODE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::[0-9]{1,5})?")


class NotForwarded(Exception):
    """The headers of a proxy cannot be read, or contradict each other. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What a proxy says about a request."""

    address: IpAddress
    scheme: Literal["http", "https"]


def forwarded(headers: Headers, proxies: Iterable[IpNetwork]) -> Forwarded | None:
    """Returns the client of a request that came from a proxy; None: no such header is there. NotForwarded."""
    found: dict[bytes, list[str]] = {}
    for name, value in headers:
        if name in (b"forwarded", b"x-forwarded-for", b"x-forwarded-proto"):
            found.setdefault(name, []).append(value.decode("latin-1"))
    if not found:
        return None
    standard, hops, schemes = (found.get(name, []) for name in (b"forwarded", b"x-forwarded-for", b"x-forwarded-proto"))
    if standard and (hops or schemes):
        both = "The proxy sends Forwarded and X-Forwarded headers: let it send one kind, and remove the other."
        raise NotForwarded(both)
    trusted = tuple(proxies)
    return _standard(", ".join(standard), trusted) if standard else _usual(hops, schemes, trusted)


def _usual(hops: list[str], schemes: list[str], trusted: tuple[IpNetwork, ...]) -> Forwarded:
    if not hops:
        raise NotForwarded("The proxy sends X-Forwarded-Proto without X-Forwarded-For.")
    if len(schemes) != 1 or schemes[0] not in ("http", "https"):
        raise NotForwarded("The proxy must send one X-Forwarded-Proto, which is http or https.")
    address = _client([hop.strip(" \t") for hop in ",".join(hops).split(",")], trusted)
    return Forwarded(address, "https" if schemes[0] == "https" else "http")


def _standard(header: str, trusted: tuple[IpNetwork, ...]) -> Forwarded:
    elements = _elements(header)
    nodes = [element.get("for", "") for element in elements]
    address = _client(nodes, trusted)
    place = len(nodes) - 1
    while place > 0 and within(_address(nodes[place]), trusted):
        place -= 1
    scheme = elements[place].get("proto", "").lower()
    if scheme not in ("http", "https"):
        raise NotForwarded("The proxy's Forwarded header must have proto=http or proto=https.")
    return Forwarded(address, "https" if scheme == "https" else "http")


def _client(nodes: list[str], trusted: tuple[IpNetwork, ...]) -> IpAddress:
    """The last address that is no trusted proxy's; the first one where all are."""
    address = _address(nodes[-1])
    for node in reversed(nodes):
        address = _address(node)
        if not within(address, trusted):
            break
    return address


def _address(node: str) -> IpAddress:
    found = _NODE.fullmatch(node)
    try:
        if found is None:  # an IPv6 address of X-Forwarded-For has no brackets; RFC 7239 has `unknown` and `_names`
            return parse_address(node)
        return parse_address(found[1] or found[2])
    except ValueError:
        raise NotForwarded(f"The proxy's header names {node[:60]!r}, which is no address.") from None


def _elements(header: str) -> list[dict[str, str]]:
    """The elements of a Forwarded header: ``for=192.0.2.43;proto=https, for="[2001:db8::1]"``."""
    elements: list[dict[str, str]] = [{}]
    at, end = 0, ","
    while at < len(header) or end != "":
        pair = _PAIR.match(header, at)
        if pair is None or pair[1].lower() in elements[-1]:
            raise NotForwarded("The proxy's Forwarded header is not of the form of RFC 7239.")
        value = re.sub(r"\\(.)", r"\1", pair[2][1:-1]) if pair[2].startswith('"') else pair[2]
        elements[-1][pair[1].lower()] = value
        at, end = pair.end(), pair[3]
        if end == ",":
            elements.append({})
    return elements
