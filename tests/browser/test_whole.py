"""The screens that belong to no run: the fleet, the process, and what operators did."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from client_sdk.protocol.names import Route
from tests.browser.conftest import Visitor
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

pytestmark = [pytest.mark.service, pytest.mark.slow]

Visit = Callable[..., Visitor]
MORE_THAN_A_PAGE = 53


@pytest.fixture(scope="module")
def devices(server: Server) -> list[str]:
    """The ids of some devices, in the order of the API."""
    for _ in range(MORE_THAN_A_PAGE):
        server.device("nothing")
    return [device["device"] for device in server.http.get(Route.DEVICES).json()]


@on_day(0, of=2)
def test_an_empty_fleet_says_the_next_command(visit: Visit, server: Server) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    visitor.go("#/fleet").get_by_text("No device has registered yet.").wait_for()
    assert visitor.page.get_by_text("quorate device --token-file").count()


def test_the_fleet_is_that_of_the_api_a_page_at_a_time(visit: Visit, server: Server, devices: list[str]) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/fleet")
    table = page.get_by_role("region", name="Table of devices")
    table.get_by_text(devices[0]).wait_for()
    assert table.locator("tbody code").all_inner_texts() == devices[:50]
    page.get_by_role("button", name="Next").click()
    table.get_by_text(devices[50]).wait_for()
    assert table.locator("tbody code").all_inner_texts() == devices[50:]
    page.get_by_label("Id or label").fill(devices[7])
    table.get_by_text(devices[8]).wait_for(state="detached")
    table.get_by_text(devices[7]).wait_for()
    assert table.locator("tbody tr").count() == 1
    page.get_by_label("Id or label").fill("")
    page.get_by_label("State").select_option("left")
    page.get_by_text("No device is as asked for.").wait_for()


def test_the_system_is_that_of_the_api(visit: Visit, server: Server) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/system")
    page.get_by_role("button", name="Show the table").click()
    page.get_by_role("cell", name="access").wait_for()
    found = server.http.get(Route.SYSTEM).json()
    (replica,) = found["replicas"]
    page.get_by_role("cell", name=replica["name"]).wait_for()
    assert page.get_by_text(found["version"], exact=True).count()


def test_the_audit_names_a_refusal(visit: Visit, server: Server) -> None:
    viewer = server.http.post(Route.KEYS, json={"role": "viewer"}).raise_for_status().json()
    refused = server.http.get(Route.AUDIT, headers={"Authorization": f"Bearer {viewer['text']}"})
    assert refused.status_code == 403
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/audit")
    page.get_by_role("cell", name="asked to create an API key").first.wait_for()
    page.get_by_role("button", name="Read again").click()
    page.locator("td .badge", has_text="was refused").first.wait_for()
    assert page.get_by_text(viewer["text"]).count() == 0
