"""The stream of all runs, where many viewers come at the same moment, as after a restart."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from coordinator.service import stream_viewers
from coordinator.service.stream_viewers import Feed, Viewers
from tests.coordinator.service.test_scopes import Served
from tests.coordinator.service.test_stream_all import Screen, served, talk, truth

__all__ = ["served"]


def test_repro_viewers_that_come_at_the_same_moment_each_begin_with_the_newest_state(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = Viewers._looked

    def slow(self: Viewers, feeds: list[Feed]) -> Any:
        nonlocal looks
        looks += 1
        time.sleep(0.05)
        return look(self, feeds)

    monkeypatch.setattr(Viewers, "_looked", slow)
    monkeypatch.setattr(stream_viewers, "TICK_S", 60.0)  # what the clock looks at does not help

    async def one(viewers: Viewers, key: str) -> Screen:
        screen = await Screen(viewers, key).open(follow=False)
        assert await screen.read() == ["snapshot"]
        await screen.close()
        return screen

    async def story() -> None:
        viewers, key = Viewers(served.service), served.key("viewer", "*")
        for action in ("pause", "resume"):
            await asyncio.to_thread(getattr(served.world.coordinator.operators, action), "red")
            before = looks
            for screen in await asyncio.gather(*(one(viewers, key) for _ in range(5))):
                assert screen.runs == truth(served, "red", "blue")
            assert looks == before + 1, "one look is for all of them"

    talk(story())
