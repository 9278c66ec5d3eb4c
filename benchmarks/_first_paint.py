"""How soon a person sees a run: a warm server, a cold browser (a process and a profile of its own), loopback.

The browser opens a one-time login link, as ``quorate serve`` prints it. The browser's own clock, which begins with the
navigation, says when it first painted text, and when the card of a run had its numbers. The second comes after the
link is exchanged for a session and the stream's first snapshot is there.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._wire import ServerProcess, enrol
from benchmarks.coordinator import Federation
from benchmarks.harness import Row, Spread
from client_sdk.http.operator import OperatorClient
from dashboards.site import page

if TYPE_CHECKING:
    from playwright.sync_api import BrowserType

CHROMIUM = "/usr/bin/chromium"
AIM_S = 1.5
NUMBERS_AIM_S = 3.0
"""Within three seconds anybody sees whether the federation is healthy."""
NUMBERS = "main .card .card-figures b"
WATCH = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("SELECTOR")) return;
  observer.disconnect();
  requestAnimationFrame(() => { window.numbersAt = performance.now(); });
}).observe(document, { childList: true, subtree: true });
""".replace("SELECTOR", NUMBERS)
TIMES = """
new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(() => resolve(
  [performance.getEntriesByName("first-contentful-paint")[0].startTime, window.numbersAt]))))
"""


def first_paint(times: int) -> Iterator[Row]:
    """Two rows; none, with a word, where there is no browser or no page."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None  # type: ignore[assignment]
    if sync_playwright is None or shutil.which(CHROMIUM) is None or page() is None:
        print(
            "first_paint_s needs playwright, Chromium (scripts/debian.sh chromium) and the built page.", file=sys.stderr
        )
        return
    with tempfile.TemporaryDirectory(prefix="quorate-bench-") as folder, ServerProcess(Path(folder) / "data") as server:
        asyncio.run(_a_run(server))
        with sync_playwright() as playwright:
            visits = [_visit(playwright.chromium, server) for _ in range(times + 1)][1:]
    paint, numbers = (Spread.of([visit[place] for visit in visits]) for place in (0, 1))
    yield Row(name="first_paint_s", value=paint.median, unit="s", aim=AIM_S, met=paint.met(AIM_S))
    yield Row(name="first_numbers_s", value=numbers.median, unit="s", aim=NUMBERS_AIM_S, met=numbers.met(NUMBERS_AIM_S))


async def _a_run(server: ServerProcess) -> None:
    """A run on the server, whose first round has selected two devices."""
    federation = Federation(server, await enrol(server, 2), 16)
    await federation.create("seen")
    await federation.gather()


def _visit(chromium: BrowserType, server: ServerProcess) -> tuple[float, float]:
    """(First contentful paint, first numbers) of one visit, in seconds from the navigation."""
    with OperatorClient(server.url, key=server.key) as operator:
        link = operator.login_link()
    browser = chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
    try:
        tab = browser.new_page(viewport={"width": 1400, "height": 900})
        tab.add_init_script(WATCH)
        tab.goto(link)
        tab.locator(NUMBERS).first.wait_for()
        painted, numbers = tab.evaluate(TIMES)
        return float(painted) / 1000, float(numbers) / 1000
    finally:
        browser.close()
