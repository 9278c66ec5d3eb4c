"""Holds a check-in, or a worker's poll, open until there is work, without a thread and without a timer that ticks.

::

    check_in --Assignment or Wait--> answer
       |None
       v
    wait for device:<id> --woken, or every reread_s--> assignment? --yes--> answer
       |                                                    |no: wait on
       |hold over, or the server stops --> hold_over: Wait
       |client gone --> leave the pool, answer nobody

A device that asks again while an older request of its own is still held gets the newer one served; the older answers
*wait* at once, and its going away does not take the device out of the pool. A worker is held alike, and waits for any
round (``workers``) rather than for its own name. This file knows nothing of rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from client_sdk.protocol.devices import Assignment, CheckIn, Wait
from client_sdk.protocol.workers import Lease, WorkerPoll
from coordinator.service.core import Service, until_gone

if TYPE_CHECKING:
    from coordinator.store.port import DeviceRow, WorkerRow

T = TypeVar("T")


class Polls:
    """The check-ins held by this process, the latest of each device."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._holds = _Holds(service)

    async def check_in(self, token: str, message: CheckIn, receive: Receive) -> Assignment | Wait:
        """The answer to one check-in, as soon as there is one. ClientDisconnect when the client went away instead."""
        service, coordinator = self._service, self._service.coordinator
        hold_s = 0.0 if service.stopping else min(message.hold_s, service.settings.max_hold_s)
        message = message if message.hold_s == hold_s else message.model_copy(update={"hold_s": hold_s})

        def begin() -> tuple[DeviceRow, int, Assignment | Wait | None]:
            device = coordinator.devices.authenticate(token)
            seen = service.signals.version(_key(device.device))
            return device, seen, coordinator.devices.check_in(device, message)

        device, seen, answer = await service.work(begin)
        if answer is None and hold_s > 0:
            name = device.device
            try:
                answer = await self._holds.until(
                    name, _key(name), seen, hold_s, lambda: coordinator.devices.assignment(name), receive
                )
            except ClientDisconnect:
                await service.work(coordinator.devices.leave, name)
                raise
        if answer is None:
            return await service.work(coordinator.devices.hold_over, device.device, message)
        return answer


class WorkerPolls:
    """The workers held by this process, the latest poll of each."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._holds = _Holds(service)

    async def lease(self, token: str, message: WorkerPoll, receive: Receive) -> Lease | Wait:
        """The answer to one poll, as soon as there is one. ClientDisconnect when the worker went away instead."""
        service, coordinator = self._service, self._service.coordinator
        hold_s = 0.0 if service.stopping else min(message.hold_s, service.settings.max_hold_s)

        def begin() -> tuple[WorkerRow, int, Lease | Wait | None]:
            worker = coordinator.workers.authenticate(token)
            seen = service.signals.version("workers")
            return worker, seen, coordinator.workers.poll(worker, message)

        worker, seen, answer = await service.work(begin)
        if answer is None and hold_s > 0:
            answer = await self._holds.until(
                f"{worker.worker} {message.instance}",
                "workers",
                seen,
                hold_s,
                lambda: coordinator.workers.lease(worker, message),
                receive,
            )
        if answer is None:
            return await service.work(coordinator.workers.hold_over, worker, message)
        return answer


class _Holds:
    """Requests held open, the latest of each peer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._latest: dict[str, object] = {}

    async def until(
        self, peer: str, key: str, seen: int, hold_s: float, look: Callable[[], T | None], receive: Receive
    ) -> T | None:
        """What ``look`` finds, asked in a thread whenever ``key`` rings, and now and then. None when the hold is over,
        or a newer request of this peer is held; ClientDisconnect when the peer has gone.
        """
        service = self._service
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
                await service.signals.async_wait(key, seen, min(left_s, service.settings.reread_s))
                if self._latest.get(peer) is not mine:
                    return None
                if gone.done():
                    break
                seen = service.signals.version(key)
                answer = await service.work(look)
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


def _key(device: str) -> str:
    return f"device:{device}"
