"""OpenAPI descriptions of the entries of the table of requests: headers, bodies that are tensors, permissions."""

from __future__ import annotations

from typing import Any

from client_sdk.protocol.names import DIGEST_HEADER, PROTOCOL_HEADER, PROTOCOL_VERSION, TENSORS_MEDIA_TYPE
from coordinator.requests import Body, Entry, Permission, Shape

TENSORS: dict[str, Any] = {"content": {TENSORS_MEDIA_TYPE: {"schema": {"format": "binary"}}}}


def extras(entry: Entry[Shape]) -> dict[str, Any]:
    """Returns the parts of an operation that FastAPI cannot derive from the endpoint."""
    extra: dict[str, Any] = {}
    if not entry.permission.of_operators:
        extra["parameters"] = [_version(entry), *_body_headers(entry)]
    extra |= security(entry.permission)
    if isinstance(entry.shape, Body):
        extra["requestBody"] = {"required": True, **TENSORS}
    elif entry.message is not None and entry.permission.of_operators:
        schema = {"$ref": f"#/components/schemas/{entry.message.__name__}"}
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return extra


def security(permission: Permission) -> dict[str, Any]:
    """Returns which credentials an operation needs, and for operators the lowest role."""
    schemes = {
        Permission.NOBODY: (),
        Permission.DEVICE: ("device",),
        Permission.WORKER: ("worker",),
        Permission.PEER: ("device", "worker", "operator"),
    }.get(permission, ("operator",))
    role = permission.role
    return {
        **({"security": [{name: []} for name in schemes]} if schemes else {}),
        **({} if role is None else {"x-role": role.text}),
    }


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
