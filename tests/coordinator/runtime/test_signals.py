"""Signals: no wake-up is lost, and waiting costs nothing."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from coordinator.runtime.signals import Signals


def test_a_wake_between_reading_and_waiting_is_not_lost() -> None:
    signals = Signals()
    seen = signals.version("run:a")
    signals.wake("run:a")
    assert signals.wait("run:a", seen, 60) is True


def test_a_thread_is_woken_by_its_key_only() -> None:
    signals = Signals()
    seen = signals.version("run:a")
    signals.wake("run:b")
    assert signals.wait("run:a", seen, 0.01) is False
    timer = threading.Timer(0.02, signals.wake, ("run:a",))
    timer.start()
    assert signals.wait("run:a", seen, 60) is True, "also when it was woken before it began to wait"
    timer.join()
    assert signals.waiting == 0


def test_a_task_times_out_and_leaves_nothing_behind() -> None:
    signals = Signals()

    async def scenario() -> None:
        assert await signals.async_wait("device:d1", signals.version("device:d1"), 0.01) is False
        task = asyncio.create_task(signals.async_wait("device:d1", signals.version("device:d1"), 60))
        await asyncio.sleep(0)
        assert signals.waiting == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert signals.waiting == 0


@pytest.mark.slow
def test_ten_thousand_tasks_wait_for_nothing_and_wake_in_one_crossing() -> None:
    signals = Signals()
    keys = [f"device:d{n}" for n in range(10_000)]

    async def scenario() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        crossings = 0
        call_soon_threadsafe = loop.call_soon_threadsafe

        def counted(*args: object) -> object:
            nonlocal crossings
            crossings += 1
            return call_soon_threadsafe(*args)  # type: ignore[arg-type]

        tasks = [asyncio.create_task(signals.async_wait(key, signals.version(key), 60)) for key in keys]
        while signals.waiting < len(keys):
            await asyncio.sleep(0)
        cpu = time.process_time()
        await asyncio.sleep(0.2)
        idle_s = time.process_time() - cpu
        loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
        waker = threading.Thread(target=signals.wake_many, args=(keys,))
        waker.start()
        assert all(await asyncio.gather(*tasks))
        waker.join()
        return idle_s, crossings

    idle_s, crossings = asyncio.run(scenario())
    assert idle_s < 0.1
    assert crossings <= 1
    assert signals.waiting == 0


def test_wakes_from_many_threads_reach_every_task() -> None:
    signals = Signals()

    async def waiter(key: str, wanted: int, counts: dict[str, int]) -> None:
        while counts[key] < wanted:
            seen = signals.version(key)
            if counts[key] < wanted:
                assert await signals.async_wait(key, seen, 20), "a wake-up was lost"

    async def scenario() -> None:
        counts = dict.fromkeys([f"device:{n}" for n in range(20)], 0)

        def bump(key: str) -> None:
            for _ in range(50):
                counts[key] += 1
                signals.wake(key)

        tasks = [asyncio.create_task(waiter(key, 50, counts)) for key in counts]
        threads = [threading.Thread(target=bump, args=(key,)) for key in counts]
        for thread in threads:
            thread.start()
        await asyncio.gather(*tasks)
        for thread in threads:
            thread.join()

    asyncio.run(scenario())


def test_everybody_can_be_woken() -> None:
    signals = Signals()

    async def scenario() -> None:
        tasks = [
            asyncio.create_task(signals.async_wait(key, signals.version(key), 60))
            for key in ("fleet", "run:a", "run:b")
        ]
        await asyncio.sleep(0)
        signals.wake_all()
        assert await asyncio.gather(*tasks) == [True, True, True]

    asyncio.run(scenario())


def test_waking_a_closed_loop_is_harmless() -> None:
    signals = Signals()
    loop = asyncio.new_event_loop()
    task = loop.create_task(signals.async_wait("fleet", signals.version("fleet"), 60))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    signals.wake("fleet")
    signals.wake("fleet")
    task._log_destroy_pending = False  # type: ignore[attr-defined]
