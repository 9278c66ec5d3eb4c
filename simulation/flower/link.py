"""The port of a ServerApp's Grid in a simulation: its requests in this process."""

from __future__ import annotations

from collections.abc import Callable

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
from simulation.flower.requests import InProcess


class SimulatedLink:
    """A ``FlowerLink`` to the coordinator in this process. ``present`` is called before it is asked which nodes are
    there: they say so then, since none of them polls while it has no work. ``over`` is called with a run that has
    ended."""

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
