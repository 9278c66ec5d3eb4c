"""How a service stops: what runs is finished, what waits for a thread is cancelled, what comes later too.

Work that runs ends only when the test says so, after what waited has ended: a test that let it end at about the time
of ``close`` would sometimes free its thread for what waits before the queue is emptied, and one that closed on the
event loop and let it end by a timer of that loop would wait for as long as the work lasts by itself.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Any

import pytest

from coordinator.service.app import create_app
from coordinator.service.core import Service
from coordinator.settings import Settings
from tests.coordinator.world import World

PATIENCE_S = 5
"""Only a failing test waits so long."""


class Busy:
    """Work that has its thread until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.free = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        self.free.wait(4 * PATIENCE_S)
        return "finished"


def with_threads(number: int) -> Service:
    world = World(1)
    settings = Settings().model_copy(update={"threads": number})
    return Service(world.coordinator, settings, world.coordinator.core.signals)


async def ended(*tasks: asyncio.Task[Any]) -> list[str]:
    """How tasks ended that shall have ended by now."""
    await asyncio.wait(tasks, timeout=PATIENCE_S)
    return ["cancelled" if task.cancelled() else "done" if task.done() else "waits" for task in tasks]


def test_closing_cancels_what_waits_for_a_thread_and_waits_for_what_has_one() -> None:
    service, busy, ran = with_threads(1), Busy(), list[int]()

    async def scenario() -> None:
        running = asyncio.create_task(service.work(busy))
        waiting = [asyncio.create_task(service.work(ran.append, number)) for number in range(2)]
        await asyncio.to_thread(busy.begun.wait)
        closing = asyncio.create_task(asyncio.to_thread(service.close))
        try:
            assert await ended(*waiting) == ["cancelled", "cancelled"]
            assert not closing.done(), "work runs"
        finally:
            busy.free.set()
        await closing
        assert await running == "finished"
        assert ran == []

    asyncio.run(scenario())


def test_repro_a_closed_service_cancels_later_work_as_it_cancels_what_waited() -> None:
    """A request under way that asks for a thread again was "A bug: cannot schedule new futures after shutdown"."""
    service = with_threads(2)

    async def scenario() -> None:
        service.close()
        with pytest.raises(asyncio.CancelledError):
            await service.work(int)

    asyncio.run(scenario())


def test_repro_an_application_that_stops_leaves_its_event_loop_free_and_waits_behind_no_request() -> None:
    """``close`` was called on the event loop: no answer was sent while a last request ran. The driver was closed
    behind all requests that waited for a thread, which then ran although the process was asked to stop at once."""
    world = World(1)
    app = create_app(world.coordinator, Settings().model_copy(update={"threads": 1}))
    service: Service = app.state.service
    busy, ran = Busy(), list[int]()

    async def scenario() -> None:
        lifespan = AsyncExitStack()
        await lifespan.enter_async_context(app.router.lifespan_context(app))
        running = asyncio.create_task(service.work(busy))
        waiting = asyncio.create_task(service.work(ran.append, 1))
        await asyncio.to_thread(busy.begun.wait)
        stopping = asyncio.create_task(lifespan.aclose())
        try:
            assert await ended(waiting) == ["cancelled"]
            assert not stopping.done(), "work runs"
        finally:
            busy.free.set()
        await stopping
        assert await running == "finished"

    asyncio.run(scenario())
    assert ran == []
