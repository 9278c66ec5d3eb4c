"""Receives a long body into a spool: hashed and written by threads, piece by piece, never whole in memory.

The limit is known before the first byte is read. Uploads under way share ``upload_memory_bytes``: few get pieces of
256 KiB (fewer trips into threads), many get pieces of 64 KiB. Where a sender disconnects, stops sending, or sends too
much or bytes of another digest, nothing is stored: the spool discards what was not committed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from client_sdk.protocol.names import DIGEST_HEADER, read_content_digest
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.blobs.port import BlobError
from coordinator.service.core import Service
from coordinator.service.limits import InFlight
from coordinator.service.limits.admission import Holding, spread
from coordinator.service.route import Pace, content_length
from coordinator.store.port import StoreError

if TYPE_CHECKING:
    from coordinator.blobs.port import Spool

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
