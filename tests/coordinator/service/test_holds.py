"""Held check-ins at the level of ``Holds``: no sockets, a message *disconnect* when the test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from client_sdk.protocol.devices import CheckIn
from client_sdk.protocol.problems import ProblemError
from client_sdk.protocol.workers import WorkerPoll
from coordinator.requests import Entry, Held, Shape
from coordinator.requests.devices import CHECK_IN
from coordinator.requests.workers import POLL
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.identities import Arrived
from coordinator.service.core import Service
from coordinator.service.routes import Holds
from coordinator.settings import Settings
from coordinator.store.port import StoreError, WaitingRow
from tests.coordinator.certified import signature
from tests.coordinator.world import LEARNER, World

URI = "http://localhost/v1/checkins"


def arrived(world: World, number: int = 0) -> Arrived:
    """A check-in of this device, signed now."""
    one = signature(world.keys[number], at=world.clock.at, uri=URI)
    return Arrived(signature=one, method="POST", uri=URI, at=world.clock.at)


class Connection:
    """One held request, a device's check-in where nothing is said, which ends when the test closes it."""

    def __init__(
        self, holds: Holds, given: Arrived, entry: Entry[Shape] = CHECK_IN, message: Any = None, **path: Any
    ) -> None:
        shape, asked = entry.shape, message or CheckIn(examples=5, learners={LEARNER: "1"}, hold_s=50)
        assert isinstance(shape, Held)
        self._closed = asyncio.Event()
        self.answer = asyncio.create_task(holds.answer(entry, shape, given, asked, path, self._receive))

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

    def waiting() -> int:
        return len(world.store.waiting(world.clock.now()))

    def service_of(coordinator: Coordinator) -> Service:
        return Service(coordinator, Settings(reread_s=60, threads=2), coordinator.core.signals)

    async def held(service: Service) -> None:
        while service.signals.waiting < 1:
            await asyncio.sleep(0.001)

    async def scenario() -> None:
        one, two = service_of(world.coordinator), service_of(world.replica())
        old = Connection(Holds(one), arrived(world))
        await held(one)
        world.clock.at += 0.001
        new = Connection(Holds(two), arrived(world))
        await held(two)
        await old.close()
        assert waiting() == 1, "it waits by its newer connection"
        await new.close()
        assert waiting() == 0
        one.close()
        two.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_check_ins_of_a_moment_share_a_transaction_and_none_is_held_before_it_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(10)
    world.create()
    arrivals = world.coordinator.fleet.arrivals
    write, written = arrivals._commit, list[int]()
    begun, go_on = threading.Event(), threading.Event()

    def slow(rows: Sequence[WaitingRow]) -> Sequence[BaseException | None]:
        written.append(len(rows))
        begun.set()
        assert go_on.wait(20)
        return write(rows)

    monkeypatch.setattr(arrivals, "_commit", slow)

    async def scenario() -> None:
        service = Service(world.coordinator, Settings(reread_s=60, threads=4), world.coordinator.core.signals)
        holds = Holds(service)
        connections = [Connection(holds, arrived(world))]
        await asyncio.to_thread(begun.wait, 20)
        connections += [Connection(holds, arrived(world, number)) for number in range(1, 10)]
        while len(arrivals._queue) < 9:
            await asyncio.sleep(0.001)
        assert service.signals.waiting == 0
        go_on.set()
        while service.signals.waiting < 10:
            await asyncio.sleep(0.001)
        assert written == [1, 9]
        assert len(world.store.waiting(world.clock.now())) == 10
        for connection in connections:
            await connection.close()
        assert world.store.waiting(world.clock.now()) == []
        service.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_check_in_that_is_alone_takes_one_trip_into_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1)
    world.create()

    async def scenario() -> None:
        service = Service(world.coordinator, Settings(reread_s=60, threads=2), world.coordinator.core.signals)
        work, trips = service.work, list[object]()

        async def counted(task: Callable[..., object], *given: object) -> object:
            trips.append(task)
            return await work(task, *given)

        monkeypatch.setattr(service, "work", counted)
        connection = Connection(Holds(service), arrived(world))
        await first_held(service)
        assert len(trips) == 1
        assert len(world.store.waiting(world.clock.now())) == 1
        await connection.close()
        service.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_check_in_that_could_not_be_stored_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1)
    world.create()

    def full(rows: Sequence[WaitingRow]) -> Sequence[BaseException | None]:
        raise StoreError("the disk is full")

    monkeypatch.setattr(world.coordinator.fleet.arrivals, "_commit", full)

    async def scenario() -> None:
        service = Service(world.coordinator, Settings(reread_s=60, threads=2), world.coordinator.core.signals)
        connection = Connection(Holds(service), arrived(world))
        with pytest.raises(StoreError, match="the disk is full"):
            await connection.answer
        assert service.signals.waiting == 0
        service.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


async def first_held(service: Service) -> None:
    while service.signals.waiting < 1:
        await asyncio.sleep(0.001)


def held_until(world: World, happens: Callable[[], object]) -> ProblemError:
    """What a check-in that is held for 50 s is refused with, when this has happened; after a second at most."""

    async def scenario() -> ProblemError:
        service = Service(world.coordinator, Settings(reread_s=60, threads=2), world.coordinator.core.signals)
        connection = Connection(Holds(service), arrived(world))
        await first_held(service)
        await asyncio.to_thread(happens)
        with pytest.raises(ProblemError) as refused:
            await asyncio.wait_for(connection.answer, 10)
        service.close()
        return refused.value

    return asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_held_check_in_ends_when_its_key_is_revoked() -> None:
    world = World(2)
    world.create()

    def revoke() -> None:
        world.coordinator.identities.take_list(world.authority.list(world.clock.at, world.keys[0]))

    assert held_until(world, revoke).kind == "revoked-key"
    assert world.store.waiting(world.clock.now()) == [], "nobody waits for it"


def test_a_held_check_in_ends_when_its_device_leaves() -> None:
    world = World(1)
    world.create()
    assert held_until(world, lambda: world.coordinator.identities.leave(world.rows[0])).kind == "unregistered"


def test_a_held_request_of_a_worker_ends_when_its_key_is_revoked() -> None:
    """At once, and not when it is read again."""
    world = World(0)
    world.worker()
    (key,) = world.worker_keys
    poll = WorkerPoll(instance="i1", learners={LEARNER: "1"}, data=("proxy",), nproc=1, hold_s=50)

    async def scenario() -> None:
        service = Service(world.coordinator, Settings(reread_s=60, threads=2), world.coordinator.core.signals)
        one = signature(key, at=world.clock.at, uri=URI)
        given = Arrived(signature=one, method="POST", uri=URI, at=world.clock.at)
        connection = Connection(Holds(service), given, POLL, poll)
        await first_held(service)
        encoded = world.authority.list(world.clock.at, key)
        await asyncio.to_thread(world.coordinator.identities.take_list, encoded)
        with pytest.raises(ProblemError, match="revoked"):
            await asyncio.wait_for(connection.answer, 10)
        service.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_held_check_in_ends_when_its_certificate_expires() -> None:
    world = World(2)
    world.create()
    key = world.keys[0]
    world.clock.at = world.authority.certificate(key, at=world.clock.at).not_after - 0.2

    def pass_time() -> None:
        world.clock.at += 1

    assert held_until(world, pass_time).kind == "expired-certificate"
    assert world.store.waiting(world.clock.now()) == []


def test_a_held_check_in_goes_on_where_its_certificate_was_renewed_meanwhile() -> None:
    """And its hold does not spin: it waits for the end of the new certificate."""
    world = World(2)
    world.create()
    key, calls = world.keys[0], [0]
    world.clock.at = world.authority.certificate(key, at=world.clock.at).not_after - 0.1
    caller = type(CHECK_IN).caller

    async def scenario() -> None:
        service = Service(world.coordinator, Settings(reread_s=60, threads=2), world.coordinator.core.signals)
        connection = Connection(Holds(service), arrived(world))
        await first_held(service)
        world.coordinator.identities.register_device(world.authority.certificate(key, at=world.clock.at))()
        world.clock.at += 1
        await asyncio.sleep(0.3)
        assert not connection.answer.done()
        await connection.close()
        service.close()

    def counting(*arguments: Any) -> Any:
        calls[0] += 1
        return caller(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(CHECK_IN), "caller", counting)
        asyncio.run(asyncio.wait_for(scenario(), 20))
    assert calls[0] <= 4
