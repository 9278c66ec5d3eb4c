"""Signed requests to a coordinator in memory, kept as they were sent, so that a test can send them again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx2

from client_sdk.identity import DeviceKey
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION
from client_sdk.protocol.workers import RESULT_HEADER
from coordinator.runtime.coordinator import Coordinator
from coordinator.settings import Settings
from tests.coordinator.certified import headers
from tests.coordinator.service.apps import give_back, lent
from tests.coordinator.world import World

ORIGIN = "http://localhost"


@dataclass(frozen=True)
class Sent:
    """One request as it was sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""

    def other(self, **changes: Any) -> Sent:
        return replace(self, **changes)

    def with_header(self, name: str, value: str) -> Sent:
        return replace(self, headers={**self.headers, name: value})


def signed(
    key: DeviceKey,
    method: str,
    path: str,
    message: Any = None,
    *,
    at: float,
    body: bytes | None = None,
    result: str | None = None,
    origin: str = ORIGIN,
) -> Sent:
    """A request of this key, signed at ``at``. ``message``: its JSON."""
    content = body if body is not None else b"" if message is None else json.dumps(message).encode()
    own = headers(key, at=at, method=method, uri=origin + path, body=content, result=result)
    more = {} if result is None else {RESULT_HEADER: result}
    return Sent(method, path, {PROTOCOL_HEADER: str(PROTOCOL_VERSION), **more, **own}, content)


class Wire:
    """The service of one coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.app = lent(coordinator, Settings(max_hold_s=0))

    def send(self, request: Sent) -> httpx2.Response:
        async def send() -> httpx2.Response:
            transport = httpx2.ASGITransport(app=self.app)
            async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN) as http:
                return await http.request(
                    request.method, request.path, headers=dict(request.headers), content=request.body
                )

        return asyncio.run(send())

    def close(self) -> None:
        self.app.state.service.close()
        give_back(self.app)


def kind(answer: httpx2.Response) -> str:
    """The kind of problem; empty: it is none."""
    return "" if answer.status_code < 400 else str(answer.json()["type"]).removeprefix("/problems/")


def everything(world: World) -> dict[str, Any]:
    """What requests change, but for the pool and for when somebody was last seen."""
    runs = world.store.run_ids()
    return {
        "events": {run: [(row.seq, row.kind) for row in world.store.events(run, 0)] for run in runs},
        "contributions": {run: world.store.contributions(run, 1) for run in runs},
        "checkpoints": {run: world.store.checkpoints(run) for run in runs},
        "refusals": {run: world.store.refusals_in_order(run) for run in runs},
        "claims": world.store.claims(),
        "devices": [replace(row, last_seen_at=None) for row in world.store.devices()],
        "workers": [replace(row, last_seen_at=None) for row in world.store.workers()],
    }
