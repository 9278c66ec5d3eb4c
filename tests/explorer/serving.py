"""Serves a request of a device or a worker by a replica, over the table of requests.

The explorer serves the table of the product. An update, or a result, takes two calls with the transfer of the body
between them: one for its limit, one for the stored body. A held request is let in again each time it is looked at. The
answer is a message, a problem document, or None where the connection broke.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, assert_never

from client_sdk.device.actions import Fetch, Send
from client_sdk.protocol.devices import CheckIn
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem, ProblemError, problem
from coordinator import requests
from coordinator.requests import (
    Body,
    Caller,
    Credentials,
    Direct,
    Entry,
    Held,
    NotYet,
    Permission,
    Shape,
    check_credentials,
    identify,
)
from coordinator.requests.entry import step_name
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.identities import Arrived, SignedBy
from coordinator.store.port import DeviceRow
from tests.explorer import admission, draws, holds
from tests.explorer.replica import Replica
from tests.explorer.request import Respond, SentRequest
from tests.explorer.world import World

Answered = Callable[[Any], None]
TOGETHER = 0.15
"""The part of the check-ins that are served together with those that arrive at the same replica"""
GATHER_S = 0.3
"""within so many seconds."""
URL = "http://explorer"
"""The public URL of all replicas, for which requests are signed."""


def serve(world: World, replica: Replica, request: SentRequest, respond: Respond) -> None:
    """Lets the replica serve one delivery of a request."""
    send = request.send

    def answer(result: Any) -> None:
        if isinstance(result, Problem) and result.kind == "wrong-clock":
            request.date = formatdate(replica.now(), usegmt=True)
        if result is not None:
            replica.watch.answered(request, result, replica.disturbed, replica.now())
        respond(result)

    if replica.app is not None:
        replica.app.serve(request, respond)
        return
    if isinstance(send, Fetch):
        at = replica.now()
        answer(replica.attempt(request.event, lambda coordinator: _read(replica, coordinator, request, send, at)))
        return
    entry = request.table.find(send.method, send.route)
    match entry.shape:
        case Direct():
            call, at = entry.shape.call, replica.now()
            answer(
                replica.attempt(
                    entry.name,
                    lambda coordinator: _request_of(replica, coordinator, entry, request, send, at)[0].call(
                        call, coordinator
                    ),
                )
            )
        case Held():
            _held(replica, request, entry, entry.shape, send, answer)
        case Body():
            _upload(world, replica, request, entry, entry.shape, send, answer)
        case _:
            assert_never(entry.shape)


def _request_of(
    replica: Replica, coordinator: Coordinator, entry: Entry[Shape], request: SentRequest, send: Send, at: float
) -> tuple[requests.Request, Credentials]:
    """Returns the request with its caller, who may be served, and who has signed it. ``at``: when it arrived."""
    credentials = _signed(replica, coordinator, entry.permission, request, send.method, send.route, at, send.message)
    caller = entry.caller(coordinator, credentials, send.path)
    admission.served(replica, request, caller)
    return requests.Request(entry, caller, send.message, send.path), credentials


def _signed(
    replica: Replica,
    coordinator: Coordinator,
    permission: Permission,
    request: SentRequest,
    method: str,
    route: str,
    at: float,
    message: Any = None,
) -> Credentials:
    """Who has signed the request, which the replica lets in."""
    arrived = Arrived(signature=request.signature, method=method, uri=URL + route, at=at)
    credentials = check_credentials(coordinator, permission, arrived, message)
    replica.admitted.add(replica, request, at)
    return credentials


def _held(
    replica: Replica, request: SentRequest, entry: Entry[Shape], shape: Held, send: Send, answer: Answered
) -> None:
    at = replica.now()
    is_other = all(one[0].holder is not request.holder for one in replica.gathered)  # of a device the last one counts
    if entry.route == Route.CHECK_IN and is_other and replica.world.chance.unit("together") < TOGETHER:
        replica.gathered.append((request, entry, shape, send, answer, at))
        if len(replica.gathered) == 1:
            replica.world.agenda.after(GATHER_S, _together, replica)
        return

    def first(coordinator: Coordinator) -> tuple[requests.Request, SignedBy, float, Any]:
        found = _admitted(replica, coordinator, entry, request, send, at)
        return (*found, found[0].call(shape.first, coordinator))

    result = replica.attempt(entry.name, first)
    _hold(replica, request, entry, shape, send, answer, result, replica.disturbed)


def _admitted(
    replica: Replica, coordinator: Coordinator, entry: Entry[Shape], request: SentRequest, send: Send, at: float
) -> tuple[requests.Request, SignedBy, float]:
    """A request that may be held: with who has signed it, and for how long the certificate is valid."""
    admitted_request, signed = _request_of(replica, coordinator, entry, request, send, at)
    assert isinstance(signed, SignedBy)  # only devices and workers are held
    valid_s = coordinator.identities.valid_s(signed) if replica.world.authority.short else math.inf
    return admitted_request, signed, valid_s


def _together(replica: Replica) -> None:
    """Serves the requests that have been gathered: all are entered before the first one is settled."""
    if replica.busy():
        replica.world.agenda.after(GATHER_S, _together, replica)
        return
    gathered, replica.gathered = replica.gathered, []
    if not gathered:
        return
    entry = gathered[0][1]

    def first(coordinator: Coordinator) -> list[Any]:
        found: list[Any] = []
        for request, _, _, send, _, at in gathered:
            try:
                found.append(_admitted(replica, coordinator, entry, request, send, at))
            except ProblemError as error:
                found.append(error.problem)
        served = [one for one in found if not isinstance(one, Problem)]
        entered = [one[0].begin(entry.shape.main, coordinator) for one in served]
        answers = iter([one.settle() for one in entered])
        return [one if isinstance(one, Problem) else (*one, next(answers)) for one in found]

    results = replica.attempt(entry.name, first)
    disturbed = replica.disturbed
    for place, (request, _, shape, send, answer, _) in enumerate(gathered):
        result = results[place] if isinstance(results, list) else results
        _hold(replica, request, entry, shape, send, answer, result, disturbed)


def _hold(
    replica: Replica,
    request: SentRequest,
    entry: Entry[Shape],
    shape: Held,
    send: Send,
    answer: Answered,
    result: Any,
    disturbed: bool,
) -> None:
    """Holds a request whose first call has had this result, where that is no answer. ``disturbed``: by that call."""
    if not isinstance(result, tuple):
        answer(result)
        return
    admitted_request, credentials, valid_s, found = result
    if found is not None and not isinstance(found, NotYet):
        answer(found)
        return
    caller, message = admitted_request.caller, send.message
    named = (found.hold,) if isinstance(found, NotYet) else ()
    if isinstance(message, CheckIn) and isinstance(caller, DeviceRow) and not disturbed:
        draws.checked_in(replica.durable, caller.device, message, replica.now(), replica.world.settings.waiting_s)
        replica.watch.phases.pool_grew(list(replica.watch.runs.values()))

    def again(coordinator: Coordinator) -> Any:
        admission.served(replica, request, entry.caller(coordinator, credentials, send.path))
        return admitted_request.call(shape.again, coordinator)

    def over(coordinator: Coordinator) -> Any:
        return admitted_request.call(shape.expired, coordinator)

    def gone(handler: Callable[..., Any]) -> holds.Call:
        def leave(coordinator: Coordinator) -> None:
            places = [draws.waiting_row(replica.durable, hold.device) for hold in named]
            place = replica.world.interruptions
            admitted_request.call(handler, coordinator, *named)
            for hold, before in zip(named, places, strict=True):
                draws.left(replica.durable, hold.device, hold.expires)
                if place == replica.world.interruptions:
                    draws.newer_stays(replica.durable, hold.device, hold.expires, before)

        return step_name(handler), leave

    replica.holds.hold(
        holds.HeldRequest(
            shape.peer(admitted_request.caller, admitted_request.message, **admitted_request.path),
            shape.key(admitted_request.caller, admitted_request.message, **admitted_request.path),
            message,
            admitted_request.message.hold_s,
            valid_s,
            request.gone,
            answer,
            look=(step_name(shape.again), again),
            over=(step_name(shape.expired), over),
            on_gone=None if shape.gone is None or not named else gone(shape.gone),
        )
    )


def _upload(
    world: World, replica: Replica, request: SentRequest, entry: Entry[Shape], shape: Body, send: Send, answer: Answered
) -> None:
    """Serves a request with a body: its limit, its transfer, and the stored body."""
    at = replica.now()

    body, expected = request.body, hashlib.sha256(request.body).hexdigest()

    def admit(coordinator: Coordinator) -> Any:
        admitted_request, _ = _request_of(replica, coordinator, entry, request, send, at)
        known = None if shape.again is None else admitted_request.call(shape.again, coordinator, expected)
        return (admitted_request, admitted_request.call(shape.limit, coordinator)) if known is None else known

    admitted = replica.attempt(step_name(shape.limit), admit)
    if not isinstance(admitted, tuple):
        answer(admitted)
        return
    admitted_request, limit = admitted
    life = replica.life
    truncated = world.strikes("truncate", "body")
    if truncated:
        body = body[: world.chance.below("cut", len(body))]
    elif world.strikes("corrupt", "body"):
        place = world.chance.below("flip", len(body))
        body = body[:place] + bytes([body[place] ^ 0x55]) + body[place + 1 :]

    def finish() -> None:
        if life != replica.life or not replica.up:
            answer(None)
            return
        if replica.busy():
            world.agenda.after(0.5, finish)
            return
        answer(replica.attempt(entry.name, receive))

    def receive(coordinator: Coordinator) -> Any:
        with coordinator.core.blobs.spool(limit + shape.room) as spool:
            middle = len(body) // 2
            for part in (body[:middle], body[middle:]):
                if part:
                    spool.write(part)
            if truncated:
                raise problem("truncated", "The body ended early.")
            if spool.digest != expected:
                raise problem("digest-mismatch", "The bytes received are not those announced.")
            return admitted_request.call(shape.stored, coordinator, spool)

    world.agenda.after(world.chance.between("upload", 0.005, 0.5), finish)


def _read(replica: Replica, coordinator: Coordinator, request: SentRequest, fetch: Fetch, at: float) -> bytes:
    """Returns a checkpoint to a device or a worker that may be served."""
    credentials = _signed(replica, coordinator, Permission.PEER, request, "GET", Route.CHECKPOINT, at)
    caller: Caller = identify(coordinator, Permission.PEER, credentials)
    admission.served(replica, request, caller)
    coordinator.operators.require_checkpoint(fetch.checkpoint.digest)
    with coordinator.core.blobs.open(fetch.checkpoint.digest) as file:
        return file.read()
