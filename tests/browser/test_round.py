"""A round in the browser: the lanes of its devices are those of the API; large and secure rounds have none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client_sdk.protocol.insight import LaneBucket, LanesView
from client_sdk.protocol.names import Route
from client_sdk.protocol.operators import ExchangeView, RoundView, SecureView
from tests.browser.conftest import Visitor
from tests.coordinator.service.conftest import Server

pytestmark = [pytest.mark.service, pytest.mark.slow]

HTML = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def run(server: Server) -> str:
    """A run whose first round closed with two reports, one device that withdrew, one late one and one that vanished."""
    name = server.create_run("laned", select=5, goal=2, cohort={"select_s": 600}, finish={"rounds": 1})
    devices = [server.device(name, slot) for slot in range(5)]
    for device in devices:
        device.check_in()
    works = [device.wait_for_work() for device in devices]
    for device, work in zip(devices[:4], works, strict=False):
        device.started(work).raise_for_status()
    devices[4].withdraw(works[4], HTML).raise_for_status()
    for place in (0, 1):
        devices[place].put(works[place], devices[place].body(works[place])).raise_for_status()
    assert devices[2].put(works[2], devices[2].body(works[2])).status_code == 409
    return name


@pytest.fixture(scope="module", params=["dark", "light"])
def visitor(request: pytest.FixtureRequest, chromium: Any, server: Server, run: str) -> Iterator[Visitor]:
    found = Visitor(chromium, server.url, color_scheme=request.param, reduced_motion="reduce")
    found.log_in(server.key)
    yield found
    found.close()


def seen(page: Any) -> list[str]:
    """How the lanes ended, from above."""
    return [str(text).strip() for text in page.locator(".lane-end").all_inner_texts()]


def test_a_click_on_a_row_of_the_rounds_leads_to_the_lanes_of_its_devices(
    visit: Callable[..., Visitor], server: Server, run: str
) -> None:
    page = visit().log_in(server.key)
    page.get_by_role("link", name=run).first.click()
    page.get_by_role("region", name="Rounds, the newest first").get_by_role("cell", name="committed").click(force=True)
    page.get_by_role("heading", name="Round 1").wait_for()
    page.get_by_role("region", name="Lanes of round 1").wait_for()
    found = server.http.get(Route.LANES.format(run=run, round=1)).json()
    assert found["ends"] == {"reported": 2, "late": 1, "dropped": 1, "withdrawn": 1}
    assert sorted(seen(page)) == sorted(lane["end"] for lane in found["lanes"])
    assert page.locator("[data-fact=reported]").inner_text() == "2 / 5"
    assert (page.locator("[data-fact=late]").inner_text(), page.locator("[data-fact=dropped]").inner_text()) == (
        "1",
        "1",
    )
    assert page.get_by_text("1 while training").count() == 1, "where the vanished device was"
    assert page.locator("main img").count() == 0, "a reason of a device is text"
    assert page.get_by_text(HTML).count()


def test_lanes_are_sorted_filtered_zoomed_and_lead_to_the_device(visitor: Visitor, run: str, server: Server) -> None:
    page = visitor.go(f"#/runs/{run}/rounds/1")
    page.get_by_role("region", name="Lanes of round 1").wait_for()
    page.get_by_label("Sorted by").select_option("how it ended")
    assert seen(page) == ["dropped", "late", "withdrawn", "reported", "reported"]
    page.get_by_role("group", name="Which devices").get_by_role("button", name="late").click()
    assert seen(page) == ["late"]
    line = page.locator(".lane .closing").first
    before = line.get_attribute("style")
    page.get_by_role("button", name="Zoom in").click()
    assert page.locator(".lane .closing").count() == 0 or line.get_attribute("style") != before
    page.get_by_role("button", name="Whole round").click()
    assert line.get_attribute("style") == before
    (late,) = [lane for lane in lanes(server, run) if lane["end"] == "late"]
    page.locator(".lane").press("Enter")
    page.get_by_role("heading", name=f"Device {late['device']}").wait_for()
    page.get_by_role("region", name="Last rounds of").get_by_role("cell", name="late", exact=True).wait_for()
    page.get_by_role("button", name="Show the table").click()
    table = page.get_by_role("region", name="Lanes of round 1")
    assert table.get_by_role("row").count() == 2


def lanes(server: Server, run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.http.get(Route.LANES.format(run=run, round=1)).json()["lanes"]
    return found


def test_axe_finds_nothing_and_a_phone_shows_all_of_it(visitor: Visitor, run: str) -> None:
    visitor.go("#/runs")
    page = visitor.go(f"#/runs/{run}/rounds/1")
    page.locator(".lane").first.click()
    page.get_by_role("region", name="Last rounds of").or_(page.get_by_text("0 rounds joined")).first.wait_for()
    assert visitor.violations() == []
    page.set_viewport_size({"width": 390, "height": 844})
    try:
        visitor.fits()
    finally:
        page.set_viewport_size({"width": 1400, "height": 900})


def test_a_round_that_is_not_there_says_so(visit: Callable[..., Visitor], server: Server, run: str) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go(f"#/runs/{run}/rounds/77")
    page.get_by_text("Nothing is known of this round.").wait_for()
    page.get_by_text(f"quorate rounds {run}").wait_for()
    visitor.expect("404")


def answered(visitor: Visitor, run: str, view: LanesView, **more: Any) -> None:
    """The page is told this of round 1: messages that are valid, of a round that would take long to play."""
    told = RoundView(round=1, status="committed", opened_at=1000, closed_at=1060, **more)
    for path, message in ((Route.ROUND, told), (Route.LANES, view)):
        answer(visitor, path.format(run=run, round=1), message.model_dump_json())


def answer(visitor: Visitor, path: str, body: str) -> None:
    visitor.context.route(
        lambda asked: asked.partition("?")[0] == visitor.url + path,
        lambda route: route.fulfill(body=body, content_type="application/json"),
    )


def test_a_thousand_lanes_are_not_all_in_the_document(visit: Callable[..., Visitor], server: Server, run: str) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    made = [
        {"device": f"d{n:04}", "selected_at": 1001, "started_at": 1002, "ended_at": 1003 + n / 20, "end": "reported"}
        for n in range(1000)
    ]
    answered(visitor, run, LanesView(devices=1000, ends={"reported": 1000}, lanes=made))
    page = visitor.go(f"#/runs/{run}/rounds/1")
    page.get_by_text("d0000").wait_for()
    assert page.locator(".lane").count() < 60
    page.get_by_role("region", name="Lanes of round 1").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    page.get_by_text("d0999").wait_for()
    assert page.get_by_text("d0000").count() == 0


def test_a_round_of_more_devices_is_shown_in_parts_of_its_time(
    visit: Callable[..., Visitor], server: Server, run: str
) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    buckets = [LaneBucket(from_at=1000 + n, to_at=1001 + n, started=50, ends={"reported": 49}) for n in range(60)]
    ends = {"reported": 2940, "dropped": 60}
    answered(visitor, run, LanesView(devices=3000, ends=ends, buckets=buckets))
    page = visitor.go(f"#/runs/{run}/rounds/1")
    page.get_by_role("img", name="Devices of round 1 against time").wait_for()
    assert page.locator(".lane").count() == 0
    assert page.locator("[data-fact=reported]").inner_text() == "2,940 / 3,000"
    page.get_by_role("button", name="Show the table").click()
    assert page.get_by_role("region", name="Devices of round 1 against time").get_by_role("row").count() == 61


def test_a_secure_round_has_no_lanes_and_says_why(visit: Callable[..., Visitor], server: Server, run: str) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    why = "This round is secure: the coordinator sees which messages came."
    exchange = ExchangeView(exchange="mask", expected=9, came=7, needed=5, bytes=900, began_at=1001, ended_at=1009)
    secure = SecureView(attempts=1, roster=9, threshold=5, signers=5, exchanges=(exchange,))
    answered(visitor, run, LanesView(devices=9, secure=why), kind="secure", secure=secure)
    page = visitor.go(f"#/runs/{run}/rounds/1")
    page.get_by_text(why).wait_for()
    assert page.locator(".exchange", has_text="mask").get_by_text("7 of 9").count() == 1
    assert page.locator(".lane").count() == 0
