"""Reads the credentials of a request as its head arrives: a signature, a bearer token or a session's cookie.

Nothing is verified here: that is done in the thread that handles the request (``requests.check_credentials``). Unsigned
requests are refused before their body is read.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from fastapi import Request

from client_sdk.credentials.errors import CredentialError, refusal_of
from client_sdk.credentials.request_signature import INPUT_NAME, RESULT_NAME, SIGNATURE_NAME, RequestSignature
from client_sdk.protocol.problems import problem
from coordinator.access.sessions import PREFIX as SESSION_PREFIX
from coordinator.requests import Permission
from coordinator.runtime.signing import Arrived
from coordinator.service.session_cookie import session_of

_KEY = "quorate.arrived"
_EMPTY = hashlib.sha256(b"").digest()


def note_arrival(
    request: Request, permission: Permission, *, with_result: bool = False, long_body: bool = False
) -> None:
    """Notes the credentials and the time of a request whose head has arrived. ``with_result``: whether the route has
    the header Quorate-Result, which then is signed too. ``long_body``: the body's digest is compared where it is
    received.

    ProblemError *unauthenticated* where the credentials that the permission needs are missing or not in their form."""
    scope = request.scope
    if not permission.needs_credentials:
        return
    if not _is_signed(request) and not permission.needs_signature:
        scope[_KEY] = bearer(request, permission)
        return
    _require_one_kind(request)
    try:
        signature = RequestSignature.parse(scope["headers"])
    except CredentialError as error:
        raise refusal_of(error) from None
    service = request.app.state.service
    scope[_KEY] = Arrived(
        signature=signature,
        method=scope["method"],
        uri=service.hosts.target_uri(scope),
        at=service.coordinator.core.clock.now(),
        result=request.headers.get(RESULT_NAME) if with_result else None,
        sha256=None if long_body else _EMPTY,
    )


def note_body(request: Request, body: bytes) -> None:
    """Notes the digest of the body that was read."""
    found = request.scope.get(_KEY)
    if isinstance(found, Arrived):
        request.scope[_KEY] = replace(found, sha256=hashlib.sha256(body).digest())


def arrived(request: Request) -> Arrived | str:
    """The credentials that were noted; empty where none are needed."""
    found: Arrived | str = request.scope.get(_KEY, "")
    return found


def bearer(request: Request, permission: Permission) -> str:
    """Returns the caller's API key or token, or else its session, empty where none is needed. ProblemError
    *unauthenticated* where there is none, and that of ``session_of``."""
    if not permission.needs_credentials:
        return ""
    _require_one_kind(request)
    session = session_of(request) if "authorization" not in request.headers else None
    if session is not None:
        return session
    sent = request.headers.getlist("authorization")
    if len(sent) > 1:
        raise problem("unauthenticated", "This request has several Authorization headers: send one of them.")
    scheme, _, token = (sent[0] if sent else "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip() or token.strip().startswith(SESSION_PREFIX):
        other = "" if permission.of_operators else ", or sign the request as a device or a worker"
        raise problem("unauthenticated", f"Send an operator's API key as 'Authorization: Bearer <key>'{other}.")
    return token.strip()


def _is_signed(request: Request) -> bool:
    return any(name in (SIGNATURE_NAME, INPUT_NAME) for name, _ in request.scope["headers"])


def _require_one_kind(request: Request) -> None:
    if _is_signed(request) and "authorization" in request.headers:
        raise problem("unauthenticated", "This request has a signature and an Authorization header: send one of them.")
