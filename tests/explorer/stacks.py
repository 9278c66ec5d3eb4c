"""Suspends calls: a call that stops in the middle keeps its stack, and the schedule continues on another.

Python has no other way to suspend a call in the middle and resume it later, in any order. Each stack is a thread,
but exactly one of them runs at any time, and the agenda alone decides which runs next: a schedule is the same at each
repetition. A thread whose stack has ended waits for another stack, of this schedule or of a later one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Over(BaseException):
    """The schedule has ended: a suspended call is unwound."""


class _Retired(BaseException):
    """This stack has passed the world on and has no work left."""


class Stacks:
    """``loop`` plays the world's steps until it is done; exactly one thread runs it at any time."""

    def __init__(self, loop: Callable[[], None]) -> None:
        self._loop = loop
        self._retired = _closed()
        self._suspended: list[_Stack] = []
        self._ended: dict[int, threading.Lock] = {}
        """Thread -> released when its stack has ended; not of the first thread, on which ``run`` was called."""
        self._over = False
        self._error: BaseException | None = None

    @property
    def suspended(self) -> int:
        """How many calls are suspended."""
        return len(self._suspended)

    def run(self) -> None:
        """Plays the world to its end, on this thread and on others. Raises what ended it."""
        try:
            self._loop()
        except _Retired:
            self._retired.acquire()
        except Over:
            pass
        except BaseException as error:  # raised again below
            self._error = error
        self._unwind()
        if self._error is not None:
            raise self._error

    def suspend(self, plan_return: Callable[[Callable[[], None]], None]) -> None:
        """Suspends the running call here until ``back`` is called. ``plan_return(back)`` puts that on the agenda."""
        stack = _Stack(self._ended.get(threading.get_ident()))
        self._suspended.append(stack)
        plan_return(lambda: self._go_back_to(stack))
        _on_another_thread(self._go_on)
        stack.awake.acquire()
        if self._over:
            raise Over

    def _go_back_to(self, stack: _Stack) -> None:
        """Called by a step of the world: the suspended stack continues, and this one ends."""
        self._suspended.remove(stack)
        stack.awake.release()
        raise _Retired

    def _go_on(self) -> None:
        ended = self._ended[threading.get_ident()] = _closed()
        try:
            self._loop()
        except (_Retired, Over):
            ended.release()
            return
        except BaseException as error:  # raised again by run()
            self._error = error
        home = self._unwind()
        (home.awake if home is not None else self._retired).release()

    def _unwind(self) -> _Stack | None:
        """Ends every suspended call, one after another; the first one is returned, to continue on its own thread."""
        self._over = True
        home = None
        while self._suspended:
            stack = self._suspended.pop()
            if stack.ended is None:
                home = stack
            else:
                stack.awake.release()
                stack.ended.acquire()
        return home


class _Stack:
    def __init__(self, ended: threading.Lock | None) -> None:
        self.ended = ended
        """Released when the stack has ended; None for the first thread's."""
        self.awake = _closed()


def _closed() -> threading.Lock:
    """A lock that is released once, by whom another thread waits for."""
    lock = threading.Lock()
    lock.acquire()
    return lock


_work: SimpleQueue[Callable[[], None]] = SimpleQueue()
_idle: list[None] = []
"""One entry for each thread that waits for work, and for which there is none yet."""


def _on_another_thread(work: Callable[[], None]) -> None:
    """Runs ``work`` on a thread that has ended its last stack, or on a new one."""
    try:
        _idle.pop()
    except IndexError:
        threading.Thread(target=_run_stacks, name="explorer", daemon=True).start()
    _work.put(work)


def _run_stacks() -> None:
    while True:
        _work.get()()
        _idle.append(None)
