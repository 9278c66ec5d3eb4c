"""Downloads of files by their digest: immutable, so a client may keep them for ever; whole or in ranges, or the
difference from an earlier checkpoint that the device has.

RFC 9110 sections 13 (If-None-Match, If-Range) and 14 (Range: one range; several are answered with the whole, as a
server may).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from client_sdk.protocol.flower import FLOWER_MEDIA_TYPE
from client_sdk.protocol.names import (
    BASE_HEADER,
    DELTA_MEDIA_TYPE,
    DIGEST_PATTERN,
    HOLDS_HEADER,
    TENSORS_MEDIA_TYPE,
    Digest,
    Route,
    RunId,
)
from client_sdk.protocol.problems import problem
from client_sdk.tensors import TensorError
from client_sdk.tensors.checkpoint_delta import encode
from coordinator.access import Operator
from coordinator.blobs import Blobs, Damaged, Missing
from coordinator.limits.admission import Sender
from coordinator.requests import Permission, check_credentials, identify
from coordinator.runtime import log_context
from coordinator.runtime.identities import Arrived
from coordinator.service.core import Service, until_gone
from coordinator.service.declaring import BINARY, declared, security
from coordinator.service.errors import plain, problem_response
from coordinator.service.route import Endpoint, LeanRoute, arrived, note_arrival, sender_of
from coordinator.store.port import DeviceRow

Pair = tuple[str, str]
"""Digests of the base and of the checkpoint."""
_PAIRS = 256
"""Most pairs that are remembered, also those without a difference."""


class Deltas:
    """The differences of checkpoints that one process has in memory, made once for all that ask, one at a time: the
    newest ones, ``most`` bytes together. ``work`` runs a function in a thread."""

    def __init__(self, work: Callable[..., Awaitable[Any]], blobs: Blobs, most: int) -> None:
        self._work, self._blobs, self._most = work, blobs, most
        self._one_at_a_time = asyncio.Semaphore(1)
        self._made: dict[Pair, asyncio.Future[bytes]] = {}

    def __contains__(self, pair: Pair) -> bool:
        return pair in self._made

    async def get(self, pair: Pair) -> bytes:
        """The difference; empty where the checkpoint is to be sent whole: there is none that is shorter."""
        found = self._made.get(pair)
        if found is None:
            found = self._made[pair] = asyncio.ensure_future(self._begin(pair))
        return await asyncio.shield(found)

    async def _begin(self, pair: Pair) -> bytes:
        try:
            async with self._one_at_a_time:
                delta: bytes = await self._work(self._make, *pair)
        except BaseException:
            del self._made[pair]
            raise
        done = [(one, len(made.result())) for one, made in self._made.items() if made.done() and not made.cancelled()]
        size = len(delta) + sum(length for _, length in done)
        for oldest, length in done:
            if size > self._most or len(self._made) > _PAIRS:
                size -= length
                del self._made[oldest]
        return delta

    def _make(self, base: str, digest: str) -> bytes:
        parts: list[bytes] = []
        try:
            left = self._blobs.size(digest)
            if left > self._most:
                return b""
            with self._blobs.open(base) as old, self._blobs.open(digest) as new:
                for part in encode(old, new):
                    left -= len(part)
                    if left <= 0:
                        return b""
                    parts.append(part)
        except (TensorError, Missing, Damaged, OSError):
            return b""
        return b"".join(parts)


_WHOLE_BYTES = 256 * 1024
"""A file up to this size in bytes is read in the thread that found it."""
NO_BYTES = (0, 0)
"""A range outside of the file."""
_RANGE = re.compile(r"bytes=([0-9]*)-([0-9]*)", re.IGNORECASE)
_DIGITS = 18
"""Most digits of a position, without leading zeros: more than any file has. ``int`` refuses texts of 4,300 digits."""


class Kind(NamedTuple):
    """What is downloaded."""

    word: str
    """For people: ``checkpoint``."""
    media: str
    suffix: str
    """Of the file's name."""


class Found(NamedTuple):
    """A file that the caller may have."""

    size: int
    content: bytes | None
    """Its bytes, where it is small."""
    open: Callable[[], BinaryIO]

    @classmethod
    def at(cls, blobs: Blobs, digest: str) -> Found:
        """Of a blob. Missing, Damaged."""
        size, opened = blobs.size(digest), partial(blobs.open, digest)
        if size > _WHOLE_BYTES:
            return cls(size, None, opened)
        with opened() as file:
            return cls(size, file.read(), opened)


def download(service: Service, request: Request, found: Found, digest: str, kind: Kind) -> Response:
    """The answer to GET or HEAD of a file: the whole, a part, or that the client has it."""
    size, content, opened = found
    etag = f'"{digest}"'
    headers = {
        "ETag": etag,
        "Cache-Control": "private, max-age=31536000, immutable",
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{digest}{kind.suffix}"',
    }
    wanted = request.headers.get("if-none-match", "")
    if wanted and (wanted.strip() == "*" or etag in wanted.replace("W/", "")):
        return Response(status_code=304, headers=headers)
    start, stop, status = 0, size, 200
    asked = request.headers.get("range")
    if asked is not None and request.headers.get("if-range", etag) == etag:
        span = parse_range(asked, size)
        if span == NO_BYTES:
            headers["Content-Range"] = f"bytes */{size}"
            detail = f"The {kind.word} has {size} bytes; the range {asked[:80]!r} has none of them."
            return problem_response(plain(416, detail), headers)
        if span is not None:
            start, stop = span
            status = 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    headers["Content-Length"] = str(stop - start)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=kind.media)
    if content is not None:
        return Response(content[start:stop], status, headers, kind.media)
    return FilePart(service.work, opened, start, stop, status, headers, kind.media)


def download_routes(route: Route, get: Endpoint, kind: Kind, *, group: str, scoped: bool) -> list[LeanRoute]:
    """GET and HEAD of one file, for devices, workers and operators."""
    options: dict[str, Any] = {"tags": [group]}
    body = {"content": {kind.media: BINARY}}
    routes = [
        LeanRoute(
            route,
            get,
            methods=["GET"],
            summary=f"Download a {kind.word}",
            response_class=Response,
            openapi_extra=security(Permission.PEER),
            responses={
                200: {**body, "description": "the whole file"},
                206: {**body, "description": "the range asked for"},
                304: {"description": "you have it"},
                416: {"description": "no such range"},
            },
            **options,
        ),
        LeanRoute(route, get, methods=["HEAD"], include_in_schema=False, **options),
    ]
    return [declared(route, Permission.PEER, scoped=scoped) for route in routes]


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Returns ``(start, stop)`` in bytes, NO_BYTES for a range outside of the file, or None where the header is
    ignored."""
    found = _RANGE.fullmatch(header.strip())
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if first == "":
        length = min(_position(last), size)
        return (size - length, size) if length else NO_BYTES
    start, stop = _position(first), min(_position(last) + 1, size) if last else size
    if last and _position(last) < start:
        return None
    return (start, stop) if start < size else NO_BYTES


def _position(digits: str) -> int:
    """The number, or one beyond every file."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= _DIGITS else 10**_DIGITS


# ------------------------------------------------------------ a part of a file
# Starlette's ``FileResponse`` costs as much (75 and 87 ms of CPU for 40 MB, within noise) and could send ranges for us,
# but it reads on to the end of the file after the receiver has disconnected: 17 s of CPU for one cancelled download of
# 4 GB. It also reads in threads of its own, beside those of the settings; and a small file, which here is read by the
# thread that found it, costs twice as much.

_PIECE = 64 * 1024

Work = Callable[..., Awaitable[Any]]


class FilePart(Response):
    """Bytes ``start`` to ``stop`` of a file: threads read it in pieces, as fast as the receiver accepts them. ``work``
    runs a function in a thread. Stops when the receiver disconnects."""

    def __init__(
        self,
        work: Work,
        opened: Callable[[], BinaryIO],
        start: int,
        stop: int,
        status: int,
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        super().__init__(None, status, headers, media_type)
        self._work, self._open, self._span = work, opened, (start, stop)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        at, stop = self._span
        file: BinaryIO = await self._work(self._open)
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            piece = await self._work(_read, file, at, stop)  # before the answer begins: then it can still be an error
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while at < stop and not gone.done():
                at += len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": at < stop})
                piece = await self._work(_read, file, at, stop) if at < stop else b""
        finally:
            gone.cancel()
            await asyncio.shield(self._work(file.close))


def _read(file: BinaryIO, at: int, stop: int) -> bytes:
    """The next bytes, up to ``stop``. OSError where the file ends before."""
    file.seek(at)
    piece = file.read(min(_PIECE, stop - at))
    if not piece and at < stop:
        raise OSError(f"a file ends at {at}, and its bytes up to {stop} were promised")
    return piece


# ------------------------------------------------------------ checkpoints and contents

_CHECKPOINT = Kind("checkpoint", TENSORS_MEDIA_TYPE, ".safetensors")
_HELD = 2
"""Most checkpoints of a device that are looked at."""


def checkpoint_routes(service: Service) -> list[LeanRoute]:
    """GET and HEAD of one checkpoint: a device or a worker may have that of any run, an operator those of runs in
    scope."""
    coordinator = service.coordinator
    deltas = Deltas(service.work, coordinator.core.blobs, service.settings.delta_memory_bytes)

    def find(digest: str, given: Arrived | str, sender: Sender, held: Sequence[str]) -> tuple[Found, Pair | None]:
        credentials = check_credentials(coordinator, Permission.PEER, given, None)
        caller = service.count(identify(coordinator, Permission.PEER, credentials, scoped=True), sender)
        sees = caller.sees if isinstance(caller, Operator) and not caller.sees_everything else None
        coordinator.operators.require_checkpoint(digest, sees)
        found = Found.at(coordinator.core.blobs, digest)
        runs = coordinator.core.store.runs_with_checkpoint
        for base in held if sees is None else ():
            if (base, digest) in deltas or set(runs(base)) & set(runs(digest)):
                return found, (base, digest)
        return found, None

    async def get(request: Request, digest: Digest) -> Response:
        """A checkpoint's safetensors file. Its name is the SHA-256 of its bytes, so it never changes."""
        note_arrival(request, Permission.PEER)
        held = [] if request.method == "HEAD" or "range" in request.headers else held_by(request)
        found, pair = await service.work(find, digest, arrived(request), sender_of(request), held)
        delta = await deltas.get(pair) if pair is not None else b""
        if pair is not None and delta:
            headers = {BASE_HEADER: pair[0], "Cache-Control": "no-store"}
            return Response(delta, 200, headers, DELTA_MEDIA_TYPE)
        answer = download(service, request, found, digest, _CHECKPOINT)
        answer.headers["Vary"] = HOLDS_HEADER
        return answer

    return download_routes(Route.CHECKPOINT, get, _CHECKPOINT, group="checkpoints", scoped=True)


def held_by(request: Request) -> list[str]:
    """The first digests of the checkpoints that a device says it has."""
    given = [digest.strip() for digest in request.headers.get(HOLDS_HEADER, "").split(",", _HELD)[:_HELD]]
    return [digest for digest in given if re.fullmatch(DIGEST_PATTERN, digest)]


_CONTENT = Kind("content", FLOWER_MEDIA_TYPE, "")


def content_routes(service: Service) -> list[LeanRoute]:
    """GET and HEAD of one content of a Flower run: a device may have those of its own messages, an operator those of
    runs in scope."""
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
