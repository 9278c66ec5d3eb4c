"""Routes with as little code as possible between the socket and the handler: its parameters, credentials and body.

The saving: FastAPI solves dependencies anew for every request, 0.3 ms of CPU each, and a round of 300 devices has some
1,500 requests. A ``LeanRoute`` takes the same endpoint signature, so OpenAPI describes it as any other, but fills in
only the request, the parameters of path and query, and one JSON body. A long body is received by ``Uploads``.

The credentials (a signature, a bearer token or a session's cookie) are read as the head arrives. Nothing is verified
then: that is done in the thread that handles the request (``requests.check_credentials``). Unsigned requests are
refused before their body is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_sdk.credentials.errors import CredentialError, refusal_of
from client_sdk.credentials.request_signature import INPUT_NAME, RESULT_NAME, SIGNATURE_NAME, RequestSignature
from client_sdk.protocol.names import DIGEST_HEADER, NEXT_HEADER, Page, read_content_digest
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.access.sessions import PREFIX as SESSION_PREFIX
from coordinator.blobs.port import BlobError
from coordinator.limits import InFlight
from coordinator.limits.admission import LOCAL, SMALL, Holding, Sender, spread
from coordinator.requests import Permission
from coordinator.runtime.identities import Arrived
from coordinator.service.core import Service
from coordinator.service.session_cookie import session_of
from coordinator.settings import Settings
from coordinator.store.port import StoreError

if TYPE_CHECKING:
    from coordinator.blobs.port import Spool

Endpoint = Callable[..., Awaitable[Response]]
HeadArrived = Callable[[Request], Awaitable[None]]


class LeanRoute(APIRoute):
    """An APIRoute whose endpoint is called directly: ``async def endpoint(request, <of path and query>, body)``."""

    def __init__(
        self, path: str, endpoint: Endpoint, *, head_arrived: HeadArrived | None = None, **options: Any
    ) -> None:
        """``head_arrived`` may refuse the request before its body is read."""
        super().__init__(path, endpoint, **options)
        self.app = _direct(endpoint, set(self.param_convertors), head_arrived)


def _direct(endpoint: Endpoint, path_names: set[str], head_arrived: HeadArrived | None) -> ASGIApp:
    hints = get_type_hints(endpoint, include_extras=True)
    parameters = dict(inspect.signature(endpoint).parameters)
    del parameters["request"]
    classes = {name: hints[name] for name in parameters if isinstance(hints[name], type)}
    body = next((name for name, found in classes.items() if issubclass(found, BaseModel)), None)
    adapters: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(hints[name]) for name in parameters if name != body}
    in_query = adapters.keys() - path_names

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        scope["app"].state.service.admit()
        if head_arrived is not None:
            await head_arrived(request)
        sent = {**request.query_params, **scope["path_params"]} if in_query else scope["path_params"]
        values: dict[str, Any] = {}
        wrong: list[Any] = []
        for name, adapter in adapters.items():
            default = parameters[name].default
            if name not in sent and default is not inspect.Parameter.empty:
                values[name] = default
                continue
            try:
                values[name] = adapter.validate_python(sent.get(name))
            except ValidationError as error:
                wrong += [{**row, "loc": (name,)} for row in error.errors(include_url=False)]
        if wrong:
            raise RequestValidationError(wrong)
        if body is not None:
            content = await read_body(request)
            note_body(request, content)
            values[body] = classes[body].model_validate_json(content)
        response = await endpoint(request, **values)
        await response(scope, receive, send)

    return app


async def read_body(request: Request) -> bytes:
    """Reads a JSON body. ProblemError *too-large* before more than ``settings.max_message_bytes`` are in memory."""
    limit: int = request.app.state.service.settings.max_message_bytes
    announced = request.headers.get("content-length")
    if announced is not None and (length := content_length(announced)) is not None and length > limit:
        raise problem("too-large", f"The message is {length} bytes long; at most {limit} are read.")
    service = request.app.state.service
    pace = Pace(service.settings)
    parts: list[bytes] = []
    with service.admission.messages.held(sender_of(request).key or "unlimited") as memory:
        async for part in pace.parts(request.receive, limit, f"The message is longer than {limit} bytes."):
            parts.append(part)
            if pace.received > SMALL:
                memory.add(len(part))
    service.meters.bytes_in.inc(pace.received)
    return b"".join(parts)


def sender_of(request: Request) -> Sender:
    """Where the request comes from."""
    found: Sender = request.scope.get("state", {}).get("sender", LOCAL)
    return found


def json_response(message: BaseModel, status: int = 200) -> Response:
    """Returns one message as JSON. It was validated when it was made, so it is not validated again."""
    return Response(message.model_dump_json(), status_code=status, media_type="application/json")


def json_list(model: type[BaseModel], messages: Sequence[BaseModel]) -> Response:
    """Returns messages of one kind as one JSON array; of a page, with where the rest begins."""
    more = {NEXT_HEADER: messages.next} if isinstance(messages, Page) and messages.next else None
    return Response(_list_of(model).dump_json(list(messages)), headers=more, media_type="application/json")


@cache
def _list_of(model: type[BaseModel]) -> TypeAdapter[Any]:
    return TypeAdapter(list[model])  # type: ignore[valid-type]


# ------------------------------------------------------------ how slowly a body may arrive
# Without a bound, a few senders of one byte at a time could hold every slot for uploads.
#
# Only time in which the coordinator waits for the sender counts: not the time in which the body waits for a slot, or
# for the disk.

_LENGTH_DIGITS = 18


class Pace:
    """The receipt of one body: of n bytes, within body_idle_s + n / body_rate_min seconds of waiting."""

    def __init__(self, settings: Settings) -> None:
        self._idle_s = settings.body_idle_s
        self._rate = settings.body_rate_min
        self._waited_s = 0.0
        self.received = 0
        """Bytes so far."""

    async def parts(self, receive: Receive, limit: int, too_large: str) -> AsyncIterator[bytes]:
        """The parts of the body as they arrive. ClientDisconnect; ProblemError *too-large*, with this sentence, where
        there are more than ``limit`` bytes, and *truncated* where the sender is too slow."""
        more = True
        while more:
            message = await self._next(receive)
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            more = message.get("more_body", False)
            if self.received > limit:
                raise problem("too-large", too_large)
            if part := message.get("body", b""):
                yield part

    async def _next(self, receive: Receive) -> Message:
        """The body's next part, or the disconnection."""
        clock = asyncio.get_running_loop().time
        began = clock()
        ahead_s = self.received / self._rate - self._waited_s
        try:
            async with asyncio.timeout(self._idle_s + min(ahead_s, 0.0)):
                message = await receive()
        except TimeoutError:
            slow = f"stopped, or came at less than {self._rate:g} bytes a second, after {self.received} bytes"
            raise problem("truncated", f"The body {slow}; send it again.") from None
        self._waited_s += clock() - began
        self.received += len(message.get("body", b""))
        return message


def content_length(header: str) -> int | None:
    """The number in a Content-Length header; None where it is none, or longer than any body."""
    return int(header) if header.isascii() and header.isdigit() and len(header) <= _LENGTH_DIGITS else None


# ------------------------------------------------------------ the credentials, which arrive with the head


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
    if not permission.needs_signature and not _is_signed(request):
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


# ------------------------------------------------------------ long bodies
# Received into a spool: hashed and written by threads, piece by piece, never whole in memory.
#
# The limit is known before the first byte is read. Uploads under way share ``upload_memory_bytes``: few get pieces of
# 256 KiB (fewer trips into threads), many get pieces of 64 KiB. Where a sender disconnects, stops sending, or sends too
# much or bytes of another digest, nothing is stored: the spool discards what was not committed.


T = TypeVar("T")

_PIECE_MIN = 64 * 1024
_PIECE_MAX = 256 * 1024
_LARGE = 1024 * 1024
"""Bodies of at least this size in bytes are validated one per core at a time: more at a time would only take more
memory."""


class Uploads:
    """The bodies that this process is receiving."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._slots = asyncio.Semaphore(service.settings.uploads)
        self._validating = asyncio.Semaphore(max(2, os.cpu_count() or 1))
        self._active = 0
        service.meters.uploads.set_function(lambda: self._active)
        self._callers = InFlight(self._too_many, each=service.settings.uploads_per_caller)
        self._disk = InFlight(self._no_room, total=service.settings.upload_disk_bytes)

    async def receive(
        self,
        request: Request,
        limit: int,
        finish: Callable[[Spool], T],
        caller: str | None = None,
        *,
        room: int = 0,
    ) -> T:
        """Spools the request's body, at most ``limit`` bytes, and hands it to ``finish`` in a thread. ``caller``: whose
        body it is; None: not counted. ``room``: bytes that ``finish`` may append.

        Problems: length-required, too-large, truncated, digest-mismatch (the sender announced a digest),
        too-many-requests, busy, disk-full; and whatever ``finish`` raises. Returns what ``finish`` returns.
        """
        announced = _length(request, limit)
        expected = announced_digest(request)
        with self._callers.held(caller or "", 1 if caller else 0):
            async with self._slot():
                with self._disk.held("", announced or 0) as disk:
                    return await self._received(request, limit, finish, announced, expected, disk, room)

    async def _received(
        self,
        request: Request,
        limit: int,
        finish: Callable[[Spool], T],
        announced: int | None,
        expected: str | None,
        disk: Holding,
        room: int,
    ) -> T:
        service = self._service
        spool = service.coordinator.core.blobs.spool(limit + room)
        ended = False
        try:
            received, rest = await self._pour(request, spool, limit, disk if announced is None else None)
            if announced is not None and received != announced:
                raise problem("truncated", f"The body ended after {received} of {announced} bytes.")

            def end() -> T:
                nonlocal ended
                ended = True
                try:
                    _write(spool, rest)
                    if expected is not None and spool.digest != expected:
                        detail = f"The bytes received have digest {spool.digest}, not {expected} as announced."
                        raise problem("digest-mismatch", detail)
                    return finish(spool)
                finally:
                    spool.__exit__(None, None, None)

            if received < _LARGE:
                return await service.work(end)
            async with self._validating:
                return await service.work(end)
        except (BlobError, StoreError) as error:
            service.coordinator.core.process.storage_errors.note(error)
            raise
        except ClientDisconnect:
            service.meters.problems.labels("truncated").inc()
            raise
        finally:
            if not ended:
                await asyncio.shield(service.work(spool.__exit__, None, None, None))

    async def _pour(self, request: Request, spool: Spool, limit: int, disk: Holding | None) -> tuple[int, list[bytes]]:
        """Receives the body. Returns its length, and its last bytes, which are not written yet: fewer than a piece."""
        service = self._service
        parts: list[bytes] = []
        held = 0
        pace = Pace(service.settings)
        too_large = f"The body is longer than the {limit} bytes that are accepted here."
        async for part in pace.parts(request.receive, limit, too_large):
            parts.append(part)
            held += len(part)
            if disk is not None:
                disk.add(len(part))
            if held >= self._piece():
                await service.work(_write, spool, parts)
                parts = []
                held = 0
        service.meters.bytes_in.inc(pace.received)
        return pace.received, parts

    @staticmethod
    def _too_many(of_all: bool) -> ProblemError:
        detail = "This device is sending too many bodies at the same time; one after the other is enough."
        return problem("too-many-requests", detail, retry_after_s=spread(5))

    @staticmethod
    def _no_room(of_all: bool) -> ProblemError:
        return problem("busy", "The bodies being received take all of the disk for them.", retry_after_s=spread(10))

    def _piece(self) -> int:
        share = self._service.settings.upload_memory_bytes // max(self._active, 1)
        return min(max(share, _PIECE_MIN), _PIECE_MAX)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        async with self._slots:
            self._active += 1
            try:
                yield
            finally:
                self._active -= 1


def _write(spool: Spool, parts: list[bytes]) -> None:
    for part in parts:
        spool.write(part)


def _length(request: Request, limit: int) -> int | None:
    header = request.headers.get("content-length")
    if header is None:
        if request.headers.get("transfer-encoding", "").lower() != "chunked":
            raise problem("length-required", "Send Content-Length, or the body in chunks.")
        return None
    length = content_length(header)
    if length is None or length > limit:
        raise problem("too-large", f"The body is {header[:40]} bytes long; at most {limit} are accepted here.")
    return length


def announced_digest(request: Request) -> str | None:
    """The SHA-256 of the body in hexadecimal, as its sender announced it; None where there is none. ProblemError."""
    header = request.headers.get(DIGEST_HEADER)
    if header is None:
        return None
    digest = read_content_digest(header)
    if digest is None:
        raise problem("invalid-request", f"{DIGEST_HEADER} must be sha-256=:<base64 of 32 bytes>: (RFC 9530).")
    return digest
