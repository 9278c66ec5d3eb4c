"""``quorate flower run --simulation N``: a coordinator in this process, with N nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from client_sdk.flower.app import AppFolder
from client_sdk.flower.work import FlowerNotice
from client_sdk.http.flower import FlowerContent
from client_sdk.protocol.flower import (
    CreateFlowerRun,
    EndFlowerRun,
    FlowerNodes,
    FlowerRunView,
    FlowerState,
    PullReplies,
    Pushed,
    PushMessages,
    Replies,
)
from client_sdk.protocol.names import Route
from coordinator.access import LOCAL_OWNER
from coordinator.blobs import Blobs, FileBlobs
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.store import MemoryStore, Store
from simulation.flower.nodes import InProcess, ReadyNodes, SimulatedNodes, default_workers, device_names
from simulation.history.folder import writing


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


class SimulatedLink:
    """The port of a ServerApp's Grid, a ``FlowerLink``, to the coordinator in this process. ``present`` is called
    before it is asked which nodes are there: they say so then, since none of them polls while it has no work. ``over``
    is called with a run that has ended."""

    def __init__(self, requests: InProcess, present: Callable[[], None], over: Callable[[str], None]) -> None:
        self._requests = requests
        self._present = present
        self._over = over

    def create(self, request: CreateFlowerRun) -> FlowerRunView:
        view: FlowerRunView = self._requests.ask("POST", Route.FLOWER_RUNS, request)
        return view

    def view(self, run: str) -> FlowerRunView:
        view: FlowerRunView = self._requests.ask("GET", Route.FLOWER_RUN, run=run)
        return view

    def nodes(self, run: str) -> FlowerNodes:
        self._present()
        nodes: FlowerNodes = self._requests.ask("GET", Route.FLOWER_NODES, run=run)
        return nodes

    def upload(self, run: str, content: FlowerContent) -> None:
        self._requests.send(
            "PUT", Route.FLOWER_CONTENT, content.parts(), content.digest, run=run, digest=content.digest
        )

    def download(self, run: str, digest: str) -> memoryview:
        coordinator = self._requests.coordinator
        coordinator.flower.contents.require(run, digest, None)
        with coordinator.core.blobs.open(digest) as file:
            return memoryview(file.read())

    def push(self, run: str, request: PushMessages) -> Pushed:
        pushed: Pushed = self._requests.ask("POST", Route.FLOWER_MESSAGES, request, run=run)
        return pushed

    def pull(self, run: str, request: PullReplies) -> Replies:
        replies: Replies = self._requests.ask("POST", Route.FLOWER_REPLIES, request, run=run)
        return replies

    def save_state(self, run: str, state: FlowerState) -> None:
        self._requests.ask("PUT", Route.FLOWER_STATE, state, run=run)

    def end(self, run: str, request: EndFlowerRun) -> FlowerRunView:
        view: FlowerRunView = self._requests.ask("POST", Route.FLOWER_END, request, run=run)
        self._over(run)
        return view
