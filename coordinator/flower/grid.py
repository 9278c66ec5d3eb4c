"""Flower's Grid over a coordinator: messages that are durable before ``push_messages`` returns, and their replies.

A ServerApp and Flower's strategies call it, also from many threads. Replies are handed over in the order in which their
messages were pushed. Where the coordinator is away the Grid waits; after a restart of the ServerApp the same messages
have the same ids (``MessageIds``), so replies that are durable are served again.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock, RLock
from typing import Self

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid
from pydantic import ValidationError

from client_sdk.flower import flwr_private
from client_sdk.flower.records import Encoded, RecordsError, decode, sealed, views_of
from client_sdk.flower.work import ErrorCode
from client_sdk.http.flower import FlowerOperator
from client_sdk.protocol.flower import (
    PUSH_LIMIT,
    TTL_MAX_S,
    FlowerError,
    FlowerMessage,
    FlowerNodes,
    FlowerReply,
    FlowerRunView,
    PullReplies,
    PushMessages,
)
from client_sdk.protocol.names import message_of
from coordinator.flower.patience import Patience, StillAway
from coordinator.flower.tally import MessagesPushed, NodesAwaited, OnServerAppEvent, ReplyTaken

# ------------------------------------------------------------ messages
# Flower's messages on the way out and replies on the way in: from and to what the protocol has.


ROUND_KEY = "server-round"
"""In the configuration of a message: the round, as Flower's strategies write it."""
PUSH_BYTES = 128 << 10
"""Of the JSON of one push: half of what a coordinator reads by default."""
_NAMES = {"node": "dst_node_id", "kind": "message_type", "group": "group_id", "ttl_s": "ttl"}
"""Flower's names of what the protocol has."""
UNREADABLE = 0
"""Flower's ``ErrorCode.UNKNOWN``: of a reply whose content nobody can read."""


@dataclass(frozen=True)
class SentMessage:
    """A message that was pushed: what its reply's metadata say of it."""

    message: str
    node: int
    kind: str
    group: str
    """The group that the ServerApp has set."""
    shown_group: str
    """The group that the coordinator shows."""
    expires_at: float
    """By this machine's clock."""
    known: bool = False
    """Whether an earlier start of the ServerApp had pushed it."""


def outgoing(message: Message, content: str, ids: MessageIds) -> tuple[FlowerMessage, SentMessage]:
    """The message as the protocol has it; its id is set in its metadata. ``content``: the digest.

    Raises ValueError for a reply, since the Grid pushes messages to nodes, and for metadata that no message can have.
    """
    metadata = message.metadata
    if metadata.reply_to_message_id:
        raise ValueError("A ServerApp cannot push a reply: create a new message to the node.")
    group = metadata.group_id or _round_of(message)
    name = ids.name(metadata.dst_node_id, metadata.message_type, group, content)
    try:
        pushed = FlowerMessage(
            message=name,
            node=metadata.dst_node_id,
            kind=metadata.message_type,
            group=group,
            grouped=bool(metadata.group_id),
            ttl_s=min(metadata.ttl, TTL_MAX_S),
            content=content,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = _NAMES.get(str(first["loc"][0]), str(first["loc"][0]))
        raise ValueError(
            f"A message cannot be pushed: its {what} is {first['input']!r:.60}; {message_of(first)}"
        ) from None
    flwr_private.set_message_id(message, name)
    expires_at = metadata.created_at + metadata.ttl
    return pushed, SentMessage(name, pushed.node, pushed.kind, metadata.group_id, group, expires_at)


def pushes(messages: Iterable[FlowerMessage]) -> Iterator[PushMessages]:
    """The messages in their order, in requests of at most ``PUSH_LIMIT`` messages and some ``PUSH_BYTES`` bytes."""
    page, size = list[FlowerMessage](), 0
    for message in messages:
        length = len(message.model_dump_json().encode())
        if page and (len(page) == PUSH_LIMIT or size + length > PUSH_BYTES):
            yield PushMessages(messages=tuple(page))
            page, size = [], 0
        page.append(message)
        size += length
    if page:
        yield PushMessages(messages=tuple(page))


def incoming(
    reply: FlowerReply, origin: SentMessage, run: int, fetch: Callable[[str], bytes | bytearray | memoryview]
) -> Message:
    """The reply as Flower has it. ``run``: its number; ``fetch``: gets a content by its digest.

    A content that cannot be read becomes an error: a device may send what it likes.
    """
    metadata = Metadata(
        run_id=run,
        message_id=f"reply-{origin.message}",
        src_node_id=origin.node,
        dst_node_id=flwr_private.SERVER_NODE,
        reply_to_message_id=origin.message,
        group_id=origin.group,
        created_at=reply.at,
        ttl=max(origin.expires_at - reply.at, 1.0),
        message_type=origin.kind,
    )
    if reply.error is not None or reply.content is None:
        error = Error(reply.error.code, reply.error.reason) if reply.error is not None else Error(UNREADABLE, "")
        return flwr_private.received_message(error, metadata)
    try:
        return flwr_private.received_message(decode(fetch(reply.content)), metadata)
    except RecordsError as unreadable:
        return flwr_private.received_message(Error(UNREADABLE, f"The reply cannot be read: {unreadable}"), metadata)


def nobody(sent: SentMessage) -> FlowerReply:
    """In place of a reply to a message whose node does not exist: Flower's error of a node that is away for good."""
    reason = f"there is no device with the node id {sent.node} (any more)"
    error = FlowerError(code=ErrorCode.NODE_UNAVAILABLE, reason=reason)
    return FlowerReply(message=sent.message, node=sent.node, at=time.time(), error=error)


def groups_of(messages: Iterable[FlowerMessage]) -> dict[tuple[str, str], set[str]]:
    """The ids by kind and group, in the order of the messages."""
    groups: dict[tuple[str, str], set[str]] = {}
    for message in messages:
        groups.setdefault((message.kind, message.group), set()).add(message.message)
    return groups


def _round_of(message: Message) -> str:
    """The round that a strategy of Flower has written into the configuration; empty where there is none. Strategies of
    the message API set no group id."""
    for record in message.content.config_records.values():
        if isinstance(found := record.get(ROUND_KEY), int):
            return str(found)
    return ""


@dataclass
class MessageIds:
    """Names messages in the order in which they are pushed: by hashes of what was sent before and of the message, so
    that the same start names the same ones.

    A group is messages of one kind and group id, one after another. A message's id is a hash of

    - the ids of all earlier groups,
    - the id of the message before it in its group, to the same node,
    - its node, kind, group and content.

    A ServerApp that is started again therefore names the same messages for as long as it sends the same contents in the
    same order, and the coordinator has their replies. From the first different group on all ids differ. The order
    between the nodes of a group is left out: older apps send to each node from a thread of its own.
    """

    before: str = ""
    """Over the ids of all groups but this one."""
    group: tuple[str, str] = ("", "")
    """Kind and group id."""
    last: dict[int, str] = field(default_factory=dict)
    """Of this group: node -> the id of the newest message to it."""
    ids: list[str] = field(default_factory=list)
    """Of this group."""

    def name(self, node: int, kind: str, group: str, content: str) -> str:
        """The id of the next message. ``content``: its digest."""
        if (kind, group) != self.group:
            if self.ids:
                self.before = _hash(self.before, *sorted(self.ids))
            self.group, self.last, self.ids = (kind, group), {}, []
        found = _hash(self.before, self.last.get(node, ""), str(node), kind, group, content)
        self.last[node] = found
        self.ids.append(found)
        return found

    def draft(self) -> Self:
        """A copy, which names messages that may not be pushed after all."""
        return type(self)(self.before, self.group, dict(self.last), list(self.ids))


def _hash(*parts: str) -> str:
    """SHA-256 of texts, in hexadecimal; no other texts have the same bytes."""
    digest = hashlib.sha256(b"quorate flower message")
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


# ------------------------------------------------------------ grid


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
        link: FlowerOperator,
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
