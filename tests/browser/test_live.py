"""A run in the browser: numbers change without a reload and are those of the API; what stands still says why."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from client_sdk.protocol.names import Route
from coordinator.service.stream_viewers import RECENT
from tests.browser.conftest import Visitor
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import Device
from tests.coordinator.service.test_rounds import until as wait
from tests.rotating import on_day

pytestmark = [pytest.mark.service, pytest.mark.slow]

Visit = Callable[..., Visitor]
HTML = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def shown(page: Any, stage: str) -> str:
    return str(page.locator(f"[data-stage={stage}]").inner_text())


def until(page: Any, stage: str, number: int) -> None:
    page.locator(f"[data-stage={stage}]", has_text=re.compile(f"^{number}$")).wait_for()


def trained(device: Device) -> None:
    """The device takes part in one round."""
    work = device.wait_for_work()
    device.started(work).raise_for_status()
    device.put(work, device.body(work)).raise_for_status()


def test_the_numbers_change_without_a_reload_and_are_those_of_the_api(visit: Visit, server: Server) -> None:
    run = server.create_run("watched", select=3, goal=3, cohort={"select_s": 600}, finish={"rounds": 2})
    page = visit().log_in(server.key)
    page.evaluate("window.sameDocument = true")
    page.get_by_role("link", name=run).first.click()
    page.get_by_role("heading", name=run).wait_for()
    devices = [server.device(run, slot) for slot in range(3)]
    for device in devices:
        device.check_in()
    works = [device.wait_for_work() for device in devices]
    until(page, "selected", 3)
    for device, work in zip(devices[:2], works, strict=False):
        device.started(work).raise_for_status()
        device.put(work, device.body(work)).raise_for_status()
    until(page, "reported", 2)
    funnel = server.http.get(Route.RUN.format(run=run)).json()["funnel"]
    assert {stage: shown(page, stage) for stage in funnel} == {stage: str(count) for stage, count in funnel.items()}
    assert page.locator("[data-fact=reports]").inner_text() == "2 / 3"
    devices[2].started(works[2]).raise_for_status()
    devices[2].put(works[2], devices[2].body(works[2])).raise_for_status()
    page.locator("[data-fact=rounds]", has_text="1 / 2").wait_for()
    page.get_by_role("cell", name="committed").wait_for()
    assert page.evaluate("window.sameDocument"), "the page was not loaded again"


def test_a_text_of_a_device_is_text(visit: Visit, server: Server) -> None:
    run = server.create_run("hostile", select=2, goal=2, cohort={"select_s": 600})
    devices = [server.device(run, slot) for slot in range(2)]
    for device in devices:
        device.check_in()
    works = [device.wait_for_work() for device in devices]
    page = visit().log_in(server.key)
    page.get_by_role("link", name=run).first.click()
    devices[0].withdraw(works[0], HTML).raise_for_status()
    page.get_by_text(HTML).first.wait_for()
    assert page.locator("main img, main script").count() == 0


def test_a_run_that_stands_still_says_why_and_what_to_do(visit: Visit, server: Server) -> None:
    run = server.create_run("still", select=5, goal=5, cohort={"select_s": 600})
    page = visit().log_in(server.key)
    page.get_by_role("link", name=run).first.click()
    page.get_by_text("0 eligible devices wait; a round needs at least 5.").wait_for()
    assert page.get_by_text("quorate device --learner").count()
    assert shown(page, "waiting") == "–", "nobody has counted them: no cohort was drawn"


def test_the_devices_of_the_last_round_are_on_the_live_screen(visit: Visit, server: Server) -> None:
    run = server.create_run("devices-seen", select=2, goal=2, cohort={"select_s": 600}, finish={"rounds": 2})
    devices = [server.device(run, slot) for slot in range(2)]
    for device in devices:
        device.check_in()
    works = [device.wait_for_work() for device in devices]
    visitor = visit()
    page = visitor.log_in(server.key)
    page.get_by_role("link", name=run).first.click()
    until(page, "selected", 2)
    assert page.get_by_text("Devices of round").count() == 0, "no round has closed"
    for device, work in zip(devices, works, strict=True):
        device.started(work).raise_for_status()
        device.put(work, device.body(work)).raise_for_status()
    panel = page.get_by_role("region", name="Devices of round 1", exact=True)
    canvas = panel.get_by_role("img", name="Lanes of the 2 devices of round 1")
    canvas.wait_for()
    painted = "one => one.getContext('2d').getImageData(0, 0, one.width, one.height).data.some(part => part > 0)"
    assert canvas.evaluate(painted), "the lanes are drawn"
    panel.get_by_role("button", name="Show the table").click()
    assert panel.get_by_role("cell", name="reported").count() == 2
    assert visitor.violations() == []
    panel.get_by_role("link", name="all 2 lanes").click()
    page.get_by_role("heading", name="Round 1").wait_for()


def test_the_cards_of_runs_say_whether_they_learn(visit: Visit, server: Server) -> None:
    run = server.create_run("learning", finish={"rounds": 2})
    trained(server.device(run))
    line = Route.RUN_CHECKPOINTS.format(run=run)
    wait(lambda: len(server.http.get(line).json()) == 2)
    for row, accuracy in zip(server.http.get(line).json(), (0.25, 0.75), strict=True):
        score = {"examples": 20, "metrics": {"accuracy": accuracy}}
        report = {"version": row["version"], "digest": row["digest"], "source": "test", "score": score}
        server.http.post(Route.METRICS.format(run=run), json=report).raise_for_status()
    page = visit().log_in(server.key)
    card = page.get_by_role("main").get_by_role("link", name=re.compile(f"^{run}"))
    card.get_by_text("accuracy 0.75").wait_for()
    card.get_by_text("▲ +0.5 in 1 version").wait_for()
    card.click()
    page.get_by_text("▲ +0.5 in 1 round").wait_for()
    page.get_by_text("on 20 examples").wait_for()


@on_day(0, of=2)
def test_eight_tabs_share_one_stream(visit: Visit, server: Server) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    tabs = [visitor.page, *(visitor.open("/", visitor.tab()) for _ in range(7))]
    run = server.create_run("shared")
    for tab in tabs:
        tab.get_by_role("link", name=run).first.wait_for()
    assert server.http.get(Route.SYSTEM).json()["viewers"] == 1


@on_day(0, of=2)
def test_the_connection_comes_back_after_a_restart(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("restarted")
    server = Server.start(folder)
    visitor = Visitor(chromium, server.url)
    try:
        visitor.log_in(server.key)
        server.create_run("before")
        visitor.page.get_by_role("link", name="before").first.wait_for()
        server.stop()
        visitor.page.get_by_text("Connection lost since").wait_for()
        server = Server.start(folder, port=int(server.url.rsplit(":", 1)[1]))
        server.create_run("after")
        visitor.page.get_by_role("link", name="after").first.wait_for(timeout=40_000)
        assert visitor.page.get_by_text("Connection lost since").count() == 0
        visitor.allow("ERR_|Failed to load")
    finally:
        server.stop()
        visitor.close()


def test_who_takes_part_and_what_was_done_are_shown_and_titles_say_where(visit: Visit, server: Server) -> None:
    run = server.create_run(
        "heard", select=2, goal=1, cohort={"select_s": 600}, aggregation={"clip_norm": 0.5}, finish={"rounds": 3}
    )
    devices = [server.device(run, slot) for slot in range(2)]
    for device in devices:
        device.check_in()
    works = [device.wait_for_work() for device in devices]
    page = visit().log_in(server.key)
    wait(lambda: page.title() == "Runs · Quorate")
    page.get_by_role("link", name=run).first.click()
    wait(lambda: page.title() == f"{run} · Live · Quorate")
    devices[0].started(works[0]).raise_for_status()
    devices[0].put(works[0], devices[0].body(works[0], value=2.0)).raise_for_status()
    table = page.get_by_role("region", name="Devices by how often they counted")
    table.get_by_role("row").filter(has_text=works[0].device).filter(has_text=re.compile("1")).wait_for()
    assert table.get_by_role("row").filter(has_text=works[1].device).count() == 1, "who never counted is there too"
    page.get_by_role("cell", name="1 of 1 updates scaled down to clip_norm").wait_for()
    page.get_by_role("link", name="Round 1", exact=True).click()
    wait(lambda: page.title() == f"{run} · Round 1 · Quorate")
    page.locator("[data-fact=treated]", has_text="1").wait_for()


@on_day(1, of=2)
def test_runs_that_ended_long_ago_are_shown_where_they_are_asked_for(visit: Visit, server: Server) -> None:
    """By a press of a button, and by the address of one of them: of its page, of a comparison."""
    runs = [server.create_run(f"ended-{number:03}", cohort={"select_s": 600}) for number in range(RECENT + 2)]
    for run in runs:
        server.http.post(Route.RUN_ACTION.format(run=run, action="stop")).raise_for_status()
    visitor = visit()
    page = visitor.log_in(server.key)
    page.locator(".card", has_text=runs[-1]).wait_for()
    assert page.locator(".card", has_text=runs[0]).count() == 0
    page.get_by_role("button", name="Show older runs").click()
    page.locator(".card", has_text=runs[0]).wait_for()
    assert page.locator(".card", has_text="ended-").count() == len(runs)
    assert page.get_by_role("button", name="Show older runs").count() == 0
    page.reload()
    page.locator(".card", has_text=runs[-1]).wait_for()
    visitor.go(f"#/runs/{runs[0]}")
    page.get_by_role("heading", name=runs[0]).wait_for()
    page.reload()
    visitor.go(f"#/compare?runs={runs[1]},gone")
    page.get_by_text("1 run of this address is not in your scope: gone.").wait_for()
    visitor.expect("404")
