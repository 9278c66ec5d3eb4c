"""What was acknowledged of a Flower run, held against what is durable.

An acknowledged push and an acknowledged reply are never lost, a reply counts once, and a device gets its own messages
alone, one at a time.
"""

from __future__ import annotations

import hashlib

from client_sdk.flower.work import node_id
from client_sdk.protocol.flower import FlowerReply, FlowerTask, ReplyReceipt
from coordinator.store.flower_rows import FlowerMessageRow
from coordinator.verify.database import flower_files, flower_rows
from coordinator.verify.files import HashedBlobs
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken
from tests.explorer.world import World

RUN = "flower"
SOON_S = 5.0
"""Seconds before the end of a message's time in which an answer may be late by the network."""


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Account:
    """``pushed``: the messages whose push was acknowledged; ``replied``: digest of the acknowledged reply to each."""

    def __init__(self, world: World, durable: Durable) -> None:
        self._world = world
        self._durable = durable
        self.pushed: set[str] = set()
        self.replied: dict[str, str] = {}
        self.left: set[str] = set()
        """The newest message of each device that has left: it is answered, or gets an error."""
        self._given: dict[str, str] = {}
        """Device -> the message that it was given last."""
        self._clocks_jump = not world.possible.isdisjoint(("clock-ahead", "clock-back")) or world.shape.replicas > 1

    def acknowledged_push(self, messages: list[str]) -> None:
        self.pushed |= set(messages)
        self.look()

    def acknowledged_reply(self, receipt: ReplyReceipt, sent: str) -> None:
        if receipt.digest != sent:
            raise Broken("receipt", f"a reply {sent[:12]} got the receipt of {receipt.digest}")
        self.replied[receipt.message] = sent
        self.look()
        row = self._durable.store.flower_message(RUN, receipt.message)
        if row is not None and row.replied_at is not None and row.replied_at >= row.expires_at:
            raise Broken("flower", f"a reply to {receipt.message[:12]} counts that came after the message's time")

    def look(self) -> None:
        """What was acknowledged is durable; contents until a day after the end of the run, which a clock may skip."""
        store = self._durable.store
        run = store.flower_run(RUN)
        dropped = run is not None and run.dropped_at is not None
        found = {row.message: row for row in store.flower_messages_among(RUN, self.pushed | self.replied.keys())}
        lost = self.pushed - found.keys()
        if lost:
            raise Broken("ack-durable", f"message {min(lost)[:12]} was acknowledged, and is not there")
        for message, digest in self.replied.items():
            row = found.get(message)
            if row is None or row.reply != digest or not (dropped or self._durable.has(digest)):
                raise Broken("ack-durable", f"the reply to {message[:12]} was acknowledged; there is {row}")

    def pulled(self, reply: FlowerReply) -> None:
        """What a ServerApp gets is what the device was told that counts."""
        known = self.replied.get(reply.message)
        if known is not None and reply.content != known:
            raise Broken("counts-once", f"the reply to {reply.message[:12]} is {reply.content}, and {known} counts")

    def given(self, device: str, task: FlowerTask) -> None:
        """A device gets its own messages, and one at a time."""
        row = self._durable.store.flower_message(RUN, task.message)
        if row is None or row.device != device or task.node != node_id(device):
            raise Broken("offer", f"{device} was given message {task.message[:12]}, which is {row}")
        if task.expires_in_s <= 0 and not self._world.interruptions:
            raise Broken("offer", f"{device} was given message {task.message[:12]} after its time")
        before = self._given.get(device, task.message)
        self._given[device] = task.message
        if before != task.message and not self._clocks_jump and self._waits(before):
            raise Broken("offer", f"{device} was given {task.message[:12]} while {before[:12]} waits for its answer")

    def refused_as_late(self, message: str) -> None:
        """Only an answer after the message's time, or after the run, is late."""
        if not self._clocks_jump and self._waits(message):
            raise Broken("receipt", f"an answer to {message[:12]} was late, and it waits for one")

    def _waits(self, message: str) -> bool:
        row: FlowerMessageRow | None = self._durable.store.flower_message(RUN, message)
        run = self._durable.store.flower_run(RUN)
        if row is None or run is None or run.over:
            return False
        return not row.answered and self._world.agenda.now + SOON_S < row.expires_at and self._old(row)

    def _old(self, row: FlowerMessageRow) -> bool:
        """Not offered anew since: a message that expired is a new one for its device."""
        return row.delivered_at is not None

    def finish(self) -> None:
        """At the end: ``quorate verify`` finds nothing."""
        self.look()
        store = self._durable.store
        with store.reading() as reader:
            found = list(flower_rows(reader))
        for wrong in (*found, *flower_files(store, HashedBlobs(self._durable.blobs))):
            raise Broken("flower", f"verify: {wrong.what}")
