"""When the stream of all runs ends: with the credentials of its viewer, and with the service."""

from __future__ import annotations

import asyncio

import pytest

from client_sdk.protocol.names import Route
from coordinator.access import LOCAL_OWNER, Grant, Operator
from coordinator.service.stream_viewers import Viewers
from tests.coordinator.service.test_scopes import Served
from tests.coordinator.service.test_stream_all import Screen, served, talk

__all__ = ["served"]


async def checked(served: Served, viewers: Viewers, screen: Screen) -> None:
    """Returns when credentials were looked up for the first time: the next time is ``reread_s`` later."""
    while not viewers._checked_at:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(served.world.coordinator.operators.pause, "red")
    assert await screen.read() == ["patch"]  # it is looked for after that
    await asyncio.to_thread(served.world.coordinator.operators.resume, "red")
    assert await screen.read() == ["patch"]


def test_the_stream_ends_with_its_session_or_key_at_once(served: Served) -> None:
    access = served.world.coordinator.access

    async def story() -> None:
        viewers = Viewers(served.service)
        key, owner = served.key("viewer", "red"), served.key("owner", "*")
        by_key, by_session = access.keys.operator(key), access.sessions.open_by_key(owner)
        screens = [await Screen(viewers, key).open(), await Screen(viewers, by_session.secret).open()]
        stays = await Screen(viewers, owner).open()
        for screen in (*screens, stays):
            await screen.read()
        await checked(served, viewers, stays)
        revoke = Route.REVOKE_KEY.format(key=by_key.id.removeprefix("key:"))
        await asyncio.to_thread(lambda: served.ask("POST", revoke, owner).raise_for_status())
        assert await screens[0].ended()
        access.sessions.end(by_session.operator.session)
        served.service.signals.wake("logins")
        assert await screens[1].ended()
        await asyncio.to_thread(served.world.coordinator.operators.pause, "red")
        await stays.until(lambda: stays.runs["red"]["status"] == "paused")
        await stays.close()

    talk(story())


def test_the_stream_ends_when_its_key_has_expired(served: Served) -> None:
    async def story() -> None:
        viewers = Viewers(served.service)
        screen = await Screen(viewers, served.key("viewer", "red", expires_in_s=60)).open()
        await screen.read()
        await checked(served, viewers, screen)
        served.world.clock.at += 60
        assert await screen.ended()

    talk(story())


def test_the_stream_ends_when_its_operator_sees_other_runs(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks again, and gets the snapshot of what it sees now."""
    monkeypatch.setattr(served.service, "settings", served.service.settings.model_copy(update={"reread_s": 0.05}))

    async def story() -> None:
        screen = await Screen(Viewers(served.service), served.key("viewer", "red")).open()
        await screen.read()
        now = Operator("key:1", (Grant.parse("viewer blue"),))
        monkeypatch.setattr(Viewers, "_identified", lambda self, credentials: now)
        assert await screen.ended()

    talk(story())


def test_what_a_replica_revoked_and_changed_is_seen_without_a_signal(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.service, "settings", served.service.settings.model_copy(update={"reread_s": 0.05}))
    replica = served.world.replica()

    async def story() -> None:
        viewers = Viewers(served.service)
        key, owner = served.key("viewer", "red"), served.key("owner", "*")
        ends, stays = await Screen(viewers, key).open(), await Screen(viewers, owner).open()
        await ends.read()
        await stays.read()
        replica.operators.pause("blue")
        await stays.until(lambda: stays.runs["blue"]["status"] == "paused")
        replica.access.keys.revoke(LOCAL_OWNER, key.split("_")[1])
        assert await ends.ended()
        await stays.close()

    talk(story())


def test_the_stream_ends_when_the_service_stops(served: Served) -> None:
    async def story() -> None:
        screen = await Screen(Viewers(served.service), served.key("viewer", "*")).open()
        await screen.read()
        served.service.stop()
        assert await screen.ended()

    talk(story())
