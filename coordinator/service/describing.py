"""OpenAPI descriptions of the entries of the table of requests: headers, bodies that are tensors, permissions."""

from __future__ import annotations

from typing import Any

from client_sdk.protocol.names import DIGEST_HEADER, PROTOCOL_HEADER, PROTOCOL_VERSION, TENSORS_MEDIA_TYPE
from coordinator.requests import Body, Entry, Permission, Shape

TENSORS: dict[str, Any] = {"content": {TENSORS_MEDIA_TYPE: {"schema": {"format": "binary"}}}}


def extras(entry: Entry[Shape]) -> dict[str, Any]:
    """Returns the parts of an operation that FastAPI cannot derive from the endpoint."""
    extra: dict[str, Any] = {}
    if entry.permission is not Permission.OPERATOR:
        extra["parameters"] = [_version(entry), *_body_headers(entry)]
    if entry.permission.needs_token:
        extra["security"] = [{entry.permission.value: []}]
    if isinstance(entry.shape, Body):
        extra["requestBody"] = {"required": True, **TENSORS}
    elif entry.message is not None and entry.permission is Permission.OPERATOR:
        schema = {"$ref": f"#/components/schemas/{entry.message.__name__}"}
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return extra


def _body_headers(entry: Entry[Shape]) -> list[dict[str, Any]]:
    if not isinstance(entry.shape, Body):
        return []
    digest = _header(DIGEST_HEADER, "RFC 9530: `sha-256=:<base64>:` of the body.")
    beside = entry.shape.beside
    if beside is None:
        return [digest]
    return [{**digest, "required": False}, {**_header(beside.header, beside.about), "required": True}]


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


def _version(entry: Entry[Shape]) -> dict[str, Any]:
    description = f"Protocol version of the {entry.group.removesuffix('s')}."
    number = {"type": "integer", "example": PROTOCOL_VERSION}
    return {**_header(PROTOCOL_HEADER, description), "required": True, "schema": number}
