"""What each route of the service says of itself: who may ask for it, and what OpenAPI cannot derive from its endpoint
(headers, bodies that are tensors, credentials).

A route that does not declare who may ask for it stops the service from being made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from starlette.routing import BaseRoute

from client_sdk.protocol.access import REQUEST_HEADER, REQUEST_VALUE
from client_sdk.protocol.authority import REVOCATIONS_MEDIA_TYPE
from client_sdk.protocol.names import DIGEST_HEADER, NEXT_HEADER, PROTOCOL_HEADER, PROTOCOL_VERSION
from coordinator.requests import Body, Entry, Permission, Shape

R = TypeVar("R", bound=BaseRoute)
_NAME = "quorate_declaration"


class Declaration(NamedTuple):
    permission: Permission
    scoped: bool
    """Whether a request that names no run shows and takes only what is in the caller's scope."""


class UndeclaredRoute(Exception):
    """A route does not say who may ask for it."""


def declared(route: R, permission: Permission, *, scoped: bool = False) -> R:
    """Returns the route, which declares its permission."""
    setattr(route, _NAME, Declaration(permission, scoped))
    return route


def declaration(route: BaseRoute) -> Declaration:
    """Returns what the route declares. UndeclaredRoute where it declares nothing."""
    found = getattr(route, _NAME, None)
    if not isinstance(found, Declaration):
        raise UndeclaredRoute(f"{getattr(route, 'path', route)} does not declare who may ask for it")
    return found


def require_declarations(routes: Iterable[BaseRoute]) -> None:
    """UndeclaredRoute where one of them declares nothing."""
    for route in routes:
        declaration(route)


# ------------------------------------------------------------ in OpenAPI


PAGED: dict[str, Any] = {
    NEXT_HEADER: {
        "description": "The rest of the list comes `after` this; without it there is no more. A page may be short, or "
        "empty, and have it: one request looks at so many rows, and no more.",
        "schema": {"type": "string"},
    }
}
BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
REVOCATIONS: dict[str, Any] = {"content": {REVOCATIONS_MEDIA_TYPE: BINARY}}

SCHEMES: dict[str, dict[str, str]] = {
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "Signature",
        "description": "An HTTP message signature (RFC 9421) by the Ed25519 key of a device or worker that the "
        "authority has certified, with the headers Signature-Input and Content-Digest, at most 60 s long, with a "
        "nonce.",
    },
    "operator": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key (`quorate keys create`), or a token of the issuer that this coordinator trusts. "
        "`x-role` of an operation is the lowest role that may do it.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-quorate",
        "description": "The session of a browser that has logged in (`POST /v1/sessions`); without TLS the cookie is "
        f"`quorate-<port>`. Requests other than GET need the header `{REQUEST_HEADER}: {REQUEST_VALUE}` too, and come "
        "from a page of this coordinator.",
    },
}


def extras(entry: Entry[Shape]) -> dict[str, Any]:
    """Returns the parts of an operation that FastAPI cannot derive from the endpoint."""
    extra: dict[str, Any] = {}
    if entry.permission.of_peers:
        extra["parameters"] = [_version(entry), *_body_headers(entry)]
    elif entry.session == "opens":
        extra["parameters"] = [_OWN_PAGE]
    extra |= security(entry.permission)
    if isinstance(entry.shape, Body):
        extra["requestBody"] = {"required": True, "content": {entry.shape.media: BINARY}}
    return extra


def security(permission: Permission) -> dict[str, Any]:
    """Returns which credentials an operation needs, and for operators the lowest role."""
    schemes = {
        Permission.NOBODY: (),
        Permission.CERTIFIED: ("signature",),
        Permission.DEVICE: ("signature",),
        Permission.WORKER: ("signature",),
        Permission.PEER: ("signature", "operator", "session"),
    }.get(permission, ("operator", "session"))
    role = permission.role
    return {
        **({"security": [{name: []} for name in schemes]} if schemes else {}),
        **({} if role is None else {"x-role": role.text}),
    }


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


_OWN_PAGE: dict[str, Any] = {
    **_header(REQUEST_HEADER, "Which no page of another origin can send."),
    "required": True,
    "schema": {"type": "string", "enum": [REQUEST_VALUE]},
}


def _body_headers(entry: Entry[Shape]) -> list[dict[str, Any]]:
    if not isinstance(entry.shape, Body):
        return []
    digest = _header(DIGEST_HEADER, "RFC 9530: `sha-256=:<base64>:` of the body.")
    beside = entry.shape.beside
    if beside is None:
        return [digest]
    return [{**digest, "required": False}, {**_header(beside.header, beside.about), "required": True}]


def _version(entry: Entry[Shape]) -> dict[str, Any]:
    description = f"Protocol version of the {entry.group.removesuffix('s')}."
    number = {"type": "integer", "example": PROTOCOL_VERSION}
    return {**_header(PROTOCOL_HEADER, description), "required": True, "schema": number}
