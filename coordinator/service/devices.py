"""The devices' routes: enrol, check in, say *started*, send the update or withdraw, ask what became of it.

Each is a few lines between the wire and ``Coordinator``, which decides everything. Needs the protocol's version in each
request and, after enrolment, the device's token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fastapi import Request
from starlette.responses import Response

from client_sdk.protocol.devices import (
    Assignment,
    CheckIn,
    Enrolled,
    EnrolRequest,
    Noted,
    Outcome,
    Receipt,
    Started,
    Wait,
    Withdrawal,
)
from client_sdk.protocol.names import Route, RunId
from coordinator.service.core import Service
from coordinator.service.peers import Attempt, PeerRoute, RoundNumber, digest_header, peer_route
from coordinator.service.polls import Polls
from coordinator.service.route import bearer, json_response
from coordinator.service.uploads import Uploads

if TYPE_CHECKING:
    from coordinator.blobs.port import Spool
    from coordinator.store.port import DeviceRow

T = TypeVar("T")


def device_routes(service: Service, uploads: Uploads) -> list[PeerRoute]:
    """All routes that devices use, except the checkpoints, which operators read too."""
    coordinator = service.coordinator
    polls = Polls(service)

    async def as_device(request: Request, task: Callable[[DeviceRow], T]) -> T:
        token = bearer(request)
        return await service.work(lambda: task(coordinator.devices.authenticate(token)))

    async def enrol(request: Request, body: EnrolRequest) -> Response:
        """A new device shows its public key, the enrolment token and a signature, and gets its id and its token.

        Sent again with the same key it gives the same id and a fresh token.
        """
        return json_response(await service.work(coordinator.devices.enrol, body), 201)

    async def check_in(request: Request, body: CheckIn) -> Response:
        """ "I am here and could train now." Held open until there is an assignment, or until `hold_s` has passed.

        The same check-in again gives the same assignment, so a lost answer costs nothing.
        """
        return json_response(await polls.check_in(bearer(request), body, request.receive))

    async def started(request: Request, run: RunId, round: RoundNumber, body: Started) -> Response:
        """The device has the checkpoint and begins to train. For people only; losing it loses nothing."""
        await as_device(request, lambda device: coordinator.devices.started(device.device, run, round, body.attempt))
        return json_response(Noted())

    async def put_update(request: Request, run: RunId, round: RoundNumber, attempt: Attempt) -> Response:
        """The device's update: safetensors with an UpdateReport in its metadata. Streamed, never held in memory.

        Acknowledged means durable. The same bytes again give the same receipt; other bytes are refused (*duplicate*):
        the first update stands. `Content-Digest` is checked when it is sent.
        """

        def admit(device: DeviceRow) -> tuple[DeviceRow, int]:
            return device, coordinator.devices.update_limit(device.device, run, round, attempt)

        device, limit = await as_device(request, admit)
        limit = min(limit, service.settings.max_update_bytes)

        def finish(spool: Spool) -> Receipt:
            return coordinator.devices.report(device, run, round, attempt, spool)

        return json_response(await uploads.receive(request, limit, finish))

    async def withdrawn(request: Request, run: RunId, round: RoundNumber, body: Withdrawal) -> Response:
        """The device will not report for this round. It may check in again at once."""
        await as_device(
            request, lambda device: coordinator.devices.withdraw(device.device, run, round, body.attempt, body.reason)
        )
        return json_response(Noted())

    async def outcome(request: Request, run: RunId, round: RoundNumber) -> Response:
        """What became of this device's part in a round: counted, refused, dropped, withdrawn, or still pending."""
        return json_response(
            await as_device(request, lambda device: coordinator.devices.outcome(device.device, run, round))
        )

    route = partial(peer_route, "device")
    return [
        route(Route.ENROL, "POST", enrol, Enrolled, "Enrol a device", token=False, status_code=201),
        route(Route.CHECK_IN, "POST", check_in, Assignment | Wait, "Check in and wait for work"),
        route(Route.STARTED, "POST", started, Noted, "Say that training begins"),
        route(Route.UPDATE, "PUT", put_update, Receipt, "Send an update", digest_header(), tensors=True),
        route(Route.WITHDRAWN, "POST", withdrawn, Noted, "Withdraw from a round"),
        route(Route.OUTCOME, "GET", outcome, Outcome, "Ask what became of an update"),
    ]
