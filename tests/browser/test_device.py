"""One device's page: what the API says of it, from the fleet's table and from a lane, and never an address."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from client_sdk.protocol.devices import Registration
from client_sdk.protocol.names import Route
from tests.browser.conftest import Visitor
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import Device
from tests.rotating import on_day

pytestmark = [pytest.mark.service, pytest.mark.slow]

Visit = Callable[..., Visitor]
HTML = "<img src=x onerror=alert(1)>/ward 7"


@on_day(0, of=2)
def test_a_device_is_shown_from_the_fleet_and_from_its_lane(visit: Visit, server: Server) -> None:
    run = server.create_run("looked-into")
    device = server.device(run)
    work = device.wait_for_work()
    device.started(work).raise_for_status()
    device.put(work, device.body(work)).raise_for_status()
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/fleet")
    page.get_by_label("Id or label").fill(device.id)
    page.get_by_role("link", name=device.id).click()
    page.get_by_role("heading", name=device.id).wait_for()
    told = server.http.get(Route.DEVICE.format(device=device.id)).json()
    assert page.locator("[data-fact=joined]").inner_text() == str(told["device"]["rounds_joined"]) == "1"
    page.get_by_text("valid", exact=True).wait_for()
    hours = sum(hour["seen"] for hour in told["availability"])
    assert hours >= 1
    assert page.locator("[data-fact=hours-seen]").inner_text() == f"seen in {hours} of the last 24 hours"
    assert page.locator(".hours-seen .seen").count() == hours
    page.get_by_role("link", name="1", exact=True).click()
    page.get_by_role("heading", name="Round 1").wait_for()
    page.locator(".lane").first.click()
    page.get_by_role("link", name="More of this device").click()
    page.get_by_text("All updates that it sent counted.").wait_for()
    assert not re.search(r"127\.0\.0\.1|::1", page.locator("main").inner_text())


@on_day(1, of=2)
def test_who_fits_no_run_and_whose_identity_is_shared_are_told(visit: Visit, server: Server) -> None:
    run = server.create_run("lacking")
    device = server.device(run)
    device.learner = "tests:another"
    for process in "ababab":
        device.check_in(process=process).raise_for_status()
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/fleet")
    # The numbers of the fleet may be 10 s old where the page asks for them, and it asks every 15 s.
    page.locator("[data-fact=shared-identities]", has_text=device.id).wait_for(timeout=40_000)
    page.get_by_label("State").select_option("waiting, fits no run")
    page.get_by_role("cell", name="which this device does not have").wait_for()
    assert visitor.violations() == []
    page.get_by_role("link", name=device.id).first.click()
    told = page.locator("[data-fact=amiss]")
    told.get_by_text(f"Run {run}: the plan wants the learner tests:{run}, which this device does not have").wait_for()
    assert "its folder was copied" in told.inner_text()
    device.learner = f"tests:{run}"
    work = device.check_in(20, process="a").json()
    assert work["run"] == run
    assert "its folder was copied" in work["warning"]
    visitor.go(f"#/runs/{run}").locator("[data-fact=shared-identities]", has_text=device.id).wait_for()


class Labelled(Device):
    """A device that calls itself something."""

    def register(self, **options: Any) -> httpx2.Response:
        message = Registration(certificate=self.certificate.encoded.hex(), examples=10, label=HTML)
        return self.send("POST", Route.REGISTER, content=message.model_dump_json(), **options)


def test_a_label_that_holds_html_is_text_wherever_it_is_shown(visit: Visit, server: Server) -> None:
    run = server.create_run("hostile-label")
    device = Labelled(server.http, server.token, run)
    work = device.wait_for_work()
    device.started(work).raise_for_status()
    device.withdraw(work, HTML).raise_for_status()
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/fleet")
    page.get_by_label("Id or label").fill("<img")
    page.get_by_role("cell", name=HTML).wait_for()
    page.get_by_role("link", name=device.id).click()
    page.get_by_role("heading", name=HTML).wait_for()
    visitor.go(f"#/runs/{run}/rounds/1")
    page.locator(".lane", has_text=HTML).wait_for()
    for screen in (
        f"#/fleet/{quote(HTML, safe='')}",
        f"#/runs/{quote(HTML, safe='')}",
        f"#/start/{quote(HTML, safe='')}/1",
    ):
        visitor.go(screen).locator("main", has_text=HTML).wait_for()
    assert page.locator("main img").count() == 0
    visitor.allow("404|422")


def test_nothing_is_known_of_other_devices(visit: Visit, server: Server) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/fleet/nobody")
    page.get_by_text("There is no device nobody in your scope.").wait_for()
    assert page.get_by_text("quorate devices").count()
    visitor.expect("404")
