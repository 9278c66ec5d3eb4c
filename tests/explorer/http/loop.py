"""An asyncio event loop over the agenda of a schedule: its time is the world's, and each callback is one step.

A function that the application runs in a thread is a step of its own, between two callbacks. So it may stand still, as
every call of a coordinator may, while callbacks of this loop go on, and exactly one thread runs at any time. Nothing
depends on the addresses of objects: the same seed gives the same order.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, cast

from simulation.virtual.agenda import Agenda
from tests.explorer.faults import Broken

BUSY_S = 0.5
"""Seconds until a process that stands still runs its callbacks again."""


class LoopEnded(BaseException):
    """The process of this loop has ended."""


class _NumberedFuture(asyncio.Future[Any]):
    """A future whose place in a set depends on its number, not on its address."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop:
    """``run_in_thread(function)`` performs a function of the application, which ``run_in_executor`` was given; it
    returns (result, error), or None where the process died in it. ``busy()``: whether the process stands still."""

    def __init__(
        self,
        agenda: Agenda,
        busy: Callable[[], bool],
        run_in_thread: Callable[[Callable[[], Any], Context], tuple[Any, BaseException | None] | None],
    ) -> None:
        self._agenda = agenda
        self._busy = busy
        self._run_in_thread = run_in_thread
        self._futures = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.ended = False
        self._loop = cast("asyncio.AbstractEventLoop", self)
        """This object has what tasks and futures need of a loop, and no more."""

    def time(self) -> float:
        return self._agenda.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.ended

    def is_closed(self) -> bool:
        return self.ended

    # ------------------------------------------------------------ callbacks

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._loop, context)
        self._agenda.after(0.0, self._run, handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._agenda.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self._loop, context)
        self._agenda.after(when - self._agenda.now, self._run, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """The agenda drops a cancelled handle when its time comes."""

    def _run(self, handle: asyncio.Handle) -> None:
        if self.ended or handle.cancelled():
            return
        if self._busy():
            self._agenda.after(BUSY_S, self._run, handle)
            return
        with _Running(self):
            handle._run()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Broken):
            raise error
        if "handle" in context:
            raise Broken("no-bug", f"a callback of the event loop raised {error!r}") from error

    # ------------------------------------------------------------ futures, tasks, threads

    def create_future(self) -> asyncio.Future[Any]:
        future = _NumberedFuture(loop=self._loop)
        self._futures += 1
        future.number = self._futures
        return future

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        if self.ended:
            coro.close()
            raise LoopEnded
        task = asyncio.Task(coro, loop=self._loop, name=name or "explorer", context=context)
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Broken):
            raise error

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        if self.ended:
            raise LoopEnded
        future = self.create_future()
        self._agenda.after(0.0, self._work, lambda: func(*args), future, copy_context())
        return future

    def _work(self, function: Callable[[], Any], future: asyncio.Future[Any], context: Context) -> None:
        if self.ended:
            return
        if self._busy():
            self._agenda.after(BUSY_S, self._work, function, future, context)
            return
        outcome = self._run_in_thread(function, context)
        if outcome is None or self.ended or future.done():
            return
        result, error = outcome
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def end(self) -> None:
        """Ends the process of this loop: no task takes another step, and their coroutines are closed."""
        self.ended = True
        with _Running(self):
            for task in list(self._tasks):
                vars(asyncio.Task)["_log_destroy_pending"].__set__(task, False)  # no message about pending tasks
                try:
                    task.get_coro().close()
                except BaseException:  # what a coroutine wants to do at its end needs a living process
                    pass
        self._tasks.clear()


class _Running:
    """While the block runs, this loop is the running one of the thread."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._before = events._get_running_loop()
        events._set_running_loop(self._loop._loop)

    def __exit__(self, *error: object) -> None:
        events._set_running_loop(self._before)
