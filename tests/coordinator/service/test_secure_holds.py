"""Held requests of a secure round: they are woken when there is an answer, and cost nothing while there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from client_sdk.protocol.secure import Octets, SecureWait, Stage
from client_sdk.secagg.roster import Roster
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.requests.secure import SECURE, SECURE_ANSWER
from coordinator.secure.requests import SecureRequests
from coordinator.service.core import Service
from coordinator.service.routes import Holds
from coordinator.settings import Settings
from tests.coordinator.served import RUN, Served
from tests.coordinator.service.test_holds import Connection, arrived

HOLD = SecureWait(hold_s=50)
MANY = 300


@pytest.fixture
def world() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def service_of(world: Served) -> Service:
    """A service that reads nothing again by itself within a test."""
    return Service(world.coordinator, Settings(reread_s=60, threads=4), world.coordinator.core.signals)


def answered(holds: Holds, world: Served, number: int, stage: Stage) -> Connection:
    path = {"run": RUN, "round": 1, "attempt": 0, "stage": stage}
    return Connection(holds, arrived(world, number), SECURE_ANSWER, HOLD, **path)


def run(scenario: Coroutine[Any, Any, None], timeout_s: float = 30) -> None:
    asyncio.run(asyncio.wait_for(scenario, timeout_s))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def one_step(world: Served, number: int) -> None:
    world.turn(world.phones[number])
    world.settle()


def test_a_held_answer_is_woken_by_what_the_engine_says(world: Served) -> None:
    """No hold is read again by time here, so without a hint it would be answered by nothing but its end."""
    world.secure_run()
    world.begin()
    for number in range(6):
        one_step(world, number)
    for number in range(5):
        one_step(world, number)

    async def scenario() -> None:
        service = service_of(world)
        holds = Holds(service)
        waiting = [answered(holds, world, number, "advertise") for number in range(5)]
        await until(lambda: service.signals.waiting == 5)
        assert not any(one.answer.done() for one in waiting)
        await asyncio.to_thread(one_step, world, 5)
        found = [await one.answer for one in waiting]
        assert all(isinstance(one, Octets) and len(Roster.parse(one.content)) == 6 for one in found)
        service.close()

    run(scenario())


def test_a_held_request_for_the_header_is_woken_when_it_is_announced(world: Served) -> None:
    world.secure_run()
    world.check_in(*range(5))
    world.coordinator.devices.check_in(world.rows[5], world.message())()
    world.coordinator.tick()
    while (task := world.coordinator.core.take_task()) is not None and not isinstance(task[1], fx.Announce):
        world.coordinator.perform(task)
    assert task is not None
    assert (world.state.phase, world.state.secure.header) == ("collecting", "")

    async def scenario() -> None:
        service = service_of(world)
        waiting = Connection(Holds(service), arrived(world, 2), SECURE, HOLD, run=RUN, round=1)
        await until(lambda: service.signals.waiting == 1)
        await asyncio.to_thread(world.coordinator.perform, task)
        found = await waiting.answer
        assert isinstance(found, Octets)
        assert found.content.hex() == world.state.secure.header
        service.close()

    run(scenario())


@pytest.mark.slow
def test_three_hundred_held_requests_cost_nothing_until_there_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others send in the same exchange wakes nobody; the roster wakes each device once."""
    world = Served(MANY)
    world.secure_run(cohort={"select": MANY, "goal": 4, "quorum": 0.5, "select_s": 10, "collect_s": 60})
    world.begin()
    asked: list[str] = []
    answer = SecureRequests.answer

    def counted(self: SecureRequests, device: str, *others: Any) -> bytes | None:
        asked.append(device)
        return answer(self, device, *others)

    monkeypatch.setattr(SecureRequests, "answer", counted)
    assert len(world.state.current.members) == MANY

    async def scenario() -> None:
        service = service_of(world)
        holds = Holds(service)
        waiting = [answered(holds, world, number, "advertise") for number in range(MANY)]
        await until(lambda: service.signals.waiting == MANY)
        before, reads = len(asked), count_reads(world, monkeypatch)
        await asyncio.sleep(0.3)
        assert (len(asked), reads()) == (before, 0), "nothing happens"
        for number in range(3):
            await asyncio.to_thread(one_step, world, number)
            await asyncio.to_thread(one_step, world, number)
        assert len(world.state.secure.advertised) == 3
        await asyncio.sleep(0.3)
        assert len(asked) == before, "others have advertised"
        await asyncio.to_thread(one_step, world, 3)
        await asyncio.to_thread(one_step, world, 3)
        assert len(world.state.secure.group_of) == 4
        found = await asyncio.gather(*(one.answer for one in waiting), return_exceptions=True)
        assert sum(isinstance(one, Octets) for one in found) == 4
        assert len(asked) - before <= 2 * MANY, "once when the phase ends, once when the roster is there"
        service.close()

    run(scenario(), 60)
    world.close()


def test_a_held_request_is_read_again_by_time_only_where_there_may_be_an_answer(
    world: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica moves it: the thread that keeps time sees that, and then each held request does."""
    world.secure_run()
    world.begin()
    one_step(world, 0)
    one_step(world, 0)
    replica = world.replica()
    asked: list[str] = []
    answer = SecureRequests.answer

    def counted(self: SecureRequests, device: str, *others: Any) -> bytes | None:
        asked.append(device)
        return answer(self, device, *others)

    monkeypatch.setattr(SecureRequests, "answer", counted)

    async def scenario() -> None:
        service = Service(world.coordinator, Settings(reread_s=0.02, threads=4), world.coordinator.core.signals)
        waiting = answered(Holds(service), world, 0, "advertise")
        await until(lambda: service.signals.waiting == 1)
        before = len(asked)
        await asyncio.sleep(0.3)
        assert len(asked) == before
        await asyncio.to_thread(replica.devices.withdraw, world.rows[5].device, RUN, 1, 0, "its battery is low")
        await asyncio.to_thread(world.coordinator.tick)
        await asyncio.sleep(0.3)
        assert len(asked) == before, "the run's log is longer, and nobody has an answer by that"
        faulted = ev.Faulted(at=world.clock.at, round=1, attempt=0, device=world.rows[4].device, reason="it lied")
        await asyncio.to_thread(replica.core.log(RUN).submit, lambda tx, state, at: faulted)
        await asyncio.to_thread(world.coordinator.tick)
        await until(lambda: len(asked) > before)
        await waiting.close()
        service.close()

    run(scenario())


def count_reads(world: Served, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often the store was asked for a run's head or its events since now."""
    calls: list[str] = []
    for name in ("head", "events"):
        read = getattr(world.store, name)

        def counted(*given: Any, _read: Any = read, _name: str = name) -> Any:
            calls.append(_name)
            return _read(*given)

        monkeypatch.setattr(world.store, name, counted)
    return lambda: len(calls)
