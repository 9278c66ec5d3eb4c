"""A request of a device or a worker at the other end: which calls of the Coordinator it is, as HTTP's edge makes them.

An update, or a result, takes two calls with the body's journey between them: whether it is worth reading, and then
the whole of it. The answer is a message, a problem document, or None where the connection broke. Knows routes;
decides nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from client_sdk.device.actions import Fetch, Send
from client_sdk.protocol.devices import Noted, Receipt
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import problem
from client_sdk.protocol.workers import ResultReceipt
from coordinator.blobs import Spool
from coordinator.runtime.coordinator import Coordinator
from coordinator.store.port import DeviceRow, WorkerRow
from simulation.explorer.holds import Held
from simulation.explorer.replica import Replica
from simulation.explorer.request import Request, Respond
from simulation.explorer.world import World

R = TypeVar("R", DeviceRow, WorkerRow)


def serve(world: World, replica: Replica, request: Request, respond: Respond) -> None:
    """Has the replica serve one delivery of a request."""
    send, event = request.send, request.event
    token = send.token or ""

    def answer(work: Callable[[Any, DeviceRow], Any]) -> None:
        tell(replica.attempt(event, lambda coordinator: work(coordinator, coordinator.devices.authenticate(token))))

    def by_worker(work: Callable[[Any, WorkerRow], Any]) -> None:
        tell(replica.attempt(event, lambda coordinator: work(coordinator, coordinator.workers.authenticate(token))))

    def tell(result: Any) -> None:
        if result is not None:
            replica.watch.answered(request, result, replica.disturbed)
        respond(result)

    if isinstance(send, Fetch):
        tell(replica.attempt(event, lambda coordinator: _read(coordinator, send.checkpoint.digest)))
        return
    path: dict[str, Any] = send.path
    message: Any = send.message
    match send.route:
        case Route.ENROL:
            tell(replica.attempt(event, lambda coordinator: coordinator.devices.enrol(message)))
        case Route.CHECK_IN:
            _check_in(replica, request, token, tell)
        case Route.STARTED:
            answer(lambda c, d: c.devices.started(d.device, path["run"], path["round"], message.attempt) or Noted())
        case Route.WITHDRAWN:
            answer(
                lambda c, d: (
                    c.devices.withdraw(d.device, path["run"], path["round"], message.attempt, message.reason) or Noted()
                )
            )
        case Route.OUTCOME:
            answer(lambda c, d: c.devices.outcome(d.device, path["run"], path["round"]))
        case Route.UPDATE:
            _update(world, replica, request, token, tell)
        case Route.LEASES:
            _poll(replica, request, token, tell)
        case Route.HEARTBEAT:
            by_worker(lambda c, w: c.workers.heartbeat(w, path["run"], path["round"], message))
        case Route.LEASE_END:
            by_worker(lambda c, w: c.workers.end_lease(w, path["run"], path["round"], message) or Noted())
        case Route.RESULT:
            _result(world, replica, request, token, tell)
        case _:
            raise ValueError(f"the explorer serves no {send.route}")


def _check_in(replica: Replica, request: Request, token: str, tell: Callable[[Any], None]) -> None:
    assert isinstance(request.send, Send)  # noqa: S101 - narrowed for the type checker
    message: Any = request.send.message

    def call(coordinator: Coordinator) -> Any:
        device = coordinator.devices.authenticate(token)
        return coordinator.devices.check_in(device, message) or device

    result = replica.attempt("check-in", call)
    if isinstance(result, DeviceRow):
        name = result.device
        replica.holds.hold(
            Held(
                name,
                f"device:{name}",
                message.hold_s,
                request.gone,
                tell,
                look=("assignment", lambda coordinator: coordinator.devices.assignment(name)),
                over=("hold-over", lambda coordinator: coordinator.devices.hold_over(name, message)),
                leave=("leave", lambda coordinator: coordinator.devices.leave(name)),
            )
        )
    else:
        tell(result)


def _poll(replica: Replica, request: Request, token: str, tell: Callable[[Any], None]) -> None:
    assert isinstance(request.send, Send)  # noqa: S101 - narrowed for the type checker
    message: Any = request.send.message

    def call(coordinator: Coordinator) -> Any:
        worker = coordinator.workers.authenticate(token)
        return coordinator.workers.poll(worker, message) or worker

    result = replica.attempt("poll", call)
    if not isinstance(result, WorkerRow):
        tell(result)
        return
    worker = result
    replica.holds.hold(
        Held(
            f"{worker.worker} {message.instance}",
            "workers",
            message.hold_s,
            request.gone,
            tell,
            look=("lease", lambda coordinator: coordinator.workers.lease(worker, message)),
            over=("poll-over", lambda coordinator: coordinator.workers.hold_over(worker, message)),
        )
    )


def _update(world: World, replica: Replica, request: Request, token: str, tell: Callable[[Any], None]) -> None:
    assert isinstance(request.send, Send)  # noqa: S101 - narrowed for the type checker
    path: dict[str, Any] = request.send.path
    where = (path["run"], path["round"], path["attempt"])

    def admit(coordinator: Coordinator) -> tuple[DeviceRow, int]:
        device = coordinator.devices.authenticate(token)
        return device, coordinator.devices.update_limit(device.device, *where)

    def take(coordinator: Coordinator, device: DeviceRow, spool: Spool) -> Receipt:
        return coordinator.devices.report(device, *where, spool)

    _upload(world, replica, request, ("admit", admit), ("update", take), tell)


def _result(world: World, replica: Replica, request: Request, token: str, tell: Callable[[Any], None]) -> None:
    assert isinstance(request.send, Send)  # noqa: S101 - narrowed for the type checker
    path: dict[str, Any] = request.send.path
    report: Any = request.send.message
    where = (path["run"], path["round"], path["attempt"], report)

    def admit(coordinator: Coordinator) -> tuple[WorkerRow, int]:
        worker = coordinator.workers.authenticate(token)
        return worker, coordinator.workers.result_limit(worker, *where)

    def take(coordinator: Coordinator, worker: WorkerRow, spool: Spool) -> ResultReceipt:
        return coordinator.workers.result(worker, *where, spool)

    _upload(world, replica, request, ("admit-result", admit), ("result", take), tell)


def _upload(
    world: World,
    replica: Replica,
    request: Request,
    admit: tuple[str, Callable[[Coordinator], tuple[R, int]]],
    take: tuple[str, Callable[[Coordinator, R, Spool], Message]],
    tell: Callable[[Any], None],
) -> None:
    """A body that is worth reading, its journey, and what is made of it."""
    admitted = replica.attempt(*admit)
    if not isinstance(admitted, tuple):
        tell(admitted)
        return
    peer, limit = admitted
    life = replica.life
    body, expected = request.body, hashlib.sha256(request.body).hexdigest()
    truncated = world.strikes("truncate", "body")
    if truncated:
        body = body[: world.chance.below("cut", len(body))]
    elif world.strikes("corrupt", "body"):
        place = world.chance.below("flip", len(body))
        body = body[:place] + bytes([body[place] ^ 0x55]) + body[place + 1 :]

    def finish() -> None:
        if life != replica.life or not replica.up:
            tell(None)
            return
        if replica.busy():
            world.agenda.after(0.5, finish)
            return
        tell(replica.attempt(take[0], receive))

    def receive(coordinator: Coordinator) -> Message:
        with coordinator.core.blobs.spool(limit) as spool:
            middle = len(body) // 2
            for part in (body[:middle], body[middle:]):
                if part:
                    spool.write(part)
            if truncated:
                raise problem("truncated", "The body ended early.")
            if spool.digest != expected:
                raise problem("digest-mismatch", "The bytes received are not those announced.")
            return take[1](coordinator, peer, spool)

    world.agenda.after(world.chance.between("upload", 0.005, 0.5), finish)


def _read(coordinator: Coordinator, digest: str) -> bytes:
    return coordinator.operators.checkpoint_file(digest).read_bytes()
