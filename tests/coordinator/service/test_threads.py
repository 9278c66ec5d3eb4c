"""The threads of a service: who waits gets the result or the error, and the event loop is woken once for many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from coordinator.service.core import Threads


def test_results_and_errors_reach_who_waits_for_them() -> None:
    async def scenario() -> None:
        threads = Threads(2, "t")
        assert await asyncio.gather(*(threads.run(partial(pow, n, 2)) for n in range(20))) == [n * n for n in range(20)]
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 / 0)
        await asyncio.to_thread(threads.close)

    asyncio.run(scenario())


def test_a_call_that_raises_what_no_future_takes_keeps_nobody_waiting() -> None:
    async def scenario() -> None:
        threads = Threads(1, "t")
        empty: Any = iter(())
        found = [threads.run(partial(next, empty)), threads.run(lambda: 1)]
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(found[0], 5)
        assert await asyncio.wait_for(found[1], 5) == 1
        await asyncio.to_thread(threads.close)

    asyncio.run(scenario())


def test_no_more_threads_than_it_may_and_no_more_than_it_needs() -> None:
    names: set[str] = set()
    together = threading.Barrier(3, timeout=10)

    def meet() -> None:
        together.wait()
        names.add(threading.current_thread().name)

    async def scenario() -> None:
        threads = Threads(3, "t")
        for _ in range(5):
            await threads.run(lambda: names.add(threading.current_thread().name))
        assert names == {"t_0"}, "a free thread takes the next call"
        await asyncio.gather(*(threads.run(meet) for _ in range(6)))
        assert names == {"t_0", "t_1", "t_2"}
        await asyncio.to_thread(threads.close)

    asyncio.run(scenario())


def test_what_is_done_while_the_event_loop_is_busy_wakes_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        threads, woken = Threads(1, "t"), list[Callable[..., Any]]()
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counted(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            woken.append(call)
            return wake(call, *args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        last = threading.Event()
        futures = [threads.run(int) for _ in range(9)] + [threads.run(last.set)]
        assert last.wait(10)
        await asyncio.gather(*futures)
        assert len(woken) <= 2, "the last may be done before it is told"
        await asyncio.to_thread(threads.close)

    asyncio.run(scenario())


def test_a_call_that_nobody_waits_for_any_more_is_not_made() -> None:
    async def scenario() -> None:
        threads, begun, go_on, made = Threads(1, "t"), threading.Event(), threading.Event(), list[int]()

        def busy() -> None:
            begun.set()
            go_on.wait(10)

        first = threads.run(busy)
        second = threads.run(lambda: made.append(1))
        await asyncio.to_thread(begun.wait)
        second.cancel()
        go_on.set()
        await first
        await threads.run(int)
        assert made == []
        await asyncio.to_thread(threads.close)

    asyncio.run(scenario())
