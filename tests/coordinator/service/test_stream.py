"""The event stream: each event once, in order, from wherever the client was; it ends when the run has ended."""

from __future__ import annotations

import json
import threading

import pytest

from client_sdk.protocol.operators import EventView
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
