"""The stream of all runs: a snapshot, then patches that lead to the views of the API, made once for each scope."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from client_sdk.protocol.live import Json, LivePatch, LiveSnapshot, merged, without_nulls
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError
from coordinator.access import Grant, Operator
from coordinator.service import stream_viewers
from coordinator.service.core import stream_slots
from coordinator.service.stream_viewers import RING, Feed, Viewers, scope_of
from tests.coordinator.service.test_scopes import Served


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(stream_viewers, "TICK_S", 0.01)
    made = Served()
    yield made
    made.service.close()


class Screen:
    """What a page shows: it takes frames as a browser does."""

    def __init__(self, viewers: Viewers, key: str) -> None:
        self._viewers, self._key = viewers, key
        self.runs: dict[str, Json] = {}
        self.fleet: Json = {}
        self.last_id = ""
        self.events: list[str] = []
        self._frames: AsyncIterator[bytes] | None = None

    async def open(self, *, follow: bool = True) -> Screen:
        viewer = await self._viewers.join(self._key, self.last_id or None)
        self._frames = self._viewers.frames(viewer, follow=follow)
        assert (await anext(self._frames)).startswith(b"retry:")
        return self

    async def read(self) -> list[str]:
        """The names of the events of the next piece; empty: a comment, or the end."""
        assert self._frames is not None
        piece = await asyncio.wait_for(anext(self._frames, b""), 10)
        names = []
        for block in piece.decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
            if "data" in lines:
                self._take(lines["event"], lines["data"])
                names.append(lines["event"])
                self.last_id = lines.get("id", self.last_id)
        self.events += names
        return names

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            assert await self.read() != [], "the stream has ended"

    async def ended(self) -> bool:
        """Whether nothing more comes."""
        assert self._frames is not None
        while piece := await asyncio.wait_for(anext(self._frames, b""), 10):
            del piece
        return True

    async def close(self) -> None:
        assert self._frames is not None
        await self._frames.aclose()  # type: ignore[attr-defined]

    def _take(self, event: str, data: str) -> None:
        body = json.loads(data)
        if event == "snapshot":
            LiveSnapshot.model_validate(body)
            self.runs = {view["run"]: view for view in body["runs"]}
            self.fleet = body.get("fleet", {})
            self.older: str = body["older"]
            return
        assert event == "patch"
        LivePatch.model_validate(body)
        if "run" in body:
            self.runs[body["run"]] = merged(self.runs.get(body["run"], {}), body["patch"])
        else:
            self.fleet = body["fleet"]


def truth(served: Served, *runs: str) -> dict[str, Json]:
    views = [served.world.coordinator.operators.run(run) for run in runs]
    return {view.run: without_nulls(view.model_dump(mode="json")) for view in views}


def talk(about: Any) -> Any:
    return asyncio.run(about)


def test_a_snapshot_and_then_patches_that_lead_to_the_views_of_the_api(served: Served) -> None:
    async def story() -> None:
        screen = await Screen(Viewers(served.service), served.key("viewer", "*")).open()
        assert await screen.read() == ["snapshot"]
        assert screen.runs == truth(served, "red", "blue")
        assert list(screen.runs) == ["red", "blue"]
        assert screen.fleet == {"waiting": 0, "unfit": 0, "assigned": 0, "away": 8}
        await asyncio.to_thread(served.world.coordinator.operators.pause, "red")
        assert await screen.read() == ["patch"]
        assert screen.runs == truth(served, "red", "blue")
        assert screen.runs["red"]["status"] == "paused"
        message = served.world.message().model_copy(update={"learners": {"tests:blue": "1"}})
        for row in served.world.rows:
            await asyncio.to_thread(served.world.coordinator.devices.check_in(row, message))
        await asyncio.to_thread(served.world.settle)
        await screen.until(lambda: screen.runs["blue"]["phase"] == "collecting")
        await asyncio.to_thread(served.world.create, name="green")
        await screen.until(lambda: "green" in screen.runs)
        served.world.clock.at += 6
        await screen.until(lambda: screen.fleet.get("assigned") == 4)
        assert screen.runs == truth(served, "red", "blue", "green")
        assert screen.events.count("snapshot") == 1
        await screen.close()

    talk(story())


def test_runs_that_ended_long_ago_are_not_sent_and_can_be_asked_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``red`` goes on, and is older than all of them."""
    monkeypatch.setattr(stream_viewers, "RECENT", 2)
    operators, viewers = served.world.coordinator.operators, Viewers(served.service)
    for number in range(4):
        served.world.create(name=f"green-{number}")
        served.world.clock.at += 1

    async def story() -> None:
        screen = await Screen(viewers, served.key("viewer", "*")).open()
        assert await screen.read() == ["snapshot"]
        assert (len(screen.runs), screen.older) == (6, "")
        for run in ("blue", "green-0", "green-1", "green-3"):
            await asyncio.to_thread(operators.stop, run)
        await screen.until(lambda: screen.runs["green-3"]["status"] == "stopped")
        assert len(screen.runs) == 6, "who saw a run sees it still"
        for scope, runs, older in (
            ("*", ["red", "green-1", "green-2", "green-3"], "green-1"),
            ("green*", ["green-1", "green-2", "green-3"], "green-1"),
            ("blue", ["blue"], ""),
        ):
            late = await Screen(viewers, served.key("viewer", scope)).open()
            assert await late.read() == ["snapshot"]
            assert late.runs == truth(served, *runs)
            assert (list(late.runs), late.older) == (runs, older)
            await late.close()
        await screen.close()

    talk(story())
    key, path = served.key("viewer", "*"), f"{Route.RUNS}?newest_first=true&limit=2"
    asked = served.ask("GET", f"{path}&after=green-1", key)
    assert [view["run"] for view in asked.json()] == ["green-0", "blue"]
    rest = served.ask("GET", f"{path}&after={asked.headers['Quorate-Next']}", key)
    assert ([view["run"] for view in rest.json()], "Quorate-Next" in rest.headers) == (["red"], False)
    assert [view["run"] for view in served.get(f"{path}&after=green-1", served.key("viewer", "b*"))] == ["blue"]


def test_each_scope_sees_its_runs_and_a_frame_is_encoded_once_for_all_its_viewers(served: Served) -> None:
    async def story() -> None:
        viewers = Viewers(served.service)
        red = [await Screen(viewers, served.key("viewer", "red")).open() for _ in range(5)]
        all_ = [await Screen(viewers, served.key("owner", "*")).open() for _ in range(5)]
        for screen in (*red, *all_):
            assert await screen.read() == ["snapshot"]
        feeds = list(viewers._feeds.values())
        assert [feed.encoded for feed in feeds] == [2, 2], "the first state, and one snapshot of it"
        await asyncio.to_thread(served.world.coordinator.operators.pause, "blue")
        for screen in all_:
            assert await screen.read() == ["patch"]
        await asyncio.to_thread(served.world.coordinator.operators.pause, "red")
        for screen in (*red, *all_):
            assert await screen.read() == ["patch"]
        assert [feed.encoded for feed in feeds] == [3, 4]
        for screen in red:
            assert screen.runs == truth(served, "red")
            assert screen.fleet == {}
        for screen in all_:
            assert screen.runs == truth(served, "red", "blue")
        assert served.service.viewer_slots.amount == 10
        for screen in (*red, *all_):
            await screen.close()
        assert served.service.viewer_slots.amount == 0

    talk(story())


def test_who_comes_back_in_time_gets_what_followed_and_who_comes_late_a_snapshot(served: Served) -> None:
    async def story() -> None:
        viewers, key = Viewers(served.service), served.key("viewer", "*")
        screen = await Screen(viewers, key).open()
        await screen.read()
        other = await Screen(viewers, key).open()
        await screen.close()
        for action in ("pause", "resume", "pause"):
            await asyncio.to_thread(getattr(served.world.coordinator.operators, action), "red")
            await other.read()
        await screen.open()
        assert set(await screen.read()) == {"patch"}
        assert screen.runs == truth(served, "red", "blue")
        assert screen.last_id == other.last_id
        await screen.close()
        for last_id in ("", "another-1", f"{screen.last_id}0", "x", f"{screen.last_id.split('-')[0]}-\u0663"):
            screen.last_id = last_id
            await screen.open()
            assert await screen.read() == ["snapshot"], last_id
            await screen.close()
        await other.close()

    talk(story())


def test_a_feed_that_nobody_viewed_goes_on_with_one_patch(served: Served) -> None:
    async def story() -> None:
        viewers, key = Viewers(served.service), served.key("viewer", "*")
        screen = await Screen(viewers, key).open()
        await screen.read()
        await screen.close()
        await asyncio.to_thread(served.world.coordinator.operators.stop, "red")
        await screen.open()
        assert await screen.read() == ["patch"]
        assert screen.runs == truth(served, "red", "blue")
        await screen.close()

    talk(story())


def test_a_slow_viewer_delays_nobody_and_gets_a_snapshot_in_place_of_what_it_missed() -> None:
    feed = Feed(lambda run: True, whole=False)

    def publish(number: int) -> None:
        news = feed.news({"red": {"run": "red", "round": number}}, "", None)
        assert news is not None
        feed.take(news)

    for number in range(1, RING + 11):
        publish(number)
    assert feed.number == RING + 10
    assert feed.after(feed.number - 1, 1).count(b"event: patch") == 1
    assert feed.after(10, 1).count(b"event: patch") == RING
    assert feed.after(9, 1).count(b"event: snapshot") == 1
    assert feed.after(9, 1) is feed.after(None, 7), "a snapshot is encoded once"
    assert feed.news({"red": {"run": "red", "round": RING + 10}}, "", None) is None


def test_viewers_have_a_limit_of_their_own(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.service, "viewer_slots", stream_slots(1, "viewers"))

    async def story() -> None:
        viewers, key = Viewers(served.service), served.key("viewer", "*")
        screen = await Screen(viewers, key).open()
        with pytest.raises(ProblemError, match="1 viewers") as refused:
            await Screen(viewers, key).open()
        assert refused.value.kind == "busy"
        assert served.service.stream_slots.amount == 0
        await screen.close()
        await (await Screen(viewers, key).open()).close()
        with pytest.raises(ProblemError, match="not valid"):
            await Screen(viewers, "qk_junk").open()
        assert served.service.viewer_slots.amount == 0

    talk(story())


def test_the_route_streams_frames_and_may_end_after_the_snapshot(served: Served) -> None:
    answer = served.ask("GET", f"{Route.STREAM}?follow=false", served.key("viewer", "red"))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    blocks = answer.text.split("\n\n")
    assert blocks[0] == "retry: 2000"
    (data,) = [line for line in blocks[1].splitlines() if line.startswith("data: ")]
    snapshot = json.loads(data.removeprefix("data: "))
    assert snapshot["runs"] == [truth(served, "red")["red"]]
    assert LiveSnapshot.model_validate(snapshot).fleet is None
    assert served.ask("GET", Route.STREAM, "").status_code == 401
    assert "quorate_stream_viewers 0.0" in served.ask("GET", "/metrics", served.key("viewer", "*")).text


def test_repro_who_does_not_see_everything_is_told_of_no_viewers_of_other_scopes() -> None:
    for whole, told in ((True, 7), (False, 1)):
        feed = Feed(lambda run: True, whole=whole)
        feed.viewers = 1
        news = feed.news({"red": {"run": "red"}}, "", None)
        assert news is not None
        feed.take(news)
        assert f'"viewers":{told}'.encode() in feed.after(None, 7)


def test_text_of_devices_breaks_no_frame() -> None:
    feed = Feed(lambda run: True, whole=False)
    news = feed.news({"red": {"run": "red", "stalled": "low\u2028battery\r\n\n<b>\x85"}}, "", None)
    assert news is not None
    assert news.frame.isascii()
    assert len(news.frame.strip().splitlines()) == 3


def test_scopes_are_told_apart_by_what_is_seen() -> None:
    def scope(*grants: str) -> tuple[str, ...]:
        return scope_of(Operator("key:1", tuple(map(Grant.parse, grants))))

    assert scope("owner red", "viewer *") == scope("viewer") == ("*",)
    assert scope("owner red") == scope("viewer red") == ("red",)
    assert scope("viewer b*", "viewer a") == scope("operator a", "viewer b*") == ("a", "b*")
