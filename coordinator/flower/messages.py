"""Flower's messages on the way out and replies on the way in: from and to what the protocol has."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

from flwr.app import Error, Message, Metadata
from pydantic import ValidationError

from client_sdk.flower import flwr_private
from client_sdk.flower.records import RecordsError, decode
from client_sdk.flower.work import ErrorCode
from client_sdk.protocol.flower import PUSH_LIMIT, TTL_MAX_S, FlowerError, FlowerMessage, FlowerReply, PushMessages
from client_sdk.protocol.names import message_of

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
