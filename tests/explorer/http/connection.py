"""One HTTP request of a device or a worker to an ASGI application: its bytes, its pace, and its end.

The body arrives in parts, some time apart. The client disconnects when it has given up, which may be in the middle of
the body, or while the request is held.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from client_sdk.credentials.request_signature import sign_request
from client_sdk.device.actions import Answered, Fetch, RequestRefused, Send
from client_sdk.http.exchange import headers, understood
from client_sdk.protocol.names import DIGEST_HEADER, TENSORS_MEDIA_TYPE, Route, content_digest
from client_sdk.protocol.problems import parse_problem
from client_sdk.protocol.workers import RESULT_HEADER
from tests.explorer.faults import Broken
from tests.explorer.request import Answer, SentRequest
from tests.explorer.world import World

LOOKS_S = (0.5, 2.0, 20.0)
"""Seconds between two looks of a connection whether its client has gone: a network may tell it late."""
HOST = b"127.0.0.1:8470"
URL = f"http://{HOST.decode()}"


class Connection:
    """``call`` makes the request. ``held``: whether it has been waiting for an answer since its body was read."""

    def __init__(
        self, world: World, request: SentRequest, left: asyncio.Future[None], on_gone: Callable[[], None]
    ) -> None:
        self.request = request
        self._on_gone = on_gone
        """Called when the client of a held request disconnects, just before the application can learn it."""
        self._left = left
        """Done when the client of a held request has disconnected."""
        self._over = False
        self.held = False
        self.gone = False
        """Whether the application knows that the client has disconnected."""
        self.changed = ""
        """Digest of the body as it arrives, where bytes of it change on the way."""
        self._world = world
        self._look_s = world.chance.pick("look", LOOKS_S)
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._complete = False
        send = request.send
        sent = headers()
        body = b""
        if isinstance(send, Fetch):
            self._method, self._path = "GET", Route.CHECKPOINT.format(digest=send.checkpoint.digest)
        else:
            self._method, self._path, body = send.method, send.url, self._body_of(send, sent)
        sent |= self._signed(body, sent.get(RESULT_HEADER))
        self._parts = self._cut(body)
        named = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
        self._sent = [(b"host", HOST), *named]

    def _signed(self, body: bytes, result: str | None) -> dict[str, str]:
        """The headers that sign the request, with a real key; a replay has the same. A liar names another's key."""
        request = self.request
        signed = sign_request(
            request.holder.key,
            method=self._method,
            uri=URL + self._path,
            sha256=hashlib.sha256(body).digest(),
            at=request.signature.created,
            nonce=bytes.fromhex(request.signature.nonce),
            result=result,
        )
        own, named = request.holder.key_id, request.signature.key_id
        return {name: value.replace(own, named) for name, value in signed.items()}

    def _body_of(self, send: Send, sent: dict[str, str]) -> bytes:
        """The bytes of the body; adds the headers that belong to it."""
        body = self.request.body
        if body:
            digest = hashlib.sha256(body).hexdigest()
            sent |= {"Content-Type": TENSORS_MEDIA_TYPE, DIGEST_HEADER: content_digest(digest)}
            if send.message is not None:
                sent[RESULT_HEADER] = send.message.model_dump_json()
        elif send.message is not None:
            body = send.message.model_dump_json().encode()
            sent["Content-Type"] = "application/json"
        sent["Content-Length"] = str(len(body))
        return body

    def _cut(self, body: bytes) -> list[bytes | None]:
        """The parts in which the body arrives. None: the client disconnects there."""
        world = self._world
        update = bool(self.request.body)
        if update and world.strikes("corrupt", "body"):
            place = world.chance.below("flip", len(body))
            body = body[:place] + bytes([body[place] ^ 0x55]) + body[place + 1 :]
            self.changed = hashlib.sha256(body).hexdigest()
        size = max(1, len(body) // (3 if update else 1) + 1)
        parts: list[bytes | None] = [body[start : start + size] for start in range(0, len(body), size)] or [b""]
        if update and world.strikes("truncate", "body"):
            parts[world.chance.below("cut", len(parts)) :] = [None]
        return parts

    # ------------------------------------------------------------ the application's side

    async def call(self, app: ASGIApp) -> Answer:
        """Returns the answer as the client reads it; None where the connection ended without one."""
        try:
            await app(self._scope(), self._receive, self._send)
        finally:
            self._over = True
        if self.gone or not self._complete:
            return None
        send, body = self.request.send, bytes(self._body)
        if self._status >= 400:
            return parse_problem(self._status, body, self._headers)
        if isinstance(send, Fetch):
            return body
        match understood(send.answers, body, self._world.agenda.now):
            case Answered(message):
                return message
            case RequestRefused(problem):
                return problem
            case unreadable:
                raise Broken("no-bug", f"{self.request.event} was answered {body[:200]!r}: {unreadable}")

    def _scope(self) -> Scope:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self._method,
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": self._sent,
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8470),
        }

    async def _receive(self) -> Message:
        if self._parts:
            await asyncio.sleep(self._world.chance.between("part", 0.001, 0.2))
            part = self._parts.pop(0)
            if part is None or self.request.gone():
                self._parts.clear()
                self.gone = True
                return {"type": "http.disconnect"}
            if not self._parts:
                self.held = True
                self._world.agenda.after(self._look_s, self._look)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        if not self.gone:
            await self._left
        return {"type": "http.disconnect"}

    def _look(self) -> None:
        if self._over or self._left.done():
            return
        if not self.request.gone():
            self._world.agenda.after(self._look_s, self._look)
            return
        self.gone = True
        self._on_gone()
        self._left.set_result(None)

    async def _send(self, message: Message) -> Any:
        if self.gone:
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {name.decode().lower(): value.decode() for name, value in message.get("headers", ())}
        else:
            self._body += message.get("body", b"")
            self._complete = not message.get("more_body", False)
