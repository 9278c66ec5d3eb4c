"""Serves the table of requests in this process: no socket, no signature, no audit; the caller is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, assert_never

from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import problem
from coordinator.requests import TABLE, Body, Direct, Held, NotYet, Request
from coordinator.requests.callers import Caller
from coordinator.runtime.coordinator import Coordinator

LOOK_S = 1.0
"""Longest time between two looks of a request that is held: a message may have expired."""


class InProcess:
    """Requests of one caller to one coordinator. ``stopped`` ends the wait of a held request."""

    def __init__(self, coordinator: Coordinator, caller: Caller, stopped: Callable[[], bool]) -> None:
        self.coordinator = coordinator
        self._caller = caller
        self._stopped = stopped

    def ask(self, method: str, route: Route, message: Message | None = None, /, **path: Any) -> Any:
        """The answer to a request, waited for as long as its ``hold_s`` says. ProblemError where it is refused."""
        entry = TABLE.find(method, route)
        request = Request(entry, self._caller, message, path)
        shape = entry.shape
        match shape:
            case Direct():
                return request.call(shape.call, self.coordinator)
            case Held():
                return self._held(request, shape)
            case Body():
                raise TypeError(f"{entry.name} has a body: use send")
            case _:
                assert_never(shape)

    def send(self, method: str, route: Route, parts: Iterable[bytes | memoryview], digest: str, /, **path: Any) -> Any:
        """The answer to a request with a body of this digest, in parts. ProblemError where it is refused."""
        entry = TABLE.find(method, route)
        shape = entry.shape
        if not isinstance(shape, Body):
            raise TypeError(f"{entry.name} has no body")
        request = Request(entry, self._caller, None, path)
        limit = request.call(shape.limit, self.coordinator)
        with self.coordinator.core.blobs.spool(limit) as spool:
            for part in parts:
                spool.write(part)
            if spool.digest != digest:
                raise problem("digest-mismatch", f"the body has the digest {spool.digest[:12]}, not {digest[:12]}")
            return request.call(shape.stored, self.coordinator, spool)

    def _held(self, request: Request, shape: Held) -> Any:
        signals = self.coordinator.core.signals
        called: Mapping[str, Any] = request.path
        key = (
            shape.key(request.caller, request.message, **called)
            if called
            else shape.key(request.caller, request.message)
        )
        until = time.monotonic() + request.message.hold_s
        seen = signals.version(key)
        found = request.call(shape.first, self.coordinator)
        while found is None or isinstance(found, NotYet):
            left = until - time.monotonic()
            if left <= 0 or self._stopped():
                return request.call(shape.expired, self.coordinator)
            signals.wait(key, seen, min(LOOK_S, left))
            seen = signals.version(key)
            found = request.call(shape.again, self.coordinator)
        return found
