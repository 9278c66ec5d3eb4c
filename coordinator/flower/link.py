"""The port between the Grid and a coordinator: the requests of a ServerApp, for one run after another.

``client_sdk.http.flower.FlowerOperator`` speaks to a coordinator over HTTP; the simulator answers in the same process.
It is the entry point ``simulation`` of the group ``quorate.flower``: ``(app, nodes, data=...)`` gives the context of a
link whose nodes run the app's ClientApp.
Each request may be sent again at any time. All raise ProblemError; a problem of the kind ``busy`` (nobody answers, or
not now) is what the Grid waits out. They are called from many threads.
"""

from __future__ import annotations

from typing import Protocol

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


class FlowerLink(Protocol):
    """What a ServerApp asks a coordinator for."""

    def create(self, request: CreateFlowerRun) -> FlowerRunView:
        """Create the run, or find it where it has not ended."""

    def view(self, run: str) -> FlowerRunView:
        """The run as it is now."""

    def nodes(self, run: str) -> FlowerNodes:
        """The devices that are there."""

    def upload(self, run: str, content: FlowerContent) -> None:
        """Store a content; it is durable when this returns."""

    def download(self, run: str, digest: str) -> bytes | bytearray | memoryview:
        """A content of the run, whole and checked against its digest: one copy in memory, or a map of a file."""

    def push(self, run: str, request: PushMessages) -> Pushed:
        """Push messages whose contents are stored; they are durable when this returns."""

    def pull(self, run: str, request: PullReplies) -> Replies:
        """The replies that there are; waits up to ``hold_s`` while there is none."""

    def save_state(self, run: str, state: FlowerState) -> None:
        """Name the content that has the ServerApp's Context.state."""

    def end(self, run: str, request: EndFlowerRun) -> FlowerRunView:
        """End the run."""
