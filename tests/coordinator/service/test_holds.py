"""Held check-ins at the level of ``Holds``: no sockets, a message *disconnect* when the test says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from client_sdk.identity import DeviceKey
from client_sdk.protocol.devices import CheckIn, EnrolRequest, enrolment_bytes
from coordinator.requests import Held
from coordinator.requests.devices import CHECK_IN
from coordinator.runtime.coordinator import Coordinator
from coordinator.service.core import Service
from coordinator.service.holds import Holds
from coordinator.settings import Settings
from tests.coordinator.world import LEARNER, TOKEN, World


class Connection:
    """One held check-in of a device, which ends when the test closes it."""

    def __init__(self, holds: Holds, token: str) -> None:
        shape, message = CHECK_IN.shape, CheckIn(examples=5, learners={LEARNER: "1"}, hold_s=50)
        assert isinstance(shape, Held)
        self._closed = asyncio.Event()
        self.answer = asyncio.create_task(holds.answer(CHECK_IN, shape, token, message, {}, self._receive))

    async def _receive(self) -> dict[str, Any]:
        await self._closed.wait()
        return {"type": "http.disconnect"}

    async def close(self) -> None:
        self._closed.set()
        with pytest.raises(ClientDisconnect):
            await self.answer


def test_repro_a_connection_that_is_found_closed_late_costs_a_reconnected_device_nothing() -> None:
    world = World(1)
    world.create()
    key = DeviceKey(b"k" * 32)
    proof = key.sign(enrolment_bytes(key.public_hex, TOKEN)).hex()
    request = EnrolRequest(public_key=key.public_hex, enrolment_token=TOKEN, proof=proof, examples=9)
    token = world.coordinator.devices.enrol(request).token

    def waiting() -> int:
        return len(world.store.waiting(world.clock.now()))

    def service_of(coordinator: Coordinator) -> Service:
        return Service(coordinator, Settings(reread_s=60, threads=2), coordinator.core.signals)

    async def held(service: Service) -> None:
        while service.signals.waiting < 1:
            await asyncio.sleep(0.001)

    async def scenario() -> None:
        one, two = service_of(world.coordinator), service_of(world.replica())
        old = Connection(Holds(one), token)
        await held(one)
        world.clock.at += 0.001
        new = Connection(Holds(two), token)
        await held(two)
        await old.close()
        assert waiting() == 1, "it waits by its newer connection"
        await new.close()
        assert waiting() == 0
        one.close()
        two.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))
