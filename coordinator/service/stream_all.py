"""The route of the stream of all runs: one snapshot, then what changes, for dashboards.

It has a limit of its own, so that dashboards take no streams of a run's events from others.
"""

from __future__ import annotations

from functools import partial

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response, StreamingResponse

from client_sdk.protocol.names import Route
from coordinator.requests import Permission
from coordinator.service.core import Service
from coordinator.service.declaring import declared
from coordinator.service.describing import security
from coordinator.service.signatures import bearer
from coordinator.service.stream import Follow, LastId
from coordinator.service.stream_slots import SlottedStream
from coordinator.service.stream_viewers import Viewers

_SCHEMAS = [{"$ref": f"#/components/schemas/{name}"} for name in ("LiveSnapshot", "LivePatch")]


def live_routes(service: Service) -> list[APIRoute]:
    """The one route."""
    viewers = Viewers(service)

    async def live(request: Request, follow: Follow = True, last_event_id: LastId = None) -> Response:
        """The runs in scope, and the fleet for those who see everything: first a `snapshot`, then a `patch` whenever
        something has changed, at most once a second. A viewer that comes back in time with its `Last-Event-ID` gets
        what it has missed."""
        viewer = await viewers.join(bearer(request, Permission.VIEWER), last_event_id)
        return SlottedStream(viewers.frames(viewer, follow=follow), partial(viewers.leave, viewer))

    route = APIRoute(
        Route.STREAM,
        live,
        methods=["GET"],
        summary="Follow all runs",
        tags=["runs"],
        response_class=StreamingResponse,
        openapi_extra=security(Permission.VIEWER),
        responses={
            200: {"content": {"text/event-stream": {"schema": {"oneOf": _SCHEMAS}}}, "description": "the frames"},
        },
    )
    return [declared(route, Permission.VIEWER, scoped=True)]
