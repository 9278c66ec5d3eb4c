"""Flower's Grid over a coordinator: messages that are durable before ``push_messages`` returns, and their replies.

A ServerApp and Flower's strategies call it, also from many threads. Replies are handed over in the order in which their
messages were pushed. Where the coordinator is away the Grid waits; after a restart of the ServerApp the same messages
have the same ids (``MessageIds``), so replies that are durable are served again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock, RLock

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from client_sdk.flower import flwr_private
from client_sdk.flower.records import Encoded, sealed, views_of
from client_sdk.protocol.flower import PUSH_LIMIT, FlowerMessage, FlowerNodes, FlowerRunView, PullReplies
from coordinator.flower.link import FlowerLink
from coordinator.flower.messages import MessageIds, SentMessage, groups_of, incoming, nobody, outgoing, pushes
from coordinator.flower.patience import Patience, StillAway
from coordinator.flower.tally import MessagesPushed, NodesAwaited, OnServerAppEvent, ReplyTaken

HOLD_S = 25.0
"""How long one request for replies is held."""
REST_S = 1.0
"""Pause after a request that was not held and found nothing: another ServerApp of the same run asks for the same
replies, and a coordinator holds the newer request of the two."""


@dataclass(frozen=True)
class Quorum:
    """When ``send_and_receive`` returns before all replies are there."""

    share: float
    """Of the messages that it sent: how many must have a reply."""
    grace_s: float = 0.0
    """Seconds that it still waits then."""

    def needs(self, messages: int) -> int:
        """How many replies of so many messages."""
        return max(1, math.ceil(self.share * messages - 1e-9))


class QuorateGrid(Grid):
    """The Grid of one run."""

    def __init__(
        self,
        link: FlowerLink,
        run: FlowerRunView,
        patience: Patience,
        on_event: OnServerAppEvent,
        *,
        quorum: Quorum | None = None,
        longest_wait_s: float = math.inf,
        after_push: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``longest_wait_s``: for replies, where the ServerApp would wait longer. ``after_push``: called when messages
        are durable, before ``push_messages`` returns."""
        self._link, self._view, self._patience, self._tell = link, run, patience, on_event
        self._quorum, self._longest_wait_s = quorum, longest_wait_s
        self._after_push, self._clock = after_push, clock
        self._contents = OutgoingContents(lambda content: patience.ask(partial(link.upload, run.run, content)))
        self._ids = MessageIds()
        self._sent: dict[str, SentMessage] = {}
        """Messages whose replies have not been handed over."""
        self._nowhere = set[str]()
        """Messages to nodes that do not exist, which the coordinator has not got: each is answered here."""
        self._waiting = WaitingForNodes(on_event, clock)
        self._lock = RLock()
        self._run = flwr_private.run_of(run.number, run.app.name, run.app.version, run.app.digest, run.config)

    def set_run(self, run: flwr_private.Run) -> None:
        """Refuse any other run: a Grid has one for its life."""
        if run.run_id != self._view.number:
            raise ValueError(f"This Grid is of the run {self._view.number}, and no other can be set.")

    @property
    def run(self) -> flwr_private.Run:
        """What Flower knows of the run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a node; ``Message`` itself does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """The ids of the devices that are there and can serve the run, in their order."""
        nodes = self._patience.ask(partial(self._link.nodes, self._view.run))
        self._waiting.asked(nodes)
        return [node.node for node in nodes.nodes]

    def get_nodes(self) -> list[flwr_private.NodeInfo]:
        """The nodes of ``get_node_ids``, as messages of Flower's own."""
        return [flwr_private.node_info(node) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Make messages durable; returns their ids in their order. Raises RecordsError for what cannot travel."""
        with self._lock, self._waiting.busy():
            drafted, pushed = self._ids.draft(), list[tuple[FlowerMessage, SentMessage]]()
            for message, content in self._contents.stored(messages):
                pushed.append(outgoing(message, content, drafted))
            known = set[str]()
            for request in pushes(one for one, _ in pushed):
                answer = self._patience.ask(partial(self._link.push, self._view.run, request))
                known.update(answer.known)
                self._nowhere.update(answer.nowhere)
            self._ids = drafted
            self._sent.update((one.message, replace(sent, known=one.message in known)) for one, sent in pushed)
            for (kind, group), ids in groups_of(one for one, _ in pushed).items():
                self._tell(MessagesPushed(kind, group, len(ids), len((known | self._nowhere) & ids)))
            if pushed:
                self._after_push()
            return [one.message for one, _ in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that there are now, each handed over once, in the order of ``MessageIds``."""
        wanted = list(dict.fromkeys(message_ids))
        found: dict[str, Message] = {}
        for start in range(0, len(wanted), PUSH_LIMIT):
            found |= self._pull(wanted[start : start + PUSH_LIMIT], 0.0)
        return [found[message] for message in wanted if message in found]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push messages and wait for their replies, at most ``timeout`` seconds; in the order of the messages."""
        order = self.push_messages(messages)
        del messages
        self._contents.release()
        missing, found = list(order), dict[str, Message]()
        until = self._clock() + min(self._longest_wait_s, math.inf if timeout is None else timeout)
        needed = math.inf if self._quorum is None else self._quorum.needs(len(order))
        with self._waiting.busy():
            while missing:
                if self._quorum is not None and len(found) >= needed:
                    until, needed = min(until, self._clock() + self._quorum.grace_s), math.inf
                left = until - self._clock()
                batch, rest = missing[:PUSH_LIMIT], missing[PUSH_LIMIT:]
                hold_s, began = min(max(left, 0.0), REST_S if rest else HOLD_S), self._clock()
                try:
                    taken = self._pull(batch, hold_s, until)
                except StillAway:
                    break
                found |= taken
                if not taken and self._clock() - began < min(hold_s, REST_S) / 2:
                    self._patience.rest(min(hold_s, REST_S))
                missing = [message for message in rest + batch if message not in found]
                if left <= 0:
                    break
        return [found[message] for message in order if message in found]

    def _pull(self, wanted: Sequence[str], hold_s: float, until: float = math.inf) -> dict[str, Message]:
        """The replies that there are, by the ids of their messages. StillAway where nobody answers ``until`` then."""
        asked = tuple(message for message in wanted if message in self._sent)
        if not asked:
            return {}
        found: dict[str, Message] = {}
        replies = [nobody(self._sent[message]) for message in asked if message in self._nowhere]
        pushed = tuple(message for message in asked if message not in self._nowhere)
        if pushed:
            request = PullReplies(messages=pushed, hold_s=0.0 if replies else hold_s)
            replies += self._patience.ask(partial(self._link.pull, self._view.run, request), until).replies
        for reply in replies:
            origin = self._sent.get(reply.message)
            if origin is None:  # another thread was faster
                continue
            try:
                message = incoming(reply, origin, self._view.number, partial(self._fetch, until))
            except StillAway:
                if not found:
                    raise
                break  # those that were taken are handed over
            if self._sent.pop(reply.message, None) is not None:
                found[reply.message] = message
                reason = (message.error.reason or "no reason") if message.has_error() else None
                self._tell(ReplyTaken(origin.kind, origin.shown_group, reason, origin.known))
        return found

    def _fetch(self, until: float, digest: str) -> bytes | bytearray | memoryview:
        return self._patience.ask(partial(self._link.download, self._view.run, digest), until)


# ------------------------------------------------------------ a ServerApp that waits for nodes

CALLS = 4
AFTER_S = 3.0
"""So many calls with the same nodes, and so many seconds, without a message in between."""


class WaitingForNodes:
    """Tells once that the ServerApp waits for more devices than there are, which it does by asking for the nodes again
    and again, and once more when their number has changed."""

    def __init__(self, tell: OnServerAppEvent, clock: Callable[[], float]) -> None:
        self._tell, self._clock = tell, clock
        self._lock = Lock()
        self._sending = 0
        self._calls, self._found, self._since = 0, 0, 0.0
        self._told: int | None = None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While it sends messages or waits for replies, the ServerApp does not wait for nodes."""
        with self._lock:
            self._sending += 1
        try:
            yield
        finally:
            with self._lock:
                self._sending -= 1
                self._calls, self._told = 0, None

    def asked(self, nodes: FlowerNodes) -> None:
        """The ServerApp has asked for the nodes."""
        with self._lock:
            if self._sending:
                return
            found = len(nodes.nodes)
            if not self._calls or found != self._found:
                self._calls, self._found, self._since = 0, found, self._clock()
            self._calls += 1
            waits = self._calls >= CALLS and self._clock() - self._since >= AFTER_S
            if not waits or found == self._told:
                return
            self._told = found
        self._tell(NodesAwaited(found, nodes.ineligible))


STORED_S = 1800.0
"""Seconds for which an uploaded content is surely stored: the coordinator keeps one that no message needs for an
hour."""


class OutgoingContents:
    """Contents on their way to a coordinator: each distinct one is hashed and uploaded once. A strategy sends the same
    one to many nodes; older ones build it anew for each."""

    def __init__(self, upload: Callable[[Encoded], None], clock: Callable[[], float] = time.time) -> None:
        """``upload``: makes a content durable. ``clock``: seconds, also of a machine that slept."""
        self._upload = upload
        self._clock = clock
        self._uploaded: dict[str, float] = {}
        self._newest: tuple[object, Encoded] | None = None
        self._lock = RLock()

    def store(self, records: RecordDict) -> str:
        """Upload the content, where that has not been done lately; return its digest. Raises RecordsError."""
        with self._lock:
            content = self._encode(records)
            began = self._clock()
            if not 0 <= began - self._uploaded.get(content.digest, -STORED_S) < STORED_S:
                self._upload(content)
                self._uploaded[content.digest] = began
            return content.digest

    def stored(self, messages: Iterable[Message]) -> Iterator[tuple[Message, str]]:
        """Each message with the digest of its content, which is durable then. Raises RecordsError."""
        final = isinstance(messages, list | tuple)  # an iterator may change a content between two messages
        before: tuple[RecordDict, str] | None = None
        for message in messages:
            if before is None or not final or message.content is not before[0]:
                before = (message.content, self.store(message.content))
            yield message, before[1]

    def release(self) -> None:
        """Forget the newest content's arrays, so that their memory can be freed."""
        with self._lock:
            self._newest = None

    def _encode(self, records: RecordDict) -> Encoded:
        """The content; from the one before it where both have the same arrays: ``bytes`` objects, which never change
        and live as long as they are kept here."""
        views = views_of(records)
        key = (bytes(views[0]), tuple((id(view.obj), len(view)) for view in views[1:]))
        if self._newest is None or self._newest[0] != key:
            self._newest = None
            self._newest = (key, sealed(views))
        return self._newest[1]
