"""A request that takes the shortcut gets the answer that Starlette's way gives."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from client_sdk.protocol.names import Route
from coordinator.service.app import create_app
from coordinator.service.route import LeanRoute
from coordinator.service.shortcut import Shortcut
from coordinator.settings import Settings
from tests.coordinator.world import World

REQUESTS = (
    ("GET", Route.RUNS),
    ("POST", Route.CHECK_IN),
    ("PUT", Route.CHECK_IN),
    ("GET", "/v1/devices/left"),
    ("POST", "/v1/runs/x/rounds"),
    ("GET", f"/v1/checkpoints/{'0' * 63}"),
    ("HEAD", f"/v1/checkpoints/{'0' * 64}"),
    ("GET", "/v1/runs/x%2Fy/rounds/0"),
    ("GET", "/v1/runs//rounds"),
    ("GET", "/healthz"),
    ("GET", "/v1/nothing"),
    ("OPTIONS", Route.RUNS),
)


@pytest.mark.parametrize("prefix", ["", "/under"])
def test_every_answer_is_the_one_of_starlettes_way(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    settings = Settings(public_url=f"http://localhost{prefix}") if prefix else Settings()
    taken: list[str] = []

    async def answers() -> list[tuple[int, str, bytes]]:
        app = create_app(World(1).coordinator, settings)
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url=f"http://localhost{prefix}") as http:
            found = [await http.request(method, path) for method, path in REQUESTS]
        await asyncio.to_thread(app.state.service.close)
        return [(one.status_code, one.headers.get("allow", ""), one.content) for one in found]

    look = Shortcut._found

    def noted(self: Shortcut, scope: dict[str, object]) -> object:
        found = look(self, scope)
        if found is not None:
            assert isinstance(found["route"], LeanRoute)
            taken.append(found["route"].path)
        return found

    monkeypatch.setattr(Shortcut, "_found", noted)
    short = asyncio.run(answers())
    monkeypatch.setattr(Shortcut, "_found", lambda *_: None)
    assert short == asyncio.run(answers())
    assert {status for status, _, _ in short} >= {200, 401, 404, 405, 422}
    assert Route.RUNS in taken
    assert Route.CHECK_IN in taken
