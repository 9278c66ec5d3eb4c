"""Flower apps in one process, ``quorate flower run --simulation N``: a coordinator, its table of requests without
sockets, and N nodes whose ClientApps work in resident processes, one for each core. Needs the extras ``simulation`` and
``flower``."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition, Event, Thread, local
from typing import Any, BinaryIO, assert_never

from client_sdk.commands.long_running import thread_variables
from client_sdk.flower.answer_file import AnswerFile
from client_sdk.flower.app import AppFolder
from client_sdk.flower.app_process import AppNotLoaded, AppProcess
from client_sdk.flower.journal import NodeJournal
from client_sdk.flower.serving import FlowerDevice
from client_sdk.flower.work import AppFailed, AppWork, FlowerNotice, Worked
from client_sdk.http.flower import FlowerContent, FlowerOperator
from client_sdk.http.transport import Interrupted
from client_sdk.protocol.flower import (
    EndFlowerRun,
    FlowerError,
    FlowerNodes,
    FlowerPoll,
    FlowerRunView,
    FlowerTask,
    FlowerWait,
    ReplyReceipt,
)
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import Problem, ProblemError, problem
from coordinator.access import LOCAL_OWNER
from coordinator.blobs import Blobs, FileBlobs
from coordinator.requests import TABLE, Body, Direct, Held, NotYet, Request
from coordinator.requests.entry import Caller
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.runtime.signals import Signals
from coordinator.store import MemoryStore, Store
from coordinator.store.port import DeviceRow
from simulation.engines.processes import cores
from simulation.history.folder import writing
from simulation.virtual.device import device_row

# ------------------------------------------------------------ requests
# Serves the table of requests in this process: no socket, no signature, no audit; the caller is known.


LOOK_S = 1.0
"""Longest time between two looks of a request that is held: a message may have expired."""


class InProcess:
    """Requests of one caller to one coordinator. ``stopped`` ends the wait of a held request."""

    def __init__(self, coordinator: Coordinator, caller: Caller, stopped: Callable[[], bool]) -> None:
        self.coordinator = coordinator
        self._caller = caller
        self._stopped = stopped

    def ask(self, method: str, route: Route, message: Message | None = None, /, **path: Any) -> Any:
        """The answer to a request, waited for as long as its ``hold_s`` says. ProblemError where it is refused."""
        entry = TABLE.find(method, route)
        request = Request(entry, self._caller, message, path)
        shape = entry.shape
        match shape:
            case Direct():
                return request.call(shape.call, self.coordinator)
            case Held():
                return self._held(request, shape)
            case Body():
                raise TypeError(f"{entry.name} has a body: use send")
            case _:
                assert_never(shape)

    def send(self, method: str, route: Route, parts: Iterable[bytes | memoryview], digest: str, /, **path: Any) -> Any:
        """The answer to a request with a body of this digest, in parts. ProblemError where it is refused."""
        entry = TABLE.find(method, route)
        shape = entry.shape
        if not isinstance(shape, Body):
            raise TypeError(f"{entry.name} has no body")
        request = Request(entry, self._caller, None, path)
        limit = request.call(shape.limit, self.coordinator)
        with self.coordinator.core.blobs.spool(limit) as spool:
            for part in parts:
                spool.write(part)
            if spool.digest != digest:
                raise problem("digest-mismatch", f"the body has the digest {spool.digest[:12]}, not {digest[:12]}")
            return request.call(shape.stored, self.coordinator, spool)

    def _held(self, request: Request, shape: Held) -> Any:
        signals = self.coordinator.core.signals
        called: Mapping[str, Any] = request.path
        key = (
            shape.key(request.caller, request.message, **called)
            if called
            else shape.key(request.caller, request.message)
        )
        until = time.monotonic() + request.message.hold_s
        seen = signals.version(key)
        found = request.call(shape.first, self.coordinator)
        while found is None or isinstance(found, NotYet):
            left = until - time.monotonic()
            if left <= 0 or self._stopped():
                return request.call(shape.expired, self.coordinator)
            signals.wait(key, seen, min(LOOK_S, left))
            seen = signals.version(key)
            found = request.call(shape.again, self.coordinator)
        return found


# ------------------------------------------------------------ nodes
# Simulated nodes: each has a row, a port and a journal; a few threads, each with a process of the ClientApp, do their
# work.
#
# ::
#
#     push -> the coordinator wakes devices -> ReadyNodes -> a thread takes the lowest node
#          -> poll -> the ClientApp works in the thread's process -> reply -> the node's next message, or the next node


SEEN_S = 20.0
"""How long it is good for that nodes said that they are there."""
ENDING_S = 5.0
"""How long a thread may take to end."""


def device_names(count: int) -> list[str]:
    """The device ids of simulated nodes, in order of their partition."""
    digits = max(4, len(str(count - 1)))
    return [f"node-{number:0{digits}}" for number in range(count)]


def default_workers(count: int) -> int:
    """One process for each core that this process may use, and no more than there are nodes."""
    return max(1, min(count, cores()))


class SimulatedNodes:
    """The nodes of one app, at work from ``start`` to ``close``.

    ``ready`` are the signals of the ``coordinator``; ``folder`` gets the journals; ``on_notice`` is called from the
    threads."""

    def __init__(
        self,
        coordinator: Coordinator,
        ready: ReadyNodes,
        app: AppFolder,
        devices: Sequence[str],
        folder: Path,
        on_notice: Callable[[FlowerNotice], None] | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._ready = ready
        self._app = app
        self._stop = Event()
        self._own = _ProcessOfThread()
        self._poll = FlowerPoll(apps=(app.app,), hold_s=0.0)
        self._threads: list[Thread] = []
        self._processes: list[AppProcess] = []
        self._failure: BaseException | None = None
        self._seen_at = float("-inf")
        rows = [device_row(device, 1, "", time.time()) for device in devices]
        with coordinator.core.store.transaction() as tx:
            for row in rows:
                if tx.device(row.device) is None:
                    tx.insert_device(row)
        self._ports: list[NodePort] = []
        self._devices: list[FlowerDevice] = []
        for place, row in enumerate(rows):
            inbox = folder / row.device
            inbox.mkdir(parents=True, exist_ok=True)
            port = NodePort(InProcess(coordinator, row, self._stop.is_set), row.device, inbox)
            self._ports.append(port)
            self._devices.append(self._device(port, row, place, len(rows), folder, on_notice))

    def start(self, workers: int) -> None:
        """Have so many processes with the ClientApp, and begin. AppNotLoaded where it cannot be loaded."""
        environment = thread_variables(None)
        self._processes = [
            AppProcess(
                self._app.folder.resolve(), self._app.clientapp, stopped=self._stop.is_set, environment=environment
            )
            for _ in range(workers)
        ]
        failures: list[BaseException] = []

        def load(process: AppProcess) -> None:
            try:
                process.start()
            except (AppNotLoaded, Interrupted) as failure:
                failures.append(failure)

        loading = [Thread(target=load, args=(process,)) for process in self._processes]
        for thread in loading:
            thread.start()
        for thread in loading:
            thread.join()
        if failures:
            raise failures[0]
        self._threads = [
            Thread(target=self._work, args=(process,), name=f"flower-{number}", daemon=True)
            for number, process in enumerate(self._processes)
        ]
        for thread in self._threads:
            thread.start()

    def present(self) -> None:
        """All nodes say that they are there. RuntimeError where a thread of them has failed."""
        self.check()
        now = time.monotonic()
        if now - self._seen_at > SEEN_S:
            self._seen_at = now
            for port in self._ports:
                port.here(self._poll)

    def forget(self, run: str) -> None:
        """The run is over: delete the nodes' states in it."""
        for device in self._devices:
            device.forget(run)

    def check(self) -> None:
        """RuntimeError where a thread has failed, so that nodes do not answer any more."""
        if self._failure is not None:
            raise RuntimeError(f"the simulated nodes have failed: {self._failure}") from self._failure

    def close(self) -> None:
        """End all work within a second, and the processes."""
        self._stop.set()
        self._ready.close()
        for thread in self._threads:
            thread.join(ENDING_S)
        for process in self._processes:
            process.close()

    # ------------------------------------------------------------ inside

    def _device(
        self,
        port: NodePort,
        row: DeviceRow,
        place: int,
        count: int,
        folder: Path,
        on_notice: Callable[[FlowerNotice], None] | None,
    ) -> FlowerDevice:
        return FlowerDevice(
            port,
            self._app.app,
            self._own,
            NodeJournal(folder / row.device, durable=False),
            node_config={"partition-id": place, "num-partitions": count},
            presence=False,
            stop=self._stop,
            on_notice=on_notice,
        )

    def _work(self, process: AppProcess) -> None:
        self._own.use(process)
        try:
            while (place := self._ready.take()) is not None:
                self._ready.done(place, again=self._serve(place))
        except Interrupted:
            pass
        except BaseException as failure:  # noqa: BLE001 - told to the ServerApp, which would wait for ever else
            self._failure = failure
            self._ready.close()

    def _serve(self, place: int) -> bool:
        """Let a node answer one message. Whether it is to be looked at again."""
        task = self._ports[place].poll(self._poll)
        if not isinstance(task, FlowerTask):
            return False
        self._devices[place].answer(task)
        return True


class _ProcessOfThread:
    """Runs a message in the process that belongs to the thread."""

    def __init__(self) -> None:
        self._local = local()

    def use(self, process: AppProcess) -> None:
        """The calling thread's process."""
        self._local.process = process

    def run(self, work: AppWork, within_s: float, over: Callable[[], bool] | None = None) -> Worked | AppFailed:
        process: AppProcess = self._local.process
        return process.run(work, within_s, over)


PART_BYTES = 1 << 20


class NodePort:
    """The port of one simulated node, a ``FlowerPort``: its requests to the coordinator in this process."""

    def __init__(self, requests: InProcess, device: str, folder: Path) -> None:
        """``folder``: holds the content of a message until it is answered."""
        self._requests = requests
        self._device = device
        self._fetching, self._fetched = folder / "content.part", folder / "content"

    def poll(self, poll: FlowerPoll) -> FlowerTask | FlowerWait | Problem:
        found: FlowerTask | FlowerWait = self._requests.ask("POST", Route.FLOWER_TASKS, poll)
        return found

    def here(self, poll: FlowerPoll) -> FlowerWait | None:
        found = self.poll(poll)
        return found if isinstance(found, FlowerWait) else None

    def fetch(self, task: FlowerTask) -> Path | Problem:
        coordinator = self._requests.coordinator
        try:
            coordinator.flower.contents.require(task.run, task.content, self._device)
        except ProblemError as error:
            return error.problem
        with coordinator.core.blobs.open(task.content) as file, self._fetching.open("wb") as copy:
            shutil.copyfileobj(file, copy, PART_BYTES)
        return self._fetching.replace(self._fetched)

    def reply(self, answer: AnswerFile) -> ReplyReceipt | Problem:
        run, message, digest = answer.header.run, answer.header.message, answer.header.reply or ""
        try:
            with answer.open_reply() as file:
                found: ReplyReceipt = self._requests.send(
                    "PUT", Route.FLOWER_REPLY, _parts(file), digest, run=run, message=message
                )
        except ProblemError as error:
            return error.problem
        self._fetched.unlink(missing_ok=True)
        return found

    def error(self, run: str, message: str, error: FlowerError) -> ReplyReceipt | Problem:
        try:
            found: ReplyReceipt = self._requests.ask("POST", Route.FLOWER_ERROR, error, run=run, message=message)
        except ProblemError as refused:
            return refused.problem
        self._fetched.unlink(missing_ok=True)
        return found


def _parts(file: BinaryIO) -> Iterator[bytes]:
    while part := file.read(PART_BYTES):
        yield part


PREFIX = "flower:"
"""How the keys of devices begin that wait for a message (``coordinator.runtime.flower.flower_core.device_key``)."""


class ReadyNodes(Signals):
    """Which simulated nodes have work: those that a push has woken, the lowest partition first. A coordinator wakes a
    device by a signal when there is a message for it; these signals put the device into an order that does not depend
    on which thread was faster.

    ``take`` gives the next node with work to a thread, and to no other one until ``done``.
    """

    def __init__(self, devices: Iterable[str]) -> None:
        super().__init__()
        self._place = {PREFIX + device: place for place, device in enumerate(devices)}
        self._changed = Condition()
        self._waiting: set[int] = set()
        self._taken: set[int] = set()
        self._closed = False

    def wake_many(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        super().wake_many(keys)
        places = [place for key in keys if (place := self._place.get(key)) is not None]
        if places:
            with self._changed:
                self._waiting.update(places)
                self._changed.notify_all()

    def take(self) -> int | None:
        """The lowest place of a node that was woken; waits for one. None: it is closed."""
        with self._changed:
            while not self._closed:
                place = min(self._waiting - self._taken, default=None)
                if place is not None:
                    self._waiting.discard(place)
                    self._taken.add(place)
                    return place
                self._changed.wait()
            return None

    def done(self, place: int, *, again: bool = False) -> None:
        """The thread has done this node's work. ``again``: the node is to be looked at once more."""
        with self._changed:
            self._taken.discard(place)
            if again:
                self._waiting.add(place)
            self._changed.notify_all()

    def close(self) -> None:
        """``take`` gives no more nodes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


# ------------------------------------------------------------ simulated


@contextmanager
def simulated(
    app: AppFolder,
    nodes: int,
    *,
    data: Path | None = None,
    workers: int | None = None,
    on_notice: Callable[[FlowerNotice], None] | None = None,
) -> Iterator[SimulatedLink]:
    """A coordinator whose ``nodes`` run the app's ClientApp while the context lasts, and the port of a Grid to it.

    Node ``i`` has ``partition-id`` i and ``num-partitions`` in its ``node_config``. ``data``: a coordinator's data
    folder, which `quorate serve --data` shows afterwards, and which a later simulation goes on with; None: all is in
    memory and in a temporary folder. ``workers``: processes of ClientApps (None: one for each core), each with one
    numerical thread.

    AppNotLoaded where the ClientApp cannot be loaded; HistoryError where the folder cannot be used; ValueError for
    fewer than one node.
    """
    if nodes < 1:
        raise ValueError(f"--simulation {nodes}: a simulation has at least one node.")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="quorate-flower-", ignore_cleanup_errors=True)))
        store: Store = MemoryStore()
        blobs: Blobs
        if data is None:
            blobs = FileBlobs(scratch / "blobs", durable=False)
        else:
            store, blobs = stack.enter_context(writing(data))
        devices = device_names(nodes)
        ready = ReadyNodes(devices)
        coordinator = Coordinator(Core(store, blobs, signals=ready))
        journals = (scratch if data is None else data) / "flower-nodes"
        own = SimulatedNodes(coordinator, ready, app, devices, journals, on_notice)
        stack.callback(own.close)
        own.start(workers if workers is not None else default_workers(nodes))
        own.present()
        yield SimulatedLink(InProcess(coordinator, LOCAL_OWNER, Event().is_set), own.present, own.forget)


class SimulatedLink(FlowerOperator):
    """The link of a ServerApp's Grid to the coordinator in this process. ``present`` is called before it is asked which
    nodes are there: they say so then, since none of them polls while it has no work. ``over`` is called with a run that
    has ended."""

    def __init__(self, requests: InProcess, present: Callable[[], None], over: Callable[[str], None]) -> None:
        self._requests = requests
        self._present = present
        self._over = over

    def nodes(self, run: str) -> FlowerNodes:
        self._present()
        return super().nodes(run)

    def upload(self, run: str, content: FlowerContent) -> None:
        self._requests.send(
            "PUT", Route.FLOWER_CONTENT, content.parts(), content.digest, run=run, digest=content.digest
        )

    def download(self, run: str, digest: str) -> memoryview:
        coordinator = self._requests.coordinator
        coordinator.flower.contents.require(run, digest, None)
        with coordinator.core.blobs.open(digest) as file:
            return memoryview(file.read())

    def end(self, run: str, request: EndFlowerRun) -> FlowerRunView:
        view = super().end(run, request)
        self._over(run)
        return view

    def _ask(
        self,
        method: str,
        route: Route,
        answer: Any,
        message: Message | None = None,
        timeout: Any = None,
        query: Mapping[str, int] | None = None,
        **path: str,
    ) -> Any:
        return self._requests.ask(method, route, message, **path, **(query or {}))
