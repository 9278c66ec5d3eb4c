"""Addresses as limits count them: one IPv4 address, or one /64 of IPv6, which is what a single site is given."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from coordinator.network_settings import IpNetwork

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_SITE = 64


def parse_address(text: str) -> IpAddress:
    """Returns the address; an IPv4 address that is written as IPv6 is an IPv4 address. ValueError where it is none."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped if mapped is not None else address


def counted_as(address: IpAddress) -> str:
    """Returns the name under which the address is counted: ``192.0.2.7``, ``2001:db8:1:2::/64``."""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.IPv6Network((int(address) >> _SITE << _SITE, _SITE)))


def within(address: IpAddress, networks: Iterable[IpNetwork]) -> bool:
    """Whether one of the networks has the address."""
    return any(address in network for network in networks if network.version == address.version)
