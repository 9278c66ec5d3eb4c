"""Downloads of the contents of Flower runs: a device may have those of its own messages, an operator those of runs in
scope."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from client_sdk.protocol.flower import FLOWER_MEDIA_TYPE
from client_sdk.protocol.names import Digest, Route, RunId
from client_sdk.protocol.problems import problem
from coordinator.access import Operator
from coordinator.requests import Permission, check_credentials, identify
from coordinator.runtime import log_context
from coordinator.runtime.signing import Arrived
from coordinator.service.core import Service
from coordinator.service.downloads import Found, Kind, download, download_routes
from coordinator.service.limits.admission import Sender
from coordinator.service.route import LeanRoute, sender_of
from coordinator.service.signatures import arrived, note_arrival
from coordinator.store.port import DeviceRow

_CONTENT = Kind("content", FLOWER_MEDIA_TYPE, "")


def content_routes(service: Service) -> list[LeanRoute]:
    """GET and HEAD of one content."""
    coordinator = service.coordinator

    def find(run: str, digest: str, given: Arrived | str, sender: Sender) -> Found:
        credentials = check_credentials(coordinator, Permission.PEER, given, None)
        caller = service.count(identify(coordinator, Permission.PEER, credentials, run=run), sender)
        if not isinstance(caller, DeviceRow | Operator):
            raise problem("unknown-content", "the contents of Flower runs are for devices and operators")
        device = caller.device if isinstance(caller, DeviceRow) else None
        coordinator.flower.contents.require(run, digest, device)
        return Found.at(coordinator.core.blobs, digest)

    async def get(request: Request, run: RunId, digest: Digest) -> Response:
        """The records of a message or of a reply. A device gets those of its own messages."""
        log_context.known(run=run)
        note_arrival(request, Permission.PEER)
        found = await service.work(find, run, digest, arrived(request), sender_of(request))
        return download(service, request, found, digest, _CONTENT)

    return download_routes(Route.FLOWER_CONTENT, get, _CONTENT, group="flower", scoped=False)
