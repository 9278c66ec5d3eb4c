"""Bodies at the level of ``Uploads``: what a server passes on, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Request

from client_sdk.protocol.problems import ProblemError
from coordinator.service.core import Service
from coordinator.service.route import Uploads
from tests.coordinator.world import World


def received(announced: int, *parts: bytes) -> str:
    """The digest of a body in these parts, whose sender announced so many bytes."""
    world = World(0)
    service = Service(world.coordinator, world.settings, world.coordinator.core.signals)
    left = list(parts)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    scope = {"type": "http", "method": "PUT", "headers": [(b"content-length", str(announced).encode())]}
    try:
        return asyncio.run(Uploads(service).receive(Request(scope, receive), 1000, lambda spool: spool.digest))
    finally:
        service.close()
        assert list(world.blobs.digests()) == [], "only the caller stores a body"


def test_a_body_of_the_announced_length_is_received() -> None:
    assert received(5, b"abc", b"de") == received(5, b"abcde")


@pytest.mark.parametrize("parts", [(b"abc", b"d"), (b"",), (b"abc", b"def")])
def test_a_body_of_another_length_than_announced_is_truncated(parts: tuple[bytes, ...]) -> None:
    """Whichever server is in front: half an update is refused in these words, not as an unreadable one."""
    with pytest.raises(ProblemError, match=f"ended after {len(b''.join(parts))} of 5 bytes") as refused:
        received(5, *parts)
    assert refused.value.problem.kind == "truncated"
