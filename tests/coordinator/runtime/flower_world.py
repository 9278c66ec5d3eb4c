"""A coordinator in memory with Flower runs: a scripted ServerApp, and devices that a test controls. No flwr."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from client_sdk.flower.work import node_id
from client_sdk.protocol.flower import (
    CreateFlowerRun,
    EndFlowerRun,
    FlowerApp,
    FlowerMessage,
    FlowerPoll,
    FlowerReply,
    FlowerRunView,
    FlowerTask,
    FlowerWait,
    PullReplies,
    Pushed,
    PushMessages,
    ReplyReceipt,
)
from coordinator.runtime.flower.flower_runs import FlowerRuns
from tests.coordinator.world import World

APP = FlowerApp(name="acme/vision", version="1.0.0", digest="d" * 64)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class FlowerWorld(World):
    """``devices`` registered devices; the run ``vision`` where a test creates it."""

    @property
    def flower(self) -> FlowerRuns:
        return self.coordinator.flower

    def device(self, number: int) -> str:
        return self.rows[number].device

    def node(self, number: int) -> int:
        return node_id(self.device(number))

    # ------------------------------------------------------------ the ServerApp

    def begin(self, run: str = "vision", /, **fields: Any) -> FlowerRunView:
        request = CreateFlowerRun(run=run, app=fields.pop("app", APP), **fields)
        return self.flower.runs.create(request, lambda name: True)

    def upload(self, content: bytes, run: str = "vision") -> str:
        with self.coordinator.core.blobs.spool() as spool:
            spool.write(content)
            digest = digest_of(content)
            self.flower.contents.put(run, spool, digest)
        return digest

    def message(self, number: int, content: bytes = b"model", /, **fields: Any) -> FlowerMessage:
        """A message to a device; its id follows from device, group and content."""
        given: dict[str, Any] = {"kind": "train", "group": "1", "ttl_s": 600.0}
        given |= fields
        name = digest_of(f"{number} {given['group']} {given['kind']} {digest_of(content)}".encode())
        given.setdefault("message", name)
        return FlowerMessage(node=self.node(number), content=digest_of(content), **given)

    def push(self, *messages: FlowerMessage, run: str = "vision") -> Pushed:
        return self.flower.messages.push(run, PushMessages(messages=messages))

    def pull(self, *messages: FlowerMessage, run: str = "vision") -> list[FlowerReply]:
        found = self.flower.messages.pull(run, PullReplies(messages=tuple(one.message for one in messages)))
        return [] if found is None else list(found.replies)

    def end(self, status: Any = "finished", run: str = "vision") -> FlowerRunView:
        return self.flower.runs.end(run, EndFlowerRun(status=status))

    def view(self, run: str = "vision") -> FlowerRunView:
        return self.flower.runs.view(run)

    # ------------------------------------------------------------ devices

    def poll(self, number: int, apps: Sequence[FlowerApp] = (APP,), **fields: Any) -> FlowerTask | FlowerWait | None:
        return self.flower.nodes.poll(self.device(number), FlowerPoll(apps=tuple(apps), **fields))

    def task(self, number: int, **fields: Any) -> FlowerTask:
        found = self.poll(number, **fields)
        assert isinstance(found, FlowerTask)
        return found

    def reply(self, number: int, message: FlowerMessage, content: bytes, run: str = "vision") -> ReplyReceipt:
        """Sends a reply as the table does: the limit first, then the body."""
        limit = self.flower.replies.limit(self.device(number), run, message.message)
        assert len(content) <= limit
        with self.coordinator.core.blobs.spool(limit) as spool:
            spool.write(content)
            return self.flower.replies.reply(self.device(number), run, message.message, spool)
