"""A coordinator in memory that answers the Grid: what it promises is what the port says, and it can be away."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from itertools import count

from flwr.app import RecordDict

from client_sdk.flower.records import decode, encode
from client_sdk.http.flower import FlowerContent
from client_sdk.protocol.flower import (
    CreateFlowerRun,
    EndFlowerRun,
    FlowerApp,
    FlowerError,
    FlowerMessage,
    FlowerNode,
    FlowerNodes,
    FlowerReply,
    FlowerRunView,
    FlowerState,
    PullReplies,
    Pushed,
    PushMessages,
    Replies,
)
from client_sdk.protocol.problems import problem

APP = FlowerApp(name="tests/tiny", version="1.2.0", digest="a" * 64)
Answer = Callable[[FlowerMessage, RecordDict], RecordDict | FlowerError | None]
"""What a node answers; None: nothing yet."""


def echo(message: FlowerMessage, records: RecordDict) -> RecordDict:
    return records


class MemoryLink:
    """One coordinator with some nodes, which answer when their messages arrive."""

    def __init__(self, nodes: int = 3, answer: Answer = echo) -> None:
        self.answer = answer
        self.there = [FlowerNode(node=100 + i, device=f"device-{i}") for i in range(nodes)]
        self.ineligible: dict[str, int] = {}
        self.contents: dict[str, bytes] = {}
        self.messages: dict[str, FlowerMessage] = {}
        self.replies: dict[str, FlowerReply] = {}
        self.uploads: list[str] = []
        self.pulls: list[PullReplies] = []
        self.runs: dict[str, FlowerRunView] = {}
        self.refusals = count(0, 0)
        """As long as it yields a number above 0, requests are refused: ``busy``."""
        self.changed = threading.Condition()

    def create(self, request: CreateFlowerRun) -> FlowerRunView:
        self._there()
        made = FlowerRunView(
            run=request.run, app=request.app, config=request.config, status="running", number=77, created_at=1.0,
            max_reply=request.max_reply or 1 << 20,
        )  # fmt: skip
        return self._counted(self.runs.setdefault(request.run, made))

    def view(self, run: str) -> FlowerRunView:
        self._there()
        return self._counted(self.runs[run])

    def _counted(self, view: FlowerRunView) -> FlowerRunView:
        errors = sum(reply.error is not None for reply in self.replies.values())
        return view.changed(messages=len(self.messages), replies=len(self.replies) - errors, errors=errors)

    def nodes(self, run: str) -> FlowerNodes:
        self._there()
        return FlowerNodes(nodes=tuple(self.there), ineligible=self.ineligible)

    def upload(self, run: str, content: FlowerContent) -> None:
        self._there()
        whole = b"".join(content.parts())
        assert (hashlib.sha256(whole).hexdigest(), len(whole)) == (content.digest, content.length)
        with self.changed:
            self.uploads.append(content.digest)
            self.contents[content.digest] = whole

    def download(self, run: str, digest: str) -> bytes:
        self._there()
        return self.contents[digest]

    def push(self, run: str, request: PushMessages) -> Pushed:
        self._there()
        with self.changed:
            known = tuple(one.message for one in request.messages if one.message in self.messages)
            nodes = {node.node for node in self.there}
            nowhere = tuple(one.message for one in request.messages if one.node not in nodes)
            for one in request.messages:
                assert one.content in self.contents
                if one.message not in nowhere:
                    self.messages.setdefault(one.message, one)
            self.settle()
        return Pushed(known=known, nowhere=nowhere)

    def settle(self) -> None:
        """Have nodes answer what they can answer now."""
        with self.changed:
            for one in self.messages.values():
                if one.message not in self.replies:
                    self._settle(one)
            self.changed.notify_all()

    def _settle(self, one: FlowerMessage) -> None:
        found = self.answer(one, decode(self.contents[one.content]))
        at = time.time()
        if isinstance(found, FlowerError):
            self.replies[one.message] = FlowerReply(message=one.message, node=one.node, at=at, error=found)
        elif found is not None:
            content = encode(found)
            self.contents[content.digest] = b"".join(content.parts())
            self.replies[one.message] = FlowerReply(
                message=one.message, node=one.node, at=at, content=content.digest, bytes=content.length
            )

    def pull(self, run: str, request: PullReplies) -> Replies:
        self._there()
        with self.changed:
            self.pulls.append(request)
            ready = lambda: any(one in self.replies for one in request.messages)  # noqa: E731
            self.changed.wait_for(ready, timeout=request.hold_s)
            found = [self.replies[one] for one in self.messages if one in self.replies and one in request.messages]
            return Replies(replies=tuple(found))

    def save_state(self, run: str, state: FlowerState) -> None:
        self._there()
        assert state.content in self.contents
        self.runs[run] = self.runs[run].changed(state=state.content)

    def end(self, run: str, request: EndFlowerRun) -> FlowerRunView:
        self._there()
        self.runs[run] = self.runs[run].changed(status=request.status, reason=request.reason)
        return self._counted(self.runs[run])

    def _there(self) -> None:
        if next(self.refusals) > 0:
            raise problem("busy", "No coordinator answers at http://x.")
