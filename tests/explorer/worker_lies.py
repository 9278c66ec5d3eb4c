"""Dishonest workers: they send what no honest worker sends, under fences that are old or not granted yet.

None of it may change a round, and none of it may affect other workers.
"""

from __future__ import annotations

import hashlib

from client_sdk.device.actions import Fetch, Send
from client_sdk.protocol.devices import Noted
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.workers import Heartbeat, Lease, LeaseEnd, LeaseRenewed, ResultReceipt, ResultReport
from tests.explorer.request import Answer
from tests.explorer.sender import RequestSender
from tests.explorer.watch import InvariantWatch
from tests.explorer.world import World

LIES = ("heartbeat", "end", "result", "next-fence", "other-bytes", "fetch")


class WorkerLies:
    """Lies with the certificate of one worker. ``model``: the checkpoint that it fetched last."""

    def __init__(self, world: World, watch: InvariantWatch, sender: RequestSender) -> None:
        self._world = world
        self._watch = watch
        self._sender = sender

    def tell(self, name: str, leases: list[Lease], model: bytes) -> None:
        """Sends something under a lease of the worker's past, or under one that was never issued. Ignores the
        answer."""
        world = self._world
        if not leases or not world.strikes("worker-lie", name):
            return
        lease = world.chance.pick("lie-lease", leases)
        lie = world.chance.pick("worker-lie", LIES)
        world.log(f"{name} lies: {lie} of round {lease.round}, fence {lease.fence}")
        under = {"attempt": lease.attempt, "fence": lease.fence}
        run = self._watch.run(lease.run)
        current = run.phase == "training" and run.fence == lease.fence
        match lie:
            case "heartbeat":
                self._send(Route.HEARTBEAT, lease, LeaseRenewed, Heartbeat(**under, step=1))
            case "end" if not current:
                self._send(Route.LEASE_END, lease, Noted, LeaseEnd(**under, failed=True, reason="A lie."))
            case "fetch":
                self._sender.send(Fetch(checkpoint=lease.checkpoint), _ignore)
            case "next-fence":
                self._send_result(model, lease, lease.fence + 1000, lease.attempt + 1)
            case "other-bytes" | "result" if not current:
                self._send_result(model, lease, lease.fence, lease.attempt)
            case _:
                pass

    def _send(self, route: Route, lease: Lease, answer: type[Message], message: Message) -> None:
        path: dict[str, str | int] = {"run": lease.run, "round": lease.round}
        self._sender.send(Send(method="POST", route=route, answers=(answer,), path=path, message=message), _ignore)

    def _send_result(self, model: bytes, lease: Lease, fence: int, attempt: int) -> None:
        if not model:
            return
        body = self._world.register.result_of("a lie", lease.round, 60 + fence, model)
        send = Send(
            method="PUT",
            route=Route.RESULT,
            answers=(ResultReceipt,),
            path={"run": lease.run, "round": lease.round, "attempt": attempt},
            message=ResultReport(fence=fence, parent=lease.checkpoint.digest, steps=1, examples=1),
            update=hashlib.sha256(body).hexdigest(),
        )
        self._sender.send(send, _ignore, body=body)


def _ignore(_: Answer) -> None:
    """A liar needs no answer."""
