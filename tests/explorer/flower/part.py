"""A Flower run beside the runs of a schedule: a scripted ServerApp, which dies and starts from its beginning, and three
devices of its own.

In each group every device gets a message, with a content of its own or one that all share. The ServerApp goes on when
all of them are answered or expired; after its last group it ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from client_sdk.flower.work import node_id
from client_sdk.protocol.flower import (
    CreateFlowerRun,
    EndFlowerRun,
    FlowerApp,
    FlowerMessage,
    FlowerRunView,
    PullReplies,
    Pushed,
    PushMessages,
    Replies,
)
from client_sdk.protocol.problems import Problem
from coordinator.runtime.coordinator import Coordinator
from coordinator.store.port import DeviceRow, Transaction
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken
from tests.explorer.flower.account import RUN, Account, digest_of
from tests.explorer.flower.node import ExplorerNode, alive
from tests.explorer.holders import Holder, audit_of, holder_of
from tests.explorer.network import Network
from tests.explorer.replica import Replica
from tests.explorer.world import BEGINNING, World

APP = FlowerApp(name="explorer/flower", version="1", digest="d" * 64)
GROUPS = 3
NODES = 3
AGAIN_S = 1.5
TTLS_S = (15.0, 120.0, 3600.0)
LEAVES = 0.5
"""The part of the Flower runs of which a device leaves,"""
LEAVES_S = 25.0
"""within so many seconds from their beginning."""


class FlowerPart:
    """``done``: the run has ended as its ServerApp wanted."""

    def __init__(self, world: World, network: Network, durable: Durable, replicas: Sequence[Replica]) -> None:
        self._world = world
        self._replicas = list(replicas)
        self.account = Account(world, durable)
        self.done = False
        self._life = 0
        self._group = 0
        self._contents: dict[str, str] = {}
        """Device -> a content that it alone was sent."""
        self._messages: dict[str, str] = {}
        """Device -> its message of the group."""
        self._network = network
        self._holders = [holder_of(f"flower-{number}") for number in range(NODES)]
        self.nodes = [self._node(holder) for holder in self._holders]

    def _node(self, holder: Holder) -> ExplorerNode:
        network, others = self._network, self._others
        return ExplorerNode(self._world, network, self.account, holder, APP, self._ask, self._strange, others)

    def register(self, tx: Transaction) -> None:
        """Writes the rows of its devices, which were registered before."""
        for holder in self._holders:
            certificate = self._world.authority.issue(holder).encoded.hex()
            row = DeviceRow(
                device=holder.id,
                key_id=holder.key_id,
                certificate=certificate,
                label="flower",
                examples_cap=1,
                enrolled_at=BEGINNING,
            )
            tx.insert_device(row)
            tx.insert_audit([audit_of(row)])

    def start(self) -> None:
        for node in self.nodes:
            self._world.agenda.after(self._world.chance.between("flower-start", 0.0, 3.0), node.start)
        self._world.agenda.after(0.5, self._begin, self._life)
        if self._world.chance.unit("flower-leaves") < LEAVES:
            self._world.agenda.after(self._world.chance.between("flower-leaves-at", 1.0, LEAVES_S), self._leave)

    def _leave(self) -> None:
        """A device leaves; a new one comes in its place, with an id of its own."""
        old = self.nodes[0]

        def left() -> None:
            if self.nodes[0] is not old:
                return
            self._world.log(f"{old.device} has left")
            self.account.left.add(self._messages.get(old.device, ""))
            self._holders[0] = holder_of("flower-new")
            self.nodes[0] = self._node(self._holders[0])
            certificate = self._world.authority.issue(self._holders[0]).encoded.hex()
            self._world.agenda.after(
                self._world.chance.between("flower-new", 0.1, 10.0), self.nodes[0].register, certificate
            )

        self._world.log(f"{old.device} leaves")
        old.leave(left)

    # ------------------------------------------------------------ the ServerApp

    def _later(self, do: Callable[..., None], *more: Any) -> None:
        """Goes on later; or its process dies, and starts from its beginning."""
        if self._world.strikes("device-crash", "serverapp"):
            self._world.log("the ServerApp dies, and starts from its beginning")
            self._life += 1
            self._world.agenda.after(self._world.chance.between("flower-again", 0.5, 15.0), self._begin, self._life)
            return
        self._world.agenda.after(AGAIN_S, do, self._life, *more)

    def _begin(self, life: int) -> None:
        if life != self._life:
            return
        self._group = 1
        request = CreateFlowerRun(run=RUN, app=APP, config={"groups": GROUPS})
        view = self._ask("flower-create", lambda coordinator: coordinator.flower.runs.create(request, lambda run: True))
        if isinstance(view, Problem) and view.kind == "conflict":
            self.done = True  # it had ended before it died
            return
        self._later(self._send if isinstance(view, FlowerRunView) else self._begin)

    def _send(self, life: int) -> None:
        """Uploads the contents of the group and pushes its messages."""
        if life != self._life:
            return
        bodies = {holder.id: self._content(holder.id) for holder in self._holders}
        for body in sorted(set(bodies.values())):
            stored = self._ask("flower-upload", partial(_upload, body))
            if not isinstance(stored, str):
                self._later(self._send)
                return
        ttl_s = TTLS_S[int(self._world.chance.unit(f"flower-ttl {self._group}") * len(TTLS_S))]
        messages = tuple(self._message(device, body, ttl_s) for device, body in bodies.items())
        request = PushMessages(messages=messages)
        pushed = self._ask("flower-push", lambda coordinator: coordinator.flower.messages.push(RUN, request))
        if isinstance(pushed, Pushed):
            self.account.acknowledged_push([one.message for one in messages if one.message not in pushed.nowhere])
        if isinstance(pushed, Pushed) and not pushed.nowhere:
            self._later(self._pull, [message.message for message in messages])
        else:  # also until each of its devices has polled once
            self._later(self._send)

    def _pull(self, life: int, waiting: list[str]) -> None:
        if life != self._life:
            return
        request = PullReplies(messages=tuple(waiting))
        errors = self.account.left & set(waiting)
        answer = self._ask("flower-pull", lambda coordinator: (coordinator.flower.messages.pull(RUN, request),))
        replies = answer[0] if isinstance(answer, tuple) else None
        if isinstance(answer, tuple):
            missing = errors - {reply.message for reply in (replies.replies if replies is not None else ())}
            if missing:
                raise Broken("flower", f"the device of message {min(missing)[:12]} has left, and it has no error")
        if isinstance(replies, Replies):
            for reply in replies.replies:
                self.account.pulled(reply)
            there = {reply.message for reply in replies.replies}
            waiting = [message for message in waiting if message not in there]
        if waiting:
            self._later(self._pull, waiting)
        elif self._group < GROUPS:
            self._group += 1
            self._later(self._send)
        else:
            self._later(self._end)

    def _end(self, life: int) -> None:
        if life != self._life:
            return
        request = EndFlowerRun(status="finished")
        view = self._ask("flower-end", lambda coordinator: coordinator.flower.runs.end(RUN, request))
        if isinstance(view, FlowerRunView):
            if view.status != "finished":
                raise Broken("ack-durable", f"the ServerApp has ended its run, which is {view.status}")
            self.done = True
        else:
            self._later(self._end)

    # ------------------------------------------------------------ inside

    def _content(self, device: str) -> bytes:
        """In the last group each device has a content of its own."""
        if self._group < GROUPS:
            return f"model {self._group}".encode()
        body = f"model {self._group} of {device}".encode()
        self._contents[device] = digest_of(body)
        return body

    def _message(self, device: str, body: bytes, ttl_s: float) -> FlowerMessage:
        name = self._messages[device] = digest_of(f"{self._group} {device} {digest_of(body)}".encode())
        return FlowerMessage(
            message=name,
            node=node_id(device),
            kind="train",
            group=str(self._group),
            ttl_s=ttl_s,
            content=digest_of(body),
        )

    def _strange(self, device: str) -> str | None:
        """A content that another device alone was sent."""
        return next((digest for other, digest in sorted(self._contents.items()) if other != device), None)

    def _others(self, device: str) -> list[str]:
        """The messages of this group for other devices."""
        return [message for other, message in sorted(self._messages.items()) if other != device]

    def _ask(self, event: str, work: Callable[[Coordinator], Any]) -> Any:
        """The answer of some replica. None where none answers."""
        up = alive(self._replicas)
        if not up:
            return None
        return self._world.chance.pick(f"{event}'s replica", up).attempt(event, work)


def _upload(body: bytes, coordinator: Coordinator) -> str:
    with coordinator.core.blobs.spool() as spool:
        spool.write(body)
        coordinator.flower.contents.put(RUN, spool, digest_of(body))
    return digest_of(body)
