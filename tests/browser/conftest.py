"""Debian's Chromium, and people who read the dashboard of a real coordinator in it.

At the end of a test nothing was asked of another origin, and the console has no error that was not expected.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dashboards.site import page as built_page
from tests.coordinator.service.conftest import Server

CHROMIUM = "/usr/bin/chromium"
AXE = Path(__file__).resolve().parents[2] / "dashboards" / "web" / "node_modules" / "axe-core" / "axe.min.js"
READY_MS = 20_000
FIT_S = 5.0


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser. Tests skip where there is none, or no page. It ends with the module: as long as Playwright runs, no
    other test of the process can have an event loop."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make install")
    if shutil.which(CHROMIUM) is None:
        pytest.skip("Chromium is not here: scripts/debian.sh chromium")
    if built_page() is None:
        pytest.skip("the dashboard is not built: make install")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A coordinator with an authority inside."""
    started = Server.start(tmp_path_factory.mktemp("coordinator"))
    yield started
    started.stop()


def violations(page: Any) -> list[str]:
    """What axe-core finds in the tab as it is now, each with its first place."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make install")
    # By the debugger's own way, which the page's policy does not concern: a script element would be refused.
    if page.evaluate("window.axe === undefined"):
        page.evaluate(AXE.read_text("utf-8") + "; undefined")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(result => result.violations)")
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0]['failureSummary']}" for one in found]


class Visitor:
    """Somebody with a browser of their own: its cookies, its tabs, and what went wrong in them."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        self.context.set_default_timeout(READY_MS)
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page = self.tab()

    def tab(self) -> Any:
        """A new tab."""
        page = self.context.new_page()
        page.on("console", lambda said: said.type == "error" and self.errors.append(said.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        return page

    def open(self, place: str = "/", page: Any = None) -> Any:
        """Opens an address of the coordinator in the tab, the first one unless told."""
        tab = page or self.page
        tab.goto(self.url + place)
        return tab

    def log_in(self, key: str) -> Any:
        """Logs in with this key; the navigation is there afterwards."""
        self.open()
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("navigation").wait_for()
        return self.page

    def go(self, screen: str) -> Any:
        """Goes to a screen by its address."""
        self.page.evaluate("place => { location.hash = place }", screen)
        return self.page

    def expect(self, error: str) -> None:
        """Takes errors with these words out of those that went wrong. AssertionError where there is none."""
        found = [text for text in self.errors if re.search(error, text)]
        assert found, self.errors
        self.errors = [text for text in self.errors if text not in found]

    def allow(self, error: str) -> None:
        """Takes errors with these words out, where there may be none: whether Chromium notes an error depends on when a
        connection ended."""
        self.errors = [text for text in self.errors if not re.search(error, text)]

    def fits(self) -> None:
        """Waits until the page is as narrow as its window, which charts follow a moment later. AssertionError where
        it stays wider."""
        end = time.monotonic() + FIT_S
        while (wider := self.page.evaluate("document.documentElement.scrollWidth - innerWidth")) > 0:
            assert time.monotonic() < end, f"the page is {wider} pixels wider than its window"
            time.sleep(0.05)

    def violations(self) -> list[str]:
        """What axe-core finds in the tab as it is now, each with its first place."""
        return violations(self.page)

    def close(self) -> None:
        """Ends the visit. AssertionError where something went wrong that was not expected."""
        self.context.close()
        assert self.errors == []
        own = urlsplit(self.url).netloc
        assert [url for url in self.requests if urlsplit(url).netloc != own] == [], "another origin was asked"


@pytest.fixture
def visit(chromium: Any, server: Server) -> Iterator[Callable[..., Visitor]]:
    """Makes visitors of the module's coordinator."""
    visitors: list[Visitor] = []

    def begin(**options: Any) -> Visitor:
        visitors.append(Visitor(chromium, server.url, **options))
        return visitors[-1]

    yield begin
    for visitor in visitors:
        visitor.close()
