"""Each screen in both themes and at both sizes: nothing that axe-core objects to, nothing wider than the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client_sdk.protocol.names import Route
from tests.browser.conftest import Visitor
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import model_bytes
from tests.rotating import in_parts

pytestmark = [pytest.mark.service, pytest.mark.slow]

SCREENS = {
    "runs": "#/runs",
    "run": "#/runs/seen",
    "standstill": "#/runs/empty",
    "secure": "#/runs/seen/secure",
    "privacy": "#/runs/private/privacy",
    "checkpoints": "#/runs/seen/checkpoints",
    "start": "#/start",
    "start-from": "#/start/seen/1",
    "fleet": "#/fleet",
    "device": "#/fleet/DEVICE",
    "system": "#/system",
    "audit": "#/audit",
    "missing": "#/nothing",
}


@pytest.fixture(scope="module")
def run(server: Server) -> str:
    """A run with two rounds, metrics, a device, and a run beside it without any."""
    server.create_run("empty", select=3)
    name = server.create_run("seen", finish={"rounds": 2})
    device = server.device(name)
    for _ in range(2):
        work = device.wait_for_work()
        device.started(work).raise_for_status()
        device.put(work, device.body(work)).raise_for_status()
    report = {
        "version": 0,
        "digest": model_bytes()[1],
        "source": "test",
        "score": {"examples": 10, "metrics": {"loss": 1}},
    }
    server.http.post(Route.METRICS.format(run=name), json=report).raise_for_status()
    private = server.create_run(
        "private",
        cohort={"most_rounds": 2},
        aggregation={"weighting": "equal"},
        privacy={"clip": 1.0, "noise": 2.0, "delta": 1e-6},
        finish={"rounds": 3},
    )
    device = server.device(private)
    work = device.wait_for_work()
    device.put(work, device.body(work)).raise_for_status()
    return name


@pytest.fixture(scope="module", params=["dark", "light"])
def visitor(request: pytest.FixtureRequest, chromium: Any, server: Server, run: str) -> Iterator[Visitor]:
    found = Visitor(chromium, server.url, color_scheme=request.param, reduced_motion="reduce")
    found.log_in(server.key)
    yield found
    found.close()


def place(visitor: Visitor, screen: str) -> str:
    """The screen's address. The device is the first of the fleet."""
    if "DEVICE" not in SCREENS[screen]:
        return SCREENS[screen]
    first = "fetch('/v1/devices?limit=1').then(answer => answer.json()).then(found => found[0].device)"
    return SCREENS[screen].replace("DEVICE", visitor.page.evaluate(first))


@pytest.mark.parametrize("screen", in_parts(SCREENS, of=2))
def test_axe_finds_nothing(visitor: Visitor, screen: str) -> None:
    page = visitor.go(place(visitor, screen))
    page.locator("main h1").wait_for()
    page.get_by_text("Loading …").first.wait_for(state="detached")
    assert visitor.violations() == []


@pytest.mark.parametrize("screen", SCREENS)
def test_a_phone_shows_all_of_it(visitor: Visitor, screen: str) -> None:
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    try:
        page = visitor.go(place(visitor, screen))
        page.locator("main h1").wait_for()
        visitor.fits()
    finally:
        visitor.page.set_viewport_size({"width": 1400, "height": 900})


def test_the_login_has_nothing_that_axe_finds(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    visitor.open().get_by_label("API key").wait_for()
    assert visitor.violations() == []


def test_the_keyboard_reaches_the_content_and_the_table_behind_a_chart(visitor: Visitor) -> None:
    page = visitor.go(SCREENS["run"])
    page.reload()
    page.get_by_role("img", name="loss against rounds").wait_for()
    page.locator("body").press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    button = page.get_by_role("button", name="Show the table").first
    button.focus()
    page.keyboard.press("Enter")
    page.get_by_role("region", name="loss against rounds").wait_for()
    page.get_by_role("columnheader", name="examples").wait_for()
