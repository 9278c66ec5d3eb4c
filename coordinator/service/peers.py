"""What the routes of devices and of workers share: the numbers in their paths, the version and the token that every
request carries, bodies that are tensors; and how OpenAPI describes them. Decides nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path

from client_sdk.protocol.names import DIGEST_HEADER, PROTOCOL_HEADER, PROTOCOL_VERSION, TENSORS_MEDIA_TYPE, Route
from coordinator.service.route import Endpoint, LeanRoute

RoundNumber = Annotated[int, Path(ge=1, description="the round's number, from 1")]
Attempt = Annotated[int, Path(ge=0, description="the round's attempt, 0 in plain rounds")]

TENSORS: dict[str, Any] = {"content": {TENSORS_MEDIA_TYPE: {"schema": {"format": "binary"}}}}
TENSORS_BODY: dict[str, Any] = {"requestBody": {"required": True, **TENSORS}}


class PeerRoute(LeanRoute):
    """A LeanRoute for devices and workers: the protocol's version must be in each request."""

    protocol_required = True


def peer_route(
    peer: Literal["device", "worker"],
    path: Route,
    method: str,
    endpoint: Endpoint,
    model: Any,
    summary: str,
    *headers: dict[str, Any],
    token: bool = True,
    tensors: bool = False,
    **more: Any,
) -> PeerRoute:
    """A route of devices or of workers. ``headers``: of its own, beside the version. ``token``: whether it needs the
    peer's. ``tensors``: its body is safetensors."""
    extra: dict[str, Any] = {"parameters": [_version(peer), *headers]}
    if tensors:
        extra |= TENSORS_BODY
    if token:
        extra["security"] = [{peer: []}]
    return PeerRoute(
        path,
        endpoint,
        methods=[method],
        response_model=model,
        summary=summary,
        tags=[f"{peer}s"],
        openapi_extra=extra,
        **more,
    )


def header(name: str, story: str, required: bool | None = None) -> dict[str, Any]:
    """A header of text, for OpenAPI."""
    said = {} if required is None else {"required": required}
    return {"name": name, "in": "header", **said, "description": story, "schema": {"type": "string"}}


def digest_header(required: bool | None = None) -> dict[str, Any]:
    """The header of the SHA-256 of a body, for OpenAPI."""
    return header(DIGEST_HEADER, "RFC 9530: `sha-256=:<base64>:` of the body.", required)


def _version(peer: str) -> dict[str, Any]:
    number = {"type": "integer", "example": PROTOCOL_VERSION}
    return {**header(PROTOCOL_HEADER, f"Protocol version of the {peer}.", required=True), "schema": number}
