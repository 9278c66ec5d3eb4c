"""Which simulated node works next: the lowest of those that were woken, and each at one thread only."""

from __future__ import annotations

from threading import Event, Thread

from simulation.flower import ReadyNodes


def test_the_lowest_is_next_in_whatever_order_they_were_woken() -> None:
    ready = ReadyNodes(["a", "b", "c", "d"])
    ready.wake_many(["flower:d", "run:r", "flower:b", "flower:a", "flower:unknown"])
    assert [ready.take() for _ in range(3)] == [0, 1, 3]


def test_a_node_that_was_woken_twice_works_once_and_after_that_again() -> None:
    ready = ReadyNodes(["a", "b"])
    ready.wake_many(["flower:a", "flower:a"])
    assert ready.take() == 0
    ready.wake_many(["flower:a", "flower:b"])
    assert ready.take() == 1, "node 0 is at work in another thread"
    ready.done(0)
    assert ready.take() == 0
    ready.done(0, again=True)
    assert ready.take() == 0


def test_a_thread_waits_for_work_and_ends_when_it_is_closed() -> None:
    ready = ReadyNodes(["a"])
    found: list[int | None] = []
    worked = Event()

    def work() -> None:
        found.append(ready.take())
        worked.set()
        found.append(ready.take())

    thread = Thread(target=work)
    thread.start()
    ready.wake("flower:a")
    assert worked.wait(10)
    ready.close()
    thread.join(10)
    assert found == [0, None]
