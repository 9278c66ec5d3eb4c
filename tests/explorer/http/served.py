"""The HTTP side of one replica: requests go through the real application, on a loop in virtual time.

Each function that the application runs in a thread is a call of the replica, so faults strike in it as in every other,
and a process that dies takes its connections with it. The answers are checked as all answers are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from client_sdk.protocol.devices import CheckIn
from client_sdk.protocol.problems import Problem
from client_sdk.protocol.workers import WorkerPoll
from coordinator.runtime.coordinator import Coordinator
from coordinator.store.port import WaitingRow
from tests.explorer import admission, draws
from tests.explorer.faults import Broken
from tests.explorer.http.app import started
from tests.explorer.http.connection import Connection
from tests.explorer.http.loop import VirtualLoop
from tests.explorer.process import Process
from tests.explorer.request import Answer, Respond, SentRequest

LEAVES_S = 2.0
"""Virtual seconds within which a device that has disconnected waits no more."""


@dataclass(eq=False, slots=True)
class ServedRequest:
    """A request under way. ``peer``: the device or worker that it holds open, empty for other requests."""

    connection: Connection
    respond: Respond
    peer: str
    key: str
    """The key of the signal that wakes it."""
    message: Any
    """What the peer has sent: which runs may use it."""
    at: float
    """When it arrived, by the clock of the process."""
    list_counter: int
    """Of the revocation list that the process had then: the request may have been let in by it."""
    place: float | None = None
    """Until when its device has its place in the pool, by this request."""
    called: tuple[int, float, bool] = (-1, 0.0, True)
    """After the last call of the coordinator for it: transactions so far, the replica's clock, whether others were
    served meanwhile."""


_SERVED: ContextVar[ServedRequest | None] = ContextVar("served", default=None)


class ServedApp:
    """One start of the application."""

    def __init__(self, process: Process, number: int, coordinator: Coordinator) -> None:
        self._process = process
        self._app = started(number, coordinator)
        self._loop = VirtualLoop(process.world.agenda, process.busy, self._in_thread)
        self._open: dict[ServedRequest, None] = {}

    def of(self, peer: str) -> ServedRequest | None:
        """The newest held request of this peer."""
        return next((one for one in reversed(self._open) if one.peer == peer and one.connection.held), None)

    def waiting_for(self, key: str) -> list[ServedRequest]:
        """The held requests that the signal of this key wakes."""
        return [one for one in self._open if one.key == key and one.connection.held]

    def serve(self, request: SentRequest, respond: Respond) -> None:
        """Lets the application serve one delivery of a request. ``respond`` is called once."""
        message = getattr(request.send, "message", None)
        peer, key = self._waits(request, message)
        left: asyncio.Future[None] = self._loop.create_future()
        connection = Connection(self._process.world, request, left, lambda: self._leaves(served))
        at, listed = self._process.now(), self._process.list_counter
        served = ServedRequest(connection, respond, peer, key, message, at, listed)
        self._open[served] = None
        context = Context()
        context.run(_SERVED.set, served)
        self._loop.create_task(self._serve(served), context=context)

    def end(self) -> None:
        """Ends the process: its connections break."""
        served, self._open = list(self._open), {}
        self._loop.end()
        for one in served:
            one.respond(None)

    @staticmethod
    def _waits(request: SentRequest, message: Any) -> tuple[str, str]:
        if isinstance(message, CheckIn):
            return request.holder.id, f"device:{request.holder.id}"
        if isinstance(message, WorkerPoll):
            return f"{request.holder.id} {message.instance}", "workers"
        return "", ""

    async def _serve(self, served: ServedRequest) -> None:
        try:
            answer = await served.connection.call(self._app)
        except Exception as error:
            raise Broken("no-bug", f"the application raised {error!r}") from error
        finally:
            self._open.pop(served, None)
        self._check(served, answer)
        served.respond(answer)

    def _check(self, served: ServedRequest, answer: Answer) -> None:
        if answer is None:
            return
        process, request = self._process, served.connection.request
        request.date = formatdate(process.now(), usegmt=True)
        if served.connection.changed and self._took(request, served.connection.changed, answer):
            raise Broken("receipt", f"bytes that changed on the way were taken for those of their sender: {answer!r}")
        transactions, clock, disturbed = served.called
        moved = disturbed or (transactions, clock) != (process.watch.transactions, process.now())
        process.watch.answered(request, answer, moved, process.now())
        if not isinstance(answer, Problem):
            process.admitted.add(process, request, served.at)
            if not served.peer and process.list_counter == served.list_counter:
                admission.is_good(process, request, served.at)

    def _took(self, request: SentRequest, digest: str, answer: Answer) -> bool:
        """Whether bytes that changed on the way were read as an update: they count, or were refused as invalid."""
        if not isinstance(answer, Problem):
            return True
        path: dict[str, Any] = request.send.path  # type: ignore[union-attr]
        refusals = self._process.durable.store.refusals(str(path["run"]), int(path["round"]))
        return any((row.kind, row.digest) == ("invalid-update", digest) for row in refusals)

    def _leaves(self, served: ServedRequest) -> None:
        """The place of a device that disconnects is dropped soon, where no fault comes between. Other requests of the
        device have places of their own, also one that was stored and whose answer was an error."""
        process, world = self._process, self._process.world
        requests = [one for one in self._open if one.peer == served.peer]
        row = draws.waiting_row(process.durable, served.peer)
        if (
            row is None
            or row.expires != served.place
            or requests != [served]
            or world.shape.replicas > 1
            or process.frozen
        ):
            return
        before = (process.life, process.failures, world.interruptions)

        def look() -> None:
            undisturbed = before == (process.life, process.failures, world.interruptions)
            if undisturbed and process.up and not process.frozen:
                draws.left(process.durable, served.peer, row.expires)

        world.agenda.after(LEAVES_S, look)

    def _in_thread(self, function: Callable[[], Any], context: Context) -> tuple[Any, BaseException | None] | None:
        """One call of the replica."""
        process, failed = self._process, []
        served = context.get(_SERVED)

        def work(coordinator: Coordinator) -> Any:
            try:
                return context.run(function)
            except Exception as error:
                failed.append(error)
                raise

        life = process.life
        waits = served is not None and isinstance(served.message, CheckIn)
        before = draws.waiting_row(process.durable, served.peer) if served is not None and waits else None
        result = process.attempt(served.connection.request.event if served is not None else "http", work)
        if life != process.life or not process.up:
            return None
        if served is not None and waits and not process.disturbed:
            self._look_at_place(served, before)
        if served is not None:
            served.called = (process.watch.transactions, process.now(), process.disturbed)
        return (None, failed[0]) if failed else (result, None)

    def _look_at_place(self, served: ServedRequest, before: WaitingRow | None) -> None:
        """After a call of the replica for a check-in; ``before``: the row of its device in the pool before the call."""
        device, durable = served.peer, self._process.durable
        now = draws.waiting_row(durable, device)
        if now is not None and now != before:
            served.place = now.expires
        elif served.place is not None and device not in self._process.world.authority.left_out:
            draws.newer_stays(durable, device, served.place, before)
