"""What the routes of any service of ours share, a coordinator's or an authority's (``Serving``), and what those of a
coordinator share too (``Service``).

The event loop only moves bytes and waits. Code that reads the database, touches a file, hashes or validates runs in a
thread by ``Serving.work``. Held check-ins and event streams need no thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, assert_never

from starlette.types import Receive

from client_sdk.protocol.problems import ProblemError, problem
from coordinator.access import Operator
from coordinator.group_commit import GroupCommit, PendingCommit
from coordinator.limits import Admission, InFlight
from coordinator.limits.admission import LOCAL, Sender, spread
from coordinator.requests import Caller
from coordinator.runtime import log_context
from coordinator.runtime.identities import Registrant
from coordinator.runtime.signals import Signals
from coordinator.service.edge import Hosts
from coordinator.service.observe import Meters
from coordinator.service.sockets.protocol import Limits, most_connections
from coordinator.settings import Settings
from coordinator.store.port import DeviceRow, WorkerRow

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator

P = ParamSpec("P")
T = TypeVar("T")

PROBES = frozenset({"/healthz", "/readyz"})
"""Routes that a proxy's own health checks read."""
OVERLOAD = 4096
"""Requests that may queue for a thread before new ones are refused as *busy*: some seconds of work."""
_Call = tuple[Callable[[], Any], asyncio.Future[Any]]
_Waiting = tuple[Context, Callable[[], Any], asyncio.Future[tuple[Any, Exception | None]]]


# ------------------------------------------------------------ threads
# The threads of a service: they run what its event loop must not wait for.
#
# ``ThreadPoolExecutor`` with ``run_in_executor`` makes two futures for each call, which tell each other, one of them
# with a lock and a condition, and wakes the event loop; a short request has several calls. Here a call has the event
# loop's future alone, and the loop is woken once for all calls that are done by then.


class Threads:
    """At most so many threads, each started when no other is free. ``run`` is for one event loop."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._told = False
        """Whether the event loop will look at what is done."""
        self._threads: list[threading.Thread] = []
        self._free = 0
        """Threads that wait for a call, less the calls that wait for a thread."""
        self._lock = threading.Lock()
        self.closed = False

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """A future of the running event loop: the result or the error of the call. A call whose future was cancelled
        before a thread was free is not made; where the threads are closed before, the future is cancelled."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self.closed:
                future.cancel()
                return future
            self._free -= 1
            if self._free < 0 and len(self._threads) < self._most:
                self._free += 1
                name = f"{self._name}_{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            self._calls.put((call, future))
        return future

    def close(self) -> None:
        """Cancels the calls that wait for a thread, and waits until the threads have ended. To be called beside the
        event loop."""
        with self._lock:
            self.closed = True
        with suppress(Empty):
            while True:
                if (waiting := self._calls.get_nowait()) is not None:
                    self._tell(waiting[1], None, asyncio.CancelledError())
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (given := self._calls.get()) is not None:
            call, future = given
            found: Any = None
            error: BaseException | None = None
            if not future.cancelled():
                try:
                    found = call()
                except BaseException as raised:  # noqa: BLE001 - it is raised where the call is awaited
                    error = raised
            with self._lock:
                self._free += 1
            self._tell(future, found, error)
            del given, call, future, found, error  # what a thread that waits holds is not freed

    def _tell(self, future: asyncio.Future[Any], found: Any, error: BaseException | None) -> None:
        self._done.append((future, found, error))
        if not self._told:
            self._told = True
            try:
                future.get_loop().call_soon_threadsafe(self._settle)
            except RuntimeError:  # the event loop is closed: nobody waits
                self._told = False

    def _settle(self) -> None:
        self._told = False
        while self._done:
            future, found, error = self._done.popleft()
            if future.done():
                continue
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            elif isinstance(error, StopIteration):  # no future takes it
                future.set_exception(RuntimeError(f"a call raised {error!r}").with_traceback(error.__traceback__))
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(found)


# ------------------------------------------------------------ of any service


class Serving:
    """One process's HTTP side. Lives as ``app.state.service``."""

    def __init__(self, settings: Settings, meters: Meters) -> None:
        self.settings = settings
        self.meters = meters
        self.limits = Limits.of(settings)
        self.most_connections = most_connections(settings)
        self.admission = Admission(settings, self.most_connections)
        self.hosts = Hosts(settings.public, PROBES)
        self.stopping = False
        self.threads = Threads(settings.threads, "quorate")
        self._queued = 0
        self._crowds: set[asyncio.Task[None]] = set()

    async def work(self, task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``task`` in a thread and returns its result or raises its error. CancelledError where the service is
        closed before a thread is free."""
        self._queued += 1
        try:
            return await self.threads.run(partial(copy_context().run, task, *args, **kwargs))
        finally:
            self._queued -= 1

    def admit(self) -> None:
        """ProblemError *busy* where too many requests wait for a thread: a new one would only wait longer."""
        if self._queued >= OVERLOAD:
            raise problem("busy", f"{self._queued} requests wait for a thread already.", retry_after_s=spread(5))

    async def settled(self, answer: Any) -> Any:
        """The answer itself, once what it acknowledges is durable; raises what ``PendingCommit.settle`` raises.
        CancelledError where the service is closed before."""
        if not isinstance(answer, PendingCommit):
            return answer
        loop = asyncio.get_running_loop()
        waiting: _Waiting = (copy_context(), answer.settle, loop.create_future())
        if answer.commits.gather(waiting):
            task = loop.create_task(self._settle_gathered(answer.commits))  # a request may be cancelled
            self._crowds.add(task)
            task.add_done_callback(self._crowds.discard)
        found, error = await waiting[2]
        if error is not None:
            raise error
        return found

    async def _settle_gathered(self, commits: GroupCommit[Any, Any]) -> None:
        """Until none waits."""
        batch, crowd = commits.take()
        try:
            while batch:
                began = time.monotonic()
                for (_, _, future), found in zip(batch, await self.work(_settled, batch), strict=True):
                    if not future.done():  # its request was cancelled
                        future.set_result(found)
                await asyncio.sleep(commits.pause_s(time.monotonic() - began) if crowd else 0)
                batch, crowd = commits.take()
        finally:
            while batch:  # the service is closed
                for _, _, future in batch:
                    future.cancel()
                batch, _ = commits.take()

    def stop(self) -> None:
        """Answers all held requests and holds no more. Requests still arrive until the sockets close."""
        self.stopping = True

    @property
    def closed(self) -> bool:
        """Whether work is done no more."""
        return self.threads.closed

    def close(self) -> None:
        """Cancels the work that waits for a thread, and waits until the threads have finished. It is called beside the
        event loop, which sends the answers of what runs meanwhile."""
        self.threads.close()


# ------------------------------------------------------------ of a coordinator


OF_ONE = 8
"""One operator has this part of all slots of event streams, so that nobody who opens streams without end takes those of
others. The tabs of a browser share one stream."""
AGAIN_S = 30.0


class Service(Serving):
    """One process's HTTP side of a coordinator. Lives as ``app.state.service``."""

    def __init__(self, coordinator: Coordinator, settings: Settings, signals: Signals) -> None:
        super().__init__(settings, Meters(coordinator))
        self.coordinator = coordinator
        self.signals = signals
        self.stream_slots = stream_slots(settings.streams, "event streams")
        self.viewer_slots = stream_slots(settings.viewers, "viewers")
        self.meters.streams.set_function(lambda: self.stream_slots.amount)
        self.meters.viewers.set_function(lambda: self.viewer_slots.amount)

    def stop(self) -> None:
        super().stop()
        self.signals.wake_all()

    def count(self, caller: Caller, sender: Sender = LOCAL) -> Caller:
        """Counts a request of this caller, whom the log names from now on, and returns the caller. Operators are
        counted where their address is. ProblemError *too-many-requests*."""
        name = caller_name(caller)
        if name is not None:
            kind, _, own = name.partition(":")
            log_context.known(**{kind: own})
            if sender.key or not isinstance(caller, Operator):
                self.admission.caller(name)
        return caller

    async def settled(self, answer: Any) -> Any:
        try:
            return await super().settled(answer)
        except Exception as error:
            self.coordinator.core.process.storage_errors.note(error)
            raise


def stream_slots(most: int, what: str) -> InFlight:
    """The slots of one kind of stream: so many at a time, of which one operator has a part. ``what`` names it in a
    refusal, which is *busy*."""
    of_one = max(1, most // OF_ONE)

    def refused(of_all: bool) -> ProblemError:
        connected = f"{most} {what} are connected already."
        own = f"This operator has {of_one} {what} already, an eighth of all."
        return problem("busy", connected if of_all else own, retry_after_s=AGAIN_S)

    return InFlight(refused, each=of_one, total=most)


def at_once(answer: Any) -> Any:
    """Settles the answer in this thread, where no other one waits or is being settled with it. Else it is returned as
    it is, for ``Service.settled``."""
    return answer.settle() if isinstance(answer, PendingCommit) and answer.commits.idle() else answer


def _settled(batch: Sequence[_Waiting]) -> list[tuple[Any, Exception | None]]:
    """The answer or the error of each; the first call commits them all."""
    found: list[tuple[Any, Exception | None]] = []
    for context, settle, _ in batch:
        try:
            found.append((context.run(settle), None))
        except Exception as error:  # noqa: BLE001 - it is raised where its request is answered
            found.append((None, error))
    return found


def caller_name(caller: Caller) -> str | None:
    """The name under which a caller is counted: ``device:d-1``; None: it is nobody."""
    match caller:
        case DeviceRow():
            return f"device:{caller.device}"
        case WorkerRow():
            return f"worker:{caller.worker}"
        case Operator():
            return f"operator:{caller.id}"
        case Registrant():
            return f"{caller.certificate.holder}:{caller.certificate.id}"
        case None:
            return None
        case _:
            assert_never(caller)


async def until_gone(receive: Receive) -> None:
    """Returns when the peer has closed its connection. Drops what the peer still sends."""
    while (await receive())["type"] != "http.disconnect":
        pass
