"""Downloads of files by their digest: immutable, so a client may keep them for ever; whole or in ranges.

RFC 9110 sections 13 (If-None-Match, If-Range) and 14 (Range: one range; several are answered with the whole, as a
server may).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from fastapi import Request
from starlette.responses import Response

from client_sdk.protocol.names import Route
from coordinator.blobs import Blobs
from coordinator.requests import Permission
from coordinator.service.core import Service
from coordinator.service.declaring import declared
from coordinator.service.describing import BINARY, security
from coordinator.service.errors import plain, problem_response
from coordinator.service.files import FilePart
from coordinator.service.route import Endpoint, LeanRoute

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
