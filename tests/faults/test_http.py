"""Schedules over the real ASGI application, on an event loop in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from simulation.virtual.agenda import Agenda
from tests.explorer.faults import Broken
from tests.explorer.http.connection import Connection
from tests.explorer.http.loop import VirtualLoop
from tests.explorer.search import play
from tests.explorer.shape import Shape


def over_http(seed: int) -> Shape:
    return replace(Shape.of(seed), http=True)


def test_one_schedule_of_forty_goes_over_http() -> None:
    assert sum(Shape.of(seed).http for seed in range(4000)) == 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1001, 1031, 1059, 1254])
def test_one_seed_is_one_schedule_over_http_too(seed: int) -> None:
    """In these, tasks stand still, processes die in the middle of requests, and devices lie."""
    traces: list[list[str]] = [[], []]
    for trace in traces:
        _, broken = play(over_http(seed), trace=trace)
        assert broken is None, broken
    assert traces[0] == traces[1]
    assert len(traces[0]) > 20


@pytest.mark.slow
def test_answers_of_all_kinds_travel_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    met: Counter[tuple[str, int]] = Counter()
    call = Connection.call

    async def counted(self: Connection, app: object) -> object:
        answer = await call(self, app)  # type: ignore[arg-type]
        met[self.request.event, self._status] += 1
        return answer

    monkeypatch.setattr(Connection, "call", counted)
    for seed in range(30):
        if Shape.of(seed).devices <= 8 and not Shape.of(seed).secure:  # as drawn, secure schedules go without HTTP
            _, broken = play(over_http(seed))
            assert broken is None, (seed, broken)
    assert {("check-in", 200), ("fetch", 200), ("update", 200), ("update", 409), ("register", 201)} <= met.keys()
    assert met["check-in", 0], "some clients disconnect before they have an answer"


# ------------------------------------------------------------ the loop


class Steps:
    """An agenda that is played to its end."""

    def __init__(self) -> None:
        self.agenda = Agenda(100.0)
        self.busy_until = 0.0
        self.loop = VirtualLoop(self.agenda, lambda: self.agenda.now < self.busy_until, self._in_thread)

    def _in_thread(self, function: object, context: object) -> tuple[object, BaseException | None]:
        try:
            return function(), None  # type: ignore[operator]
        except ValueError as error:
            return None, error

    def play(self) -> None:
        while self.agenda.next_at < float("inf"):
            do, arguments = self.agenda.take()
            do(*arguments)


def test_time_jumps_to_the_next_timer() -> None:
    steps, seen = Steps(), []

    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((seconds, asyncio.get_running_loop().time()))

    for seconds in (30.0, 5.0):
        steps.loop.create_task(sleeper(seconds))
    steps.play()
    assert seen == [(5.0, 105.0), (30.0, 130.0)]


def test_a_timeout_is_of_virtual_time() -> None:
    steps, seen = Steps(), []

    async def waits() -> None:
        try:
            async with asyncio.timeout(7.0):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append(steps.agenda.now)

    steps.loop.create_task(waits())
    steps.play()
    assert seen == [107.0]


def test_a_function_of_a_thread_is_a_step_of_its_own() -> None:
    steps, seen = Steps(), []

    def fails() -> None:
        raise ValueError("no")

    async def works() -> None:
        loop = asyncio.get_running_loop()
        seen.append(await loop.run_in_executor(None, lambda: "done"))
        try:
            await loop.run_in_executor(None, fails)
        except ValueError as error:
            seen.append(str(error))

    steps.loop.create_task(works())
    steps.play()
    assert seen == ["done", "no"]


def test_a_process_that_stands_still_runs_no_callback() -> None:
    steps, seen = Steps(), []

    async def notes() -> None:
        seen.append(steps.agenda.now)

    steps.busy_until = 101.2
    steps.loop.create_task(notes())
    steps.play()
    assert seen == [101.5]


def test_a_loop_that_has_ended_leaves_its_tasks_where_they_are() -> None:
    steps, seen = Steps(), []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
            seen.append("woken")
        finally:
            await asyncio.get_running_loop().run_in_executor(None, lambda: seen.append("cleaned up"))

    steps.loop.create_task(waits())
    steps.play()
    steps.loop.end()
    steps.play()
    assert not seen


def test_a_broken_invariant_in_a_task_ends_the_schedule() -> None:
    steps = Steps()

    async def finds() -> None:
        raise Broken("no-bug", "found in a task")

    steps.loop.create_task(finds())
    with pytest.raises(Broken, match="found in a task"):
        steps.play()
