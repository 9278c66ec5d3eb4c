"""A pool of forked processes that take tasks as they get free: the costliest first, and few at each.

Tasks and answers are messages, several in one where tasks are short. Other messages (``send``, ``receive``) are
exchanged only with an idle worker, so no two messages wait for each other.

============================ =======================================================================================
event                        consequence
============================ =======================================================================================
a worker dies                SimulationError with its exit and its task; all other workers are ended
Ctrl-C                       workers ignore it; the owner of the pool closes it
this process is killed       each worker notices that the channel is closed, and ends at once
this process forks others    their copies of the channels are closed (workers), or do not matter (``shutdown``)
============================ =======================================================================================
"""

from __future__ import annotations

import gc
import heapq
import json
import mmap
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Never

import numpy as np

from simulation.errors import SimulationError

# ------------------------------------------------------------ messages
# Messages between processes: JSON objects over a stream socket, each behind its length.


JsonObject = dict[str, Any]

_LENGTH = 4
_READ = 1 << 16


class Channel:
    """One end. ``send`` blocks until the other end reads; ``receive`` waits for a message, ``arrived`` does not."""

    def __init__(self, end: socket.socket, at: memoryview | None = None) -> None:
        """``at``: memory that both ends share, for the number of the task under way."""
        self.socket = end
        self.at = at
        self.ended = False
        """Whether the other end is closed: nothing will arrive any more."""
        self._bytes = bytearray()
        self._messages: deque[JsonObject] = deque()

    def send(self, message: Mapping[str, Any]) -> None:
        """OSError where the other end is closed."""
        body = json.dumps(message, default=_plain, separators=(",", ":")).encode()
        self.socket.sendall(len(body).to_bytes(_LENGTH, "big") + body)

    def receive(self) -> JsonObject | None:
        """Returns the next message; None where the other end is closed."""
        while not self._messages and not self.ended:
            self._read(0)
        return self._messages.popleft() if self._messages else None

    def arrived(self) -> JsonObject | None:
        """Returns the next message if it has arrived; None: nothing yet, or nothing any more (``ended``)."""
        if not self._messages and not self.ended:
            self._read(socket.MSG_DONTWAIT)
        return self._messages.popleft() if self._messages else None

    def close(self) -> None:
        """Closes the channel for both ends at once, also where another process has a copy of this end."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()

    def _read(self, flags: int) -> None:
        try:
            part = self.socket.recv(_READ, flags)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self.ended = not part
        self._bytes += part
        while len(self._bytes) >= _LENGTH:
            stop = _LENGTH + int.from_bytes(self._bytes[:_LENGTH], "big")
            if len(self._bytes) < stop:
                return
            self._messages.append(json.loads(self._bytes[_LENGTH:stop]))
            del self._bytes[:stop]


def _plain(value: Any) -> Any:
    """Converts numpy's numbers to Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be sent to another process")


# ------------------------------------------------------------ the pool


Serve = Callable[[int, Channel], None]
"""The function of a worker, given its number and its end of the channel; returns when the channel is closed."""

_DEPTH = 2
"""The least number of tasks at a worker: the one under way, and one that waits, so that the worker never does."""
_MOST_DEPTH = 16
"""The most tasks at a worker, while many wait: short tasks then cost few messages."""
_LOOK_S = 1.0
"""Seconds between two checks whether a worker has died whose channel a child process of its own holds open."""
_PATIENCE_S = 2.0
"""Seconds for an idle worker to end when the pool is closed."""
_OURS: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""This process's ends of all channels: its forks close them."""


@dataclass(slots=True)
class _Worker:
    pid: int
    channel: Channel
    at: memoryview
    """The number of its current task: the worker writes it, and this process reads it."""
    tasks: deque[int] = field(default_factory=deque)
    """The tasks sent to it and not answered, the one under way first."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a worker (by its number) to a task."""

    worker: int
    body: JsonObject


class ProcessPool:
    """``put`` tasks, ``answer`` waits for one; ``settle`` drops those that no worker has begun."""

    def __init__(self, size: int, serve: Serve) -> None:
        """Starts the workers. SimulationError where processes cannot be forked."""
        if not hasattr(os, "fork"):
            raise SimulationError(
                'engine="processes" forks its workers, which this system cannot do: '
                'engine="serial" does the same work in one process'
            )
        self.answers: dict[int, Answer] = {}
        """Answers by the task's number, until ``forget``."""
        self._workers: list[_Worker] = []
        self._waiting: list[tuple[bool, int, int]] = []
        self._tasks: dict[int, tuple[Mapping[str, Any], str]] = {}
        self._number = 0
        self._failed: str | None = None
        self._selector = selectors.DefaultSelector()
        try:
            masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                for number in range(size):
                    self._workers.append(_forked(number, serve))
                    self._selector.register(self._workers[-1].channel.socket, selectors.EVENT_READ, number)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    # ------------------------------------------------------------ tasks

    def put(self, message: Mapping[str, Any], what: str, *, cost: int = 0, now: bool = False) -> int:
        """Adds a task for the next free worker and returns its number. ``what``: the task as text, "trained client
        'c7'". ``now``: before all waiting tasks."""
        self._number += 1
        self._tasks[self._number] = (message, what)
        heapq.heappush(self._waiting, (not now, -cost, self._number))
        return self._number

    def start(self) -> None:
        """Sends tasks to the workers that can take more."""
        self._usable()
        deepest = max(_DEPTH, min(_MOST_DEPTH, len(self._waiting) // (4 * len(self._workers) or 1)))
        if all(len(worker.tasks) >= max(_DEPTH, deepest // 2) for worker in self._workers):
            return  # enough for now: several tasks are sent at a time
        sent: list[list[dict[str, Any]]] = [[] for _ in self._workers]
        for depth in range(1, deepest + 1):
            for number, worker in enumerate(self._workers):
                if self._waiting and len(worker.tasks) < depth:
                    task = heapq.heappop(self._waiting)[2]
                    worker.tasks.append(task)
                    sent[number].append({"task": task, **self._tasks[task][0]})
        for number, tasks in enumerate(sent):
            if tasks:
                self._send(number, {"do": "tasks", "tasks": tasks})

    def has(self, task: int) -> bool:
        """Whether its answer has arrived. Does not wait; sends waiting tasks to free workers."""
        self._usable()
        if task not in self.answers:
            self._take_in(0)
            self.start()
        return task in self.answers

    def answer(self, task: int) -> Answer:
        """Waits for the answer to a task. KeyError for a task that was dropped."""
        self._usable()
        while task not in self.answers:
            if task not in self._tasks:
                raise KeyError(task)
            self._turn()
        return self.answers[task]

    def settle(self) -> set[int]:
        """Drops all tasks that no worker has begun, and waits for the others. Returns the dropped ones."""
        self._usable()
        dropped = {task for _, _, task in self._waiting}
        self._waiting.clear()
        for number, worker in enumerate(self._workers):
            if len(worker.tasks) > 1:
                self._send(number, {"do": "drop"})
        while any(worker.tasks for worker in self._workers):
            self._turn()
        dropped |= {task for task in self._tasks if task in self.answers and "dropped" in self.answers[task].body}
        for task in dropped:
            self._tasks.pop(task, None)
            self.answers.pop(task, None)
        return dropped

    def forget(self) -> None:
        """Drops the answers of settled tasks."""
        self._tasks.clear()
        self.answers.clear()

    # ------------------------------------------------------------ when all are idle

    def send(self, number: int, message: Mapping[str, Any]) -> None:
        """Sends a message without an answer to an idle worker."""
        self._usable()
        self._send(number, message)

    def receive(self, number: int) -> JsonObject:
        """Receives the answer of an idle worker to a message."""
        channel = self._workers[number].channel
        arriving = select.poll()
        arriving.register(channel.socket, select.POLLIN)
        while (body := channel.arrived()) is None:
            if channel.ended:
                self._died(number)
            if not arriving.poll(1000 * _LOOK_S):
                self._look()
        return body

    def close(self) -> None:
        """Ends all workers, whatever they do, and waits until they have ended."""
        for worker in self._workers:
            worker.channel.close()
        for worker in self._workers:
            if worker.tasks:
                _kill(worker.pid)
        until = time.monotonic() + _PATIENCE_S
        for worker in self._workers:
            while _reaped(worker.pid) is None:
                if time.monotonic() > until:
                    _kill(worker.pid)
                    until = float("inf")
                time.sleep(0.001)
        self._workers.clear()
        self._selector.close()
        self._failed = self._failed or "the engine was closed"

    # ------------------------------------------------------------ inside

    def _usable(self) -> None:
        if self._failed is not None:
            raise SimulationError(self._failed)

    def _turn(self) -> None:
        """Sends tasks, then waits until a worker has answered."""
        self.start()
        if not self._take_in(_LOOK_S):
            self._look()

    def _take_in(self, wait_s: float) -> bool:
        """Reads the answers of workers, and waits for them so long at most. Returns whether there were any."""
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            worker = self._workers[key.data]
            while (message := worker.channel.arrived()) is not None:
                for body in message["answers"]:
                    task = int(body["task"])
                    worker.tasks.remove(task)
                    self.answers[task] = Answer(key.data, body)
            if worker.channel.ended:
                self._died(key.data)
        return bool(ready)

    def _look(self) -> None:
        for number, worker in enumerate(self._workers):
            if (status := _reaped(worker.pid)) is not None:
                self._died(number, status)

    def _send(self, number: int, message: Mapping[str, Any]) -> None:
        try:
            self._workers[number].channel.send(message)
        except OSError:
            self._died(number)

    def _died(self, number: int, status: int | None = None) -> Never:
        """Raises SimulationError with the exit of a worker, and ends the others."""
        worker = self._workers.pop(number)
        worker.channel.close()
        until = time.monotonic() + _PATIENCE_S
        while status is None:
            if time.monotonic() > until:
                _kill(worker.pid)
            status = _reaped(worker.pid)
            time.sleep(0.001)
        task = worker.at[0] if worker.at[0] in worker.tasks else next(iter(worker.tasks), None)
        doing = "while it had nothing to do" if task is None else f"while it {self._tasks[task][1]}"
        self._failed = f"a worker process {_ending(status)} {doing}"
        self.close()
        raise SimulationError(self._failed)


def _forked(number: int, serve: Serve) -> _Worker:
    """A process that serves one end of a channel, seen from the other end. Ctrl-C is deferred meanwhile."""
    ours, theirs = socket.socketpair()
    at = memoryview(mmap.mmap(-1, 8)).cast("q")
    flush_output()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: a worker needs none of them
        pid = os.fork()
    if pid == 0:
        ours.close()
        _serve(number, Channel(theirs, at), serve)
    theirs.close()
    _OURS.add(ours)
    return _Worker(pid, Channel(ours), at)


def _serve(number: int, channel: Channel, serve: Serve) -> Never:
    """Runs the forked process. It exits without the clean-up of its parent."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for end in list(_OURS):
            end.close()
        gc.freeze()
        threading.Thread(target=_ends_with, args=(channel.socket,), daemon=True).start()
        serve(number, channel)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except OSError as error:
        if not isinstance(error, BrokenPipeError | ConnectionResetError):
            traceback.print_exc()
    except BaseException:  # noqa: BLE001 - whatever it is, the parent's frames below must not see it
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(status)


def _ends_with(end: socket.socket) -> None:
    """Ends this process when the other end is closed, even in the middle of a long task."""
    hangup = select.poll()
    hangup.register(end, 0)
    hangup.poll()
    os._exit(0)


def flush_output() -> None:
    """Flushes standard output and error, where they are open."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _reaped(pid: int) -> int | None:
    """The exit status as ``Popen.returncode`` gives it; None while the process runs. 0 where another has reaped it."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if found else None


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended by itself, with exit status {status},"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    short = ", as the system does when memory runs short," if name == "SIGKILL" else ""
    return f"was ended by {name}{short}"
