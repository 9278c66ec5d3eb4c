"""The event stream: each event once, in order, from wherever the client was; it ends when the run has ended."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.operators import EventView
from coordinator.access import LOCAL_OWNER
from coordinator.service import stream
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.test_edge import refused
from tests.coordinator.service.test_rounds import until


def parse(text: str) -> list[EventView]:
    """The events of a stream; checks that ``id`` and ``event`` say what the data says."""
    events = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if "data" in lines:
            event = EventView.model_validate_json(lines["data"])
            assert (lines["id"], lines["event"]) == (str(event.seq), event.kind)
            events.append(event)
    return events


@pytest.fixture(scope="module")
def ended(server: Server) -> str:
    """A run with one committed round, ended by itself."""
    run = server.create_run("ended", finish={"rounds": 1})
    device = server.device(run)
    work = device.wait_for_work()
    device.put(work, device.body(work)).raise_for_status()
    until(lambda: server.http.get(f"/v1/runs/{run}").json()["status"] == "finished")
    return run


def test_the_stream_of_an_ended_run_is_its_whole_log_and_ends(server: Server, ended: str) -> None:
    response = server.http.get(f"/v1/runs/{ended}/events")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    events = parse(response.text)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert server.http.get(f"/v1/runs/{ended}").json()["seq"] == events[-1].seq
    assert len(events) >= 4


def test_a_client_that_lost_the_connection_misses_nothing_and_repeats_nothing(server: Server, ended: str) -> None:
    path = f"/v1/runs/{ended}/events"
    whole = parse(server.http.get(path).text)
    assert parse(server.http.get(path, headers={"Last-Event-ID": "2"}).text) == whole[2:]
    assert parse(server.http.get(f"{path}?after=3").text) == whole[3:]
    assert parse(server.http.get(f"{path}?after=1", headers={"Last-Event-ID": "3"}).text) == whole[3:]
    after_all = server.http.get(path, headers={"Last-Event-ID": str(whole[-1].seq)})
    assert (after_all.status_code, after_all.content) == (204, b"")
    refused(server.http.get(path, headers={"Last-Event-ID": "soon"}), 422, "invalid-request")


@pytest.mark.parametrize("number", [str(2**63 - 1), str(2**63), "9" * 30, "9" * 5000])
def test_a_position_beyond_all_events_is_no_fault_of_the_coordinator(server: Server, ended: str, number: str) -> None:
    path = f"/v1/runs/{ended}/events"
    assert server.http.get(path, headers={"Last-Event-ID": number}).status_code == 204
    if len(number) < 20 and int(number) < 2**63:
        assert server.http.get(f"{path}?after={number}").status_code == 204
    else:
        refused(server.http.get(f"{path}?after={number}"), 422, "invalid-request")
        refused(server.http.get(f"/v1/runs/{ended}/rounds?after={number}"), 422, "invalid-request")


def test_a_stream_may_end_at_the_newest_event(server: Server) -> None:
    server.create_run("open")
    events = parse(server.http.get("/v1/runs/open/events?follow=false").text)
    assert events
    head = events[-1].seq
    assert parse(server.http.get(f"/v1/runs/open/events?follow=false&after={head}").text) == []
    server.http.post("/v1/runs/open/stop")


def test_events_arrive_while_they_happen_and_the_stream_ends_with_the_run(server: Server) -> None:
    run = server.create_run("live")
    seen: list[EventView] = []
    open_ = threading.Event()

    def follow() -> None:
        with server.http.stream("GET", f"/v1/runs/{run}/events") as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    seen.append(EventView.model_validate(json.loads(line[6:])))
                    open_.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert open_.wait(10)
    before = len(seen)
    assert server.meter("quorate_event_streams") == 1
    server.http.post(f"/v1/runs/{run}/pause")
    until(lambda: len(seen) > before)
    server.http.post(f"/v1/runs/{run}/stop")
    thread.join(10)
    assert not thread.is_alive()
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert server.meter("quorate_event_streams") == 0


def test_a_stream_of_no_run_is_refused(server: Server) -> None:
    refused(server.http.get("/v1/runs/nobody/events"), 404, "unknown-run")


@pytest.mark.parametrize("reason", ["low\u2028battery", "low\u2029\x85\x1c\x0b\r\n battery", "Akku schwach \u00fc"])
def test_line_breaks_of_unicode_in_a_devices_words_break_no_event(reason: str) -> None:
    events = [EventView(seq=at, at=1.5, kind="withdrawn", body={"reason": reason}) for at in (7, 8)]
    sent = b"retry: 2000\n\n" + b"".join(map(stream.frame, events))
    answer = httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, content=sent, request=httpx2.Request("GET", "http://x")
    )
    read = [event for event in httpx2.EventSource(answer) if event.data]
    assert [(event.id, event.event) for event in read] == [("7", "withdrawn"), ("8", "withdrawn")]
    assert [EventView.model_validate_json(event.data) for event in read] == events
    assert sent.isascii()


def streamed(operators: object) -> list[bytes]:
    """The pieces of a stream of the run that these operators know."""

    async def work(task: Any, *args: Any) -> Any:
        return task(*args)

    async def async_wait(key: str, seen: int, wait_s: float) -> bool:
        return False

    service: Any = SimpleNamespace(
        coordinator=SimpleNamespace(operators=operators, access=SimpleNamespace(operator=lambda key: LOCAL_OWNER)),
        settings=SimpleNamespace(reread_s=1.0),
        signals=SimpleNamespace(version=lambda key: 0, async_wait=async_wait),
        stopping=False,
        work=work,
    )

    async def all_of_it() -> list[bytes]:
        return [piece async for piece in stream._events(service, "a key", "idle", 0, True)]

    return asyncio.run(all_of_it())


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
def test_an_ended_run_of_several_pages_is_streamed_to_its_end(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(stream, "_PAGE", 2)
    logged = [EventView(seq=seq, at=1.0, kind="Tick", body={}) for seq in range(1, count + 1)]

    class Ended:
        def run(self, run: str) -> SimpleNamespace:
            return SimpleNamespace(over=True)

        def events(self, run: str, after: int, most: int) -> list[EventView]:
            return [event for event in logged if event.seq > after][:most]

    assert parse(b"".join(streamed(Ended())).decode()) == logged


def test_an_idle_stream_is_kept_alive_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.0)
    looks: list[str] = []

    class Idle:
        """What operators ask of a coordinator with one run, which has no events and is over at the third look."""

        def run(self, run: str) -> SimpleNamespace:
            looks.append(run)
            return SimpleNamespace(over=len(looks) == 3)

        def events(self, run: str, after: int, most: int) -> list[EventView]:
            return []

    first, *comments = streamed(Idle())
    assert first == b"retry: 2000\n\n"
    assert len(comments) == 2
    assert all(comment.startswith(b": ") and comment.endswith(b"\n\n") for comment in comments)


@pytest.mark.slow
def test_more_streams_than_the_limit_are_refused_until_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORATE_STREAMS", "1")
    small = Server.start(tmp_path)
    try:
        run = small.create_run("limited")
        path = f"/v1/runs/{run}/events"
        with small.http.stream("GET", path) as first:
            lines = first.iter_lines()  # what is dropped closes the stream
            assert next(lines) == "retry: 2000"
            second = small.http.get(path)
            refused(second, 503, "busy")
            assert second.headers["retry-after"] == "30"
        until(lambda: small.meter("quorate_event_streams") == 0)
        small.http.post(f"/v1/runs/{run}/stop")
        with OperatorClient(small.url) as operator:
            events = list(operator.events(run))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert events == parse(small.http.get(path).text)
    finally:
        small.stop()
