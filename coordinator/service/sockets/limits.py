"""What one connection may cost before a route decides anything: bytes, counts and seconds."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Self

from coordinator.settings import KIB, Settings


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of each connection. Those that an operator may change come from ``Settings``."""

    head_bytes: int
    """Longest request line and headers together, as sent."""
    head_s: float
    """Seconds within which a head must be complete: from the connection's start, or from the head's first byte."""
    send_idle_s: float
    """Seconds for which a receiver may accept no byte of an answer."""
    keep_alive_s: int = 75
    """Seconds for which idle connections stay open: a device trains between two requests, and a new connection has a
    cost."""
    headers: int = 100
    """Most header fields of one request. Our clients send some ten, a browser some twenty."""
    pipelined: int = 16
    """Most requests that wait on one connection while an earlier one is answered. Our clients send none ahead."""
    framing_bytes: int = 64 * KIB
    """Bytes of a body that are no content: sizes and extensions of chunks, trailers. Each byte of content allows
    ``framing_ratio`` more."""
    framing_ratio: int = 16
    """A chunk of one byte has five bytes of framing."""
    linger_s: float = 5.0
    """Seconds for which the rest of a refused request is read and dropped. Closing at once would reset the connection,
    and a peer that is still sending could lose the answer."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Returns the limits under these settings."""
        return cls(head_bytes=settings.max_head_bytes, head_s=settings.head_s, send_idle_s=settings.send_idle_s)


def most_connections(settings: Settings) -> int:
    """Returns how many connections leave enough file handles for the disk.

    Every upload and every thread may have files open (a spool; a database with its log; a checkpoint). At least half of
    the handles are for connections.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 64 + settings.uploads + 4 * settings.threads
    return max(soft - files, soft // 2)
