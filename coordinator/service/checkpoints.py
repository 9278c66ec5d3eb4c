"""Downloads of checkpoints: a device or a worker may have the checkpoint of any run, an operator those of runs in
scope."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from client_sdk.protocol.names import TENSORS_MEDIA_TYPE, Digest, Route
from coordinator.access import Operator
from coordinator.requests import Permission, check_credentials, identify
from coordinator.runtime.signing import Arrived
from coordinator.service.core import Service
from coordinator.service.downloads import Found, Kind, download, download_routes
from coordinator.service.limits.admission import Sender
from coordinator.service.route import LeanRoute, sender_of
from coordinator.service.signatures import arrived, note_arrival

_CHECKPOINT = Kind("checkpoint", TENSORS_MEDIA_TYPE, ".safetensors")


def checkpoint_routes(service: Service) -> list[LeanRoute]:
    """GET and HEAD of one checkpoint."""
    coordinator = service.coordinator

    def find(digest: str, given: Arrived | str, sender: Sender) -> Found:
        credentials = check_credentials(coordinator, Permission.PEER, given, None)
        caller = service.count(identify(coordinator, Permission.PEER, credentials, scoped=True), sender)
        sees = caller.sees if isinstance(caller, Operator) and not caller.sees_everything else None
        coordinator.operators.require_checkpoint(digest, sees)
        return Found.at(coordinator.core.blobs, digest)

    async def get(request: Request, digest: Digest) -> Response:
        """A checkpoint's safetensors file. Its name is the SHA-256 of its bytes, so it never changes."""
        note_arrival(request, Permission.PEER)
        found = await service.work(find, digest, arrived(request), sender_of(request))
        return download(service, request, found, digest, _CHECKPOINT)

    return download_routes(Route.CHECKPOINT, get, _CHECKPOINT, group="checkpoints", scoped=True)
