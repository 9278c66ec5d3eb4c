"""A device of a Flower run in the explorer: it polls, reads its message, works, and sends the reply that it has stored.

It dies and comes back: what it has stored (its replies) it sends again, the same bytes; else it works anew. A dishonest
one then sends a second reply, and a reply to the message of another device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from client_sdk.device.actions import Send
from client_sdk.protocol.devices import Registered, Registration
from client_sdk.protocol.flower import FlowerApp, FlowerPoll, FlowerTask, FlowerWait, ReplyReceipt
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem
from coordinator.runtime.coordinator import Coordinator
from tests.explorer.faults import Broken
from tests.explorer.flower.account import RUN, Account, digest_of
from tests.explorer.holders import Holder
from tests.explorer.leaving import leaving
from tests.explorer.network import Network
from tests.explorer.replica import Replica
from tests.explorer.request import Answer
from tests.explorer.sender import RequestSender
from tests.explorer.world import World

AGAIN_S = 2.0


class ExplorerNode:
    """``start`` begins its process; ``strange`` names a content that is another device's, ``others`` the messages of
    other devices."""

    def __init__(
        self,
        world: World,
        network: Network,
        account: Account,
        holder: Holder,
        app: FlowerApp,
        ask: Callable[[str, Callable[[Coordinator], Any]], Any],
        strange: Callable[[str], str | None],
        others: Callable[[str], list[str]],
    ) -> None:
        self._world = world
        self._account = account
        self._sender = RequestSender(world, network, holder)
        self.device = holder.id
        self._app = app
        self._ask = ask
        self._strange = strange
        self._others = others
        self._life = 0
        self._left = False
        self._stored: dict[str, bytes] = {}
        """Message -> the reply, on the device's disk."""
        self._worked = 0

    def leave(self, left: Callable[[], None]) -> None:
        """Its process ends, and the coordinator forgets the device; then calls ``left``."""
        self._life += 1
        self._left = True
        leaving(self._world, self._sender, left)

    def register(self, certificate: str) -> None:
        """Begins as a device that the coordinator does not know yet."""
        message = Registration(certificate=certificate, label="flower")
        send = Send(method="POST", route=Route.REGISTER, answers=(Registered,), message=message)

        def answered(answer: Answer) -> None:
            if isinstance(answer, Registered):
                self.start()
            else:
                self._world.agenda.after(AGAIN_S, self.register, certificate)

        self._sender.send(send, answered)

    def start(self) -> None:
        if self._left:
            return
        self._life += 1
        self._sender.restarted()
        self._poll(self._life)

    def _later(self, delay_s: float, do: Callable[..., None], life: int, *more: Any) -> None:
        """Does it later, unless the process dies first."""
        if self._world.strikes("device-crash", f"{self.device} flower"):
            self._world.log(f"{self.device} dies, and comes back")
            self._life += 1
            self._world.agenda.after(self._world.chance.between("flower-back", 0.5, 20.0), self.start)
            return
        self._world.agenda.after(delay_s, do, life, *more)

    def _poll(self, life: int) -> None:
        if life != self._life:
            return
        hold_s = self._world.chance.pick("flower-hold", (0.0, 5.0, 25.0))
        poll = FlowerPoll(apps=(self._app,), hold_s=hold_s)
        send = Send(method="POST", route=Route.FLOWER_TASKS, answers=(FlowerTask, FlowerWait), message=poll)
        self._sender.send(send, lambda answer: self._polled(life, answer), hold_s=hold_s)

    def _polled(self, life: int, answer: Answer) -> None:
        if life != self._life:
            return
        if not isinstance(answer, FlowerTask):
            self._later(AGAIN_S, self._poll, life)
            return
        self._account.given(self.device, answer)
        slow = self._world.strikes("device-slow", f"{self.device} flower")
        work_s = self._world.chance.between("flower-work", *((10.0, 40.0) if slow else (0.1, 8.0)))
        self._later(work_s, self._work, life, answer)

    def _work(self, life: int, task: FlowerTask) -> None:
        """Reads the content, trains, and stores the reply before it is sent."""
        if life != self._life:
            return
        if task.message not in self._stored:
            content = self._read(task.content)
            if not isinstance(content, bytes):
                self._later(AGAIN_S, self._poll, life)
                return
            if digest_of(content) != task.content:
                raise Broken("whole-blob", f"{self.device} was given other bytes than {task.content[:12]}")
            self._worked += 1
            self._stored[task.message] = f"{self.device} {task.message} {self._worked}".encode()
        strange = self._strange(self.device)
        if strange is not None and isinstance(self._read(strange), bytes):
            raise Broken("permission", f"{self.device} read the content of another device")
        self._later(0.01, self._send, life, task)

    def _read(self, digest: str) -> Any:
        def read(coordinator: Coordinator) -> bytes:
            coordinator.flower.contents.require(RUN, digest, self.device)
            with coordinator.core.blobs.open(digest) as file:
                return file.read()

        return self._ask("flower-content", read)

    def _send(self, life: int, task: FlowerTask) -> None:
        if life != self._life:
            return
        body = self._stored[task.message]
        path: dict[str, str | int] = {"run": RUN, "message": task.message}
        send = Send(method="PUT", route=Route.FLOWER_REPLY, answers=(ReplyReceipt,), path=path, update=digest_of(body))
        self._sender.send(send, lambda answer: self._sent(life, task, answer), body=body)

    def _sent(self, life: int, task: FlowerTask, answer: Answer) -> None:
        digest = digest_of(self._stored[task.message])
        if isinstance(answer, ReplyReceipt):
            self._account.acknowledged_reply(answer, digest)
            self._lie(task.message)
        elif isinstance(answer, Problem) and answer.kind == "duplicate":
            raise Broken("receipt", f"{self.device} has sent one reply to {task.message[:12]}, and got: {answer}")
        elif isinstance(answer, Problem) and answer.kind == "late":
            self._account.refused_as_late(task.message)
        elif life == self._life:
            self._later(AGAIN_S, self._send, life, task)
            return
        if life == self._life:
            self._later(0.05, self._poll, life)

    def _lie(self, answered: str) -> None:
        """Sends replies that must not count: other bytes for a message that is answered, and to another's message."""
        if not self._world.strikes("lie", f"{self.device} flower"):
            return
        body = f"{self.device} lies".encode()
        for message in (answered, *self._others(self.device)[:1]):
            path: dict[str, str | int] = {"run": RUN, "message": message}
            send = Send(
                method="PUT", route=Route.FLOWER_REPLY, answers=(ReplyReceipt,), path=path, update=digest_of(body)
            )
            self._sender.send(send, self._require_refused, body=body)

    def _require_refused(self, answer: Answer) -> None:
        if isinstance(answer, ReplyReceipt):
            raise Broken("counts-once", f"a reply that {self.device} made up got a receipt: {answer}")


def alive(replicas: list[Replica]) -> list[Replica]:
    return [replica for replica in replicas if replica.up and not replica.busy()]
