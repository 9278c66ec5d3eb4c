"""Who may connect and send: the limits by address and by caller of one process.

``TokenBuckets`` are by key: a rate for long, and a burst after a pause. A bucket holds ``burst`` tokens when it is
full, and gains ``rate`` tokens a second. A request takes one. Where there is none it is refused, and takes one all the
same, down to ``-burst``: who goes on in spite of refusals waits longer, and is *spent* at the bottom. Only buckets that
are not full are remembered, and of these the ``most`` last used ones.

An address is known before anything else of a request, so its limit comes first and costs least. Behind a proxy the
address is the one that the proxy names. A refusal says after how many seconds to come back, drawn from an interval, so
that those who were refused together do not return together.

``InFlight`` counts what is under way at the same time, of one key and of all: connections, requests, bodies, bytes.
Keys without anything under way are forgotten, so there are never more keys than connections.
"""

from __future__ import annotations

import ipaddress
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import SystemRandom
from typing import Literal

from client_sdk.http.urls import is_loopback
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.network_settings import IpNetwork, NetworkSettings

# ------------------------------------------------------------ forwarded
# Whose request a proxy passes on: X-Forwarded-For and X-Forwarded-Proto, or Forwarded (RFC 7239), read strictly.
#
# A proxy appends the address that it saw. So the list is read from its end: what trusted proxies wrote is skipped, and
# the first address of somebody else is the client's. What stands before it was written by the client, and is not read.


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


# ------------------------------------------------------------ admission


MOST_KEYS = 65_536
"""Keys that are remembered: some 10 MB. Who has more addresses than this has a burst for each anyway."""


class TokenBuckets:
    """Buckets of one rate. ``clock`` gives seconds. Safe to use from threads."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float], most: int = MOST_KEYS) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._most = most
        self._found: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Key -> tokens, and when they were counted."""
        self._lock = threading.Lock()

    def take(self, key: str, tokens: float = 1.0) -> float:
        """Takes the tokens. Returns 0, or the seconds until there would have been enough where there are not."""
        with self._lock:
            left = self._take(key, tokens)
        return 0.0 if left >= 0 else -left / self._rate

    def empty(self, key: str) -> bool:
        """Whether the next token would be refused."""
        with self._lock:
            return self._level(key) < 1

    def spent(self, key: str) -> bool:
        """Whether the key has gone on in spite of as many refusals as a burst has requests."""
        with self._lock:
            return self._level(key) <= -self._burst + 1

    def __len__(self) -> int:
        return len(self._found)

    def _take(self, key: str, tokens: float) -> float:
        left = max(self._level(key) - tokens, -self._burst)
        self._found[key] = (left, self._clock())
        self._found.move_to_end(key)
        if len(self._found) > self._most:
            self._found.popitem(last=False)
        return left

    def _level(self, key: str) -> float:
        found = self._found.get(key)
        if found is None:
            return self._burst
        tokens, at = found
        level = min(tokens + (self._clock() - at) * self._rate, self._burst)
        if level >= self._burst:
            del self._found[key]
        return level


class Holding:
    """What one request holds."""

    def __init__(self, flight: InFlight, key: str) -> None:
        self._flight = flight
        self._key = key
        self.amount = 0

    def add(self, amount: int) -> None:
        """Holds more. ProblemError where the key, or all together, would hold too much."""
        self._flight.reserve(self._key, amount)
        self.amount += amount


class InFlight:
    """Amounts in flight. ``each`` limits one key and ``total`` all; a key that holds nothing yet is always given what
    it asks for, so that no single body is too large. ``refused(of_all)`` makes the error. For the event loop only."""

    def __init__(
        self, refused: Callable[[bool], ProblemError], *, each: float = math.inf, total: float = math.inf
    ) -> None:
        self._refused = refused
        self._each = each
        self._total = total
        self._held: dict[str, int] = {}
        self.amount = 0
        """Of all keys."""

    def reserve(self, key: str, amount: int) -> None:
        """Adds to what the key holds. ProblemError, with nothing added, where that would be too much."""
        held = self._held.get(key, 0)
        if held and held + amount > self._each:
            raise self._refused(False)
        if self.amount and self.amount + amount > self._total:
            raise self._refused(True)
        self._held[key] = held + amount
        self.amount += amount

    def release(self, key: str, amount: int) -> None:
        self.amount -= amount
        left = self._held.get(key, 0) - amount
        if left > 0:
            self._held[key] = left
        else:
            self._held.pop(key, None)

    @contextmanager
    def held(self, key: str, amount: int = 0) -> Iterator[Holding]:
        """Holds the amount, and what is added, until the block ends."""
        held = Holding(self, key)
        try:
            if amount:
                held.add(amount)
            yield held
        finally:
            if held.amount:
                self.release(key, held.amount)

    def __len__(self) -> int:
        return len(self._held)


COSTLY = frozenset({400, 401, 403, 408, 413, 415, 421, 431})
"""Statuses of refusals for credentials or form: no client of ours gets many of them."""
SMALL = 16 * 1024
"""Bytes of a JSON body that are not counted: every message of a device is smaller, and connections bound their sum."""


_chance = SystemRandom().random


def spread(seconds: float, chance: Callable[[], float] = _chance) -> float:
    """Seconds after which to come back: drawn from one to two times ``seconds``, and at least one second."""
    return max(seconds, 1.0) * (1.0 + chance())


@dataclass(frozen=True, slots=True)
class Sender:
    """Where one request comes from."""

    address: str
    """The client's address, as text."""
    key: str
    """The name under which it is counted; empty: it is not counted."""
    scheme: Literal["http", "https"] | None = None
    """What the proxy says; None: the connection's own."""
    way: Literal["direct", "forwarded", "unnamed"] = "direct"
    """*direct*: on a connection of its own. *forwarded*: a proxy names the client. *unnamed*: from a proxy's address,
    without its headers: a health check of the proxy, or a proxy that is not set up."""

    @property
    def local(self) -> bool:
        """Whether a program on this machine sent it."""
        return self.way == "direct" and is_loopback(self.address)


LOCAL = Sender("127.0.0.1", "")


class AdmittedConnection:
    """One connection. ``leave`` when it ends."""

    def __init__(self, admission: Admission, address: IpAddress, key: str, proxy: bool) -> None:
        self._admission = admission
        self._own = Sender(str(address), key, way="unnamed" if proxy else "direct")
        self.proxy = proxy
        """Whether the peer is a trusted proxy."""
        self._open = True

    def sender(self, headers: Headers) -> Sender:
        """Whose request this is. ProblemError *malformed-request* where a proxy's headers cannot be read."""
        return self._admission.forwarded_sender(headers, self._own) if self.proxy else self._own

    def refused(self) -> None:
        """Counts a refusal that was no answer to a request: a broken handshake, half a head."""
        self._admission.charge(self._own.key)

    def leave(self) -> None:
        if self._open:
            self._open = False
            self._admission.left(self._own.key)


class Admission:
    """The limits by address and by caller. ``most_connections``: of all together. ``clock`` gives seconds."""

    def __init__(
        self,
        settings: NetworkSettings,
        most_connections: int,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = _chance,
    ) -> None:
        self._proxies = settings.behind_proxy
        self._tls = settings.tls
        self._unlimited = settings.unlimited
        self._chance = chance
        self._addresses = TokenBuckets(settings.requests_per_address, settings.burst_per_address, clock)
        self._refusals = TokenBuckets(settings.refusals_per_address, settings.refusal_burst_per_address, clock)
        self._callers = TokenBuckets(settings.requests_per_caller, settings.burst_per_caller, clock)
        each = max(1, min(settings.connections_per_address, most_connections // 8))
        self._connections = InFlight(self._too_many_open, each=each)
        self.under_way = InFlight(self._too_many_open, each=each)
        """Requests that a proxy passed on, by address: their connections are the proxy's."""
        memory = settings.message_memory_bytes
        self.messages = InFlight(self._no_memory, each=memory // 16, total=memory)
        """Bytes of JSON bodies beyond SMALL, by address."""

    # ------------------------------------------------------------ connections

    def admit(self, peer: str) -> AdmittedConnection | None:
        """A new connection of this address; None where it must be closed: the address has too many, goes on after many
        refusals, or would send plain text over a network. Connections that it has already go on."""
        address = parse_address(peer)
        proxy = within(address, self._proxies)
        if self._proxies and not proxy and not self._tls and not address.is_loopback:
            return None
        key = "" if proxy or within(address, self._unlimited) else counted_as(address)
        if key:
            if self._refusals.empty(key) or self._addresses.spent(key):
                return None
            try:
                self._connections.reserve(key, 1)
            except ProblemError:
                return None
        return AdmittedConnection(self, address, key, proxy)

    def left(self, key: str) -> None:
        if key:
            self._connections.release(key, 1)

    # ------------------------------------------------------------ requests

    def forwarded_sender(self, headers: Headers, own: Sender) -> Sender:
        """The sender that a proxy names, or the proxy itself where it names none."""
        try:
            found = forwarded(headers, self._proxies)
        except NotForwarded as error:
            raise problem("malformed-request", str(error)) from None
        if found is None:
            return own
        key = "" if within(found.address, self._unlimited) else counted_as(found.address)
        return Sender(str(found.address), key, found.scheme, "forwarded")

    def request(self, sender: Sender) -> None:
        """Counts a request of an address. ProblemError *too-many-requests*."""
        if not sender.key:
            return
        if sender.way == "forwarded" and self._refusals.empty(sender.key):
            raise self._too_many("This address", 5)
        wait_s = self._addresses.take(sender.key)
        if wait_s:
            raise self._too_many("This address", wait_s)

    def charge(self, key: str) -> bool:
        """Counts a refusal for credentials or form. Returns whether the address has had too many: the connection is
        then closed, and there is no new one."""
        return bool(key) and self._refusals.take(key) > 0

    def caller(self, name: str) -> None:
        """Counts a request of a caller whose credentials are good. ProblemError *too-many-requests*."""
        wait_s = self._callers.take(name)
        if wait_s:
            raise self._too_many(f"The {name.partition(':')[0]}", wait_s)

    # ------------------------------------------------------------ refusals

    def _too_many(self, who: str, wait_s: float) -> ProblemError:
        return problem(
            "too-many-requests", f"{who} sends too many requests.", retry_after_s=spread(wait_s, self._chance)
        )

    def _too_many_open(self, of_all: bool) -> ProblemError:
        return problem(
            "too-many-requests",
            "This address has too many requests under way at the same time.",
            retry_after_s=spread(5, self._chance),
        )

    def _no_memory(self, of_all: bool) -> ProblemError:
        retry_after_s = spread(5, self._chance)
        if of_all:
            return problem("busy", "Too many long messages are being received.", retry_after_s=retry_after_s)
        detail = "This address is sending too many long messages at the same time."
        return problem("too-many-requests", detail, retry_after_s=retry_after_s)
