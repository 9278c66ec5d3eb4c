"""The requests of a Flower ServerApp to a coordinator: runs, nodes, contents, messages and replies.

A content streams: sent part by part from where it is, received into one buffer.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol, TypeVar

import httpx2

from client_sdk.http.exchange import ANSWER_S
from client_sdk.http.operator_transport import OperatorTransport
from client_sdk.protocol.devices import Noted
from client_sdk.protocol.flower import (
    FLOWER_MEDIA_TYPE,
    CreateFlowerRun,
    EndFlowerRun,
    FlowerNode,
    FlowerNodes,
    FlowerRunView,
    FlowerState,
    PullReplies,
    Pushed,
    PushMessages,
    Replies,
)
from client_sdk.protocol.names import DIGEST_HEADER, Message, Route, content_digest
from client_sdk.protocol.problems import problem

T = TypeVar("T")
_SENT_S = 600.0
"""Seconds in which one part of a long body is sent, or its answer comes: a disk may be slow to make 2 GB durable."""


class FlowerContent(Protocol):
    """The bytes of a message, which can be sent more than once."""

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes, in hexadecimal."""

    @property
    def length(self) -> int:
        """Of the bytes."""

    def parts(self) -> Iterator[memoryview]:
        """The bytes in parts of some MiB; once more with each call."""


class FlowerOperator:
    """All requests of a ServerApp, by an operator's key with the run in its scope: the link between a Grid and its
    coordinator, which the simulator overrides. Safe from many threads. Each may be sent again at any time. Raises
    ProblemError; of the kind ``busy``, which a Grid waits out, where nobody answers."""

    def __init__(self, transport: OperatorTransport) -> None:
        self._transport = transport

    def create(self, request: CreateFlowerRun) -> FlowerRunView:
        """Create the run, or find it where it goes on. ProblemError ``conflict`` where the run of this name differs,
        or has ended."""
        return self._ask("POST", Route.FLOWER_RUNS, FlowerRunView, request)

    def view(self, run: str) -> FlowerRunView:
        """The run as it is now."""
        return self._ask("GET", Route.FLOWER_RUN, FlowerRunView, run=run)

    def nodes(self, run: str) -> FlowerNodes:
        """The devices that are there, and why others cannot serve the run. Read page by page."""
        nodes: list[FlowerNode] = []
        ineligible: Counter[str] = Counter()
        after = 0
        while True:
            page = self._ask("GET", Route.FLOWER_NODES, FlowerNodes, query={"after": after}, run=run)
            nodes += page.nodes
            ineligible.update(page.ineligible)
            if not page.next:
                return FlowerNodes(nodes=tuple(nodes), ineligible=dict(ineligible))
            after = int(page.next)

    def upload(self, run: str, content: FlowerContent) -> None:
        """Store a content; it is durable when this returns."""
        url = Route.FLOWER_CONTENT.format(run=run, digest=content.digest)
        extra = {
            "Content-Type": FLOWER_MEDIA_TYPE,
            "Content-Length": str(content.length),
            DIGEST_HEADER: content_digest(content.digest),
        }
        timeout = httpx2.Timeout(connect=5.0, read=_SENT_S, write=_SENT_S, pool=30.0)
        self._transport.send("PUT", url, content=_as_bytes(content.parts()), extra=extra, timeout=timeout)

    def download(self, run: str, digest: str) -> bytearray | memoryview:
        """A content of the run in one buffer, checked against its digest: ProblemError ``digest-mismatch``."""
        url, sha256 = Route.FLOWER_CONTENT.format(run=run, digest=digest), hashlib.sha256()
        try:
            with self._transport.streamed(url, {"Accept-Encoding": "identity"}) as response:
                length = int(response.headers.get("content-length", "0"))
                buffer, at = bytearray(length), 0
                for chunk in response.iter_bytes():
                    sha256.update(chunk)
                    buffer[at : at + len(chunk)] = chunk
                    at += len(chunk)
        except httpx2.HTTPError as error:
            raise self._transport.silent(error) from error
        if sha256.hexdigest() != digest:
            raise problem("digest-mismatch", f"The content received is not {digest[:12]}; ask again.")
        return buffer

    def push(self, run: str, request: PushMessages) -> Pushed:
        """Push messages whose contents are stored; all are durable when this returns, or none is. ProblemError
        ``conflict`` where a content is not stored (any more). ``Pushed.nowhere``: those whose node does not exist."""
        return self._ask("POST", Route.FLOWER_MESSAGES, Pushed, request, run=run)

    def pull(self, run: str, request: PullReplies) -> Replies:
        """The replies that there are; waits up to ``hold_s`` while there is none."""
        timeout = httpx2.Timeout(connect=5.0, read=request.hold_s + ANSWER_S, write=30.0, pool=30.0)
        return self._ask("POST", Route.FLOWER_REPLIES, Replies, request, timeout, run=run)

    def save_state(self, run: str, state: FlowerState) -> None:
        """Name the content that has the ServerApp's Context.state."""
        self._ask("PUT", Route.FLOWER_STATE, Noted, state, run=run)

    def end(self, run: str, request: EndFlowerRun) -> FlowerRunView:
        """End the run."""
        return self._ask("POST", Route.FLOWER_END, FlowerRunView, request, run=run)

    def _ask(
        self,
        method: str,
        route: Route,
        answer: type[T],
        message: Message | None = None,
        timeout: httpx2.Timeout | None = None,
        query: Mapping[str, int] | None = None,
        **path: str,
    ) -> T:
        params = None if query is None else {name: str(value) for name, value in query.items()}
        return self._transport.ask(method, route.format(**path), answer, message, params=params, timeout=timeout)


def _as_bytes(parts: Iterator[memoryview]) -> Iterator[bytes]:
    """The transport takes bytes: a copy of one part at a time."""
    for part in parts:
        yield bytes(part)
