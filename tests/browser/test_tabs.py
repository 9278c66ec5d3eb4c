"""Tabs of one browser over HTTP/1.1, which gives an origin six connections: one stream serves all that are seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from client_sdk.protocol.names import Route
from tests.browser.conftest import Visitor
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

pytestmark = [pytest.mark.service, pytest.mark.slow]

Visit = Callable[..., Visitor]
HIDDEN_MS = 25_000
"""Longer than a hidden tab keeps its stream."""


def streams(server: Server, wanted: int) -> bool:
    """Whether the coordinator comes to serve so many viewers."""
    deadline = time.monotonic() + 20
    while server.http.get(Route.SYSTEM).json()["viewers"] != wanted:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def turn(page: Any, state: str) -> None:
    """Hides the tab, or shows it: no tab of a headless browser is ever hidden."""
    page.evaluate(
        "state => { Object.defineProperty(document, 'visibilityState', {value: state, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        state,
    )


@on_day(1, of=2)
def test_all_of_eight_tabs_are_live_and_can_act(visit: Visit, server: Server) -> None:
    run = server.create_run("in-eight-tabs")
    visitor = visit()
    visitor.log_in(server.key)
    tabs = [visitor.page, *(visitor.open(f"/#/runs/{run}", visitor.tab()) for _ in range(7))]
    visitor.go(f"#/runs/{run}")
    for tab in tabs:
        tab.get_by_role("button", name="Pause", exact=True).wait_for()
    tabs[5].get_by_role("button", name="Pause", exact=True).click()
    for tab in tabs:
        tab.get_by_role("button", name="Resume", exact=True).wait_for()
    assert streams(server, 1)
    assert visitor.page.evaluate("performance.getEntriesByType('navigation')[0].nextHopProtocol") == "http/1.1"


def test_a_hidden_tab_closes_its_stream_and_opens_it_again(visit: Visit, server: Server) -> None:
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.log_in(server.key)
    assert streams(server, 1)
    turn(page, "hidden")
    page.clock.fast_forward(HIDDEN_MS)
    assert streams(server, 0)
    run = server.create_run("while-hidden")
    turn(page, "visible")
    page.get_by_role("link", name=run).first.wait_for()
    assert streams(server, 1)


def test_a_hidden_tab_hands_the_stream_to_one_that_is_seen(visit: Visit, server: Server) -> None:
    visitor = visit()
    visitor.page.clock.install()
    first = visitor.log_in(server.key)
    second = visitor.open("/", visitor.tab())
    second.get_by_role("heading", name="Runs").wait_for()
    turn(first, "hidden")
    first.clock.fast_forward(HIDDEN_MS)
    run = server.create_run("handed-over")
    for tab in (second, first):
        tab.get_by_role("link", name=run).first.wait_for()
    assert streams(server, 1)


def test_nothing_moves_for_who_wants_no_motion(visit: Visit, server: Server) -> None:
    run = server.create_run("quiet")
    moving = "document.getAnimations().filter(one => one.playState === 'running').length"
    still, lively = visit(reduced_motion="reduce"), visit(reduced_motion="no-preference")
    for visitor in (still, lively):
        visitor.log_in(server.key)
        visitor.go(f"#/runs/{run}").get_by_role("button", name="Pause", exact=True).wait_for()
    still.page.locator("svg .pulse").first.wait_for()
    assert lively.page.evaluate(moving) > 0, "this run's sign pulses"
    assert still.page.evaluate(moving) == 0
