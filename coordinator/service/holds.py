"""Holds a request open until there is an answer, without a thread and without a timer that ticks.

::

    first call --an answer--> answer
       |not yet
       v
    wait for the key --woken, or every reread_s--> call again --an answer--> answer
       |                                                    |None: wait on
       |the hold has expired, or the server stops --> expired: its own answer
       |client gone --> gone: no answer
       |the key is revoked, or its certificate expires --> gone: refused

Where a peer sends a new request while an older one is still held, the newer one is held; the older one is answered as
if its hold had expired. The disconnection of an older one has no effect, on whichever replica the newer one is.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from client_sdk.protocol.problems import ProblemError
from coordinator.requests import Caller, Credentials, Entry, Held, NotYet, Request, Shape
from coordinator.runtime.identities import Arrived, SignedBy
from coordinator.service.core import Service, at_once, until_gone


class _Seen(NamedTuple):
    version: int
    """Of the key's signal."""
    mark: object
    """See ``Held.mark``; None: there is none."""


class Holds:
    """The requests held by this process, the latest of each peer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._latest: dict[tuple[str, str], object] = {}

    async def answer(
        self,
        entry: Entry[Shape],
        shape: Held,
        given: Arrived | str,
        message: Any,
        path: dict[str, Any],
        receive: Receive,
    ) -> Any:
        """Returns the answer to one request as soon as there is one. The signature is checked once, when the request
        has arrived; whether its key is still certified and good, whenever there may be an answer. ClientDisconnect
        where the client disconnects first."""
        service, coordinator = self._service, self._service.coordinator
        hold_s = 0.0 if service.stopping else min(message.hold_s, service.settings.max_hold_s)
        message = message if message.hold_s == hold_s else message.model_copy(update={"hold_s": hold_s})

        def begin() -> tuple[Credentials, float, Caller, _Seen, Any]:
            credentials = entry.credentials(coordinator, given, message)
            caller = service.count(entry.caller(coordinator, credentials, path))
            request = Request(entry, caller, message, path)
            seen = self._seen(request, shape)
            answer = at_once(request.begin(shape.first, coordinator))
            return credentials, self._valid_s(credentials), caller, seen, answer

        credentials, valid_s, caller, seen, answer = await service.work(begin)
        answer = await service.settled(answer)
        named: tuple[Any, ...] = ()
        if isinstance(answer, NotYet):
            named, answer = (answer.hold,), None
        if answer is not None:
            return answer
        request = Request(entry, caller, message, path)
        if hold_s > 0:
            try:
                answer = await self._until(request, shape, credentials, valid_s, seen, hold_s, receive)
            except (ClientDisconnect, ProblemError):
                if shape.gone is not None:
                    await service.work(request.call, shape.gone, coordinator, *named)
                raise
        if answer is None:
            return await service.work(request.call, shape.expired, coordinator)
        return answer

    def _valid_s(self, credentials: Credentials) -> float:
        """How long the certificate of who has signed is still valid, in seconds."""
        return (
            self._service.coordinator.identities.valid_s(credentials) if isinstance(credentials, SignedBy) else math.inf
        )

    def _seen(self, request: Request, shape: Held) -> _Seen:
        """To be read before the answer is looked for."""
        version = self._service.signals.version(shape.key(request.caller, request.message, **request.path))
        mark = None if shape.mark is None else shape.mark(self._service.coordinator, **request.path)
        return _Seen(version, mark)

    async def _until(
        self,
        request: Request,
        shape: Held,
        credentials: Credentials,
        valid_s: float,
        seen: _Seen,
        hold_s: float,
        receive: Receive,
    ) -> Any:
        """Calls ``again`` in a thread whenever the key is woken, and every ``reread_s``, and returns the answer. None
        where the hold has expired or a newer request of this peer is held; ClientDisconnect where the client
        disconnects; ProblemError where the credentials are no longer valid: a certificate's end is waited for.
        """
        service = self._service

        def again() -> tuple[Any, float]:
            request.entry.caller(service.coordinator, credentials, request.path)
            return request.call(shape.again, service.coordinator), self._valid_s(credentials)

        key = shape.key(request.caller, request.message, **request.path)
        peer = (request.entry.route, shape.peer(request.caller, request.message, **request.path))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + hold_s
        gone = loop.create_task(until_gone(receive))
        gone.add_done_callback(lambda _: service.signals.wake(key))
        mine = object()
        if self._latest.get(peer) is not None:
            service.signals.wake(key)
        self._latest[peer] = mine
        service.meters.held.inc()
        try:
            while (left_s := deadline - loop.time()) > 0 and not service.stopping:
                wait_s = min(left_s, valid_s, service.settings.reread_s)
                woken = await service.signals.async_wait(key, seen.version, wait_s)
                if self._latest.get(peer) is not mine:
                    return None
                if gone.done():
                    break
                before, seen = seen, self._seen(request, shape)
                if not woken and seen.mark is not None and seen == before and wait_s < valid_s:
                    valid_s -= wait_s
                    continue
                answer, valid_s = await service.work(again)
                if answer is not None:
                    return answer
            if gone.done():
                raise ClientDisconnect
            return None
        finally:
            gone.cancel()
            service.meters.held.dec()
            if self._latest.get(peer) is mine:
                del self._latest[peer]
