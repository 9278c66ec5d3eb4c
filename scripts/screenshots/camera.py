"""A browser that opens a coordinator's page in both themes and at both sizes, and takes pictures of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from client_sdk.http.operator import OperatorClient

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
READY_MS = 60_000
SETTLE_MS = 400
"""A chart is drawn a moment after its numbers have come."""


class Size(NamedTuple):
    """A window, in pixels."""

    name: str
    width: int
    height: int


SIZES = (Size("desktop", 1400, 900), Size("phone", 390, 844))
THEMES = ("dark", "light")


Faults = Callable[["Page"], list[str]]


class Broken(Exception):
    """The page has said an error, has asked another origin, does not fit its window, or has a fault."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's browser, as the tests have it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


class Camera:
    """Takes pictures into a folder; their files are ``NAME-SIZE-THEME.png``. ``faults``: what is wrong with a page that
    is to be in a picture; it is asked of each screen in each theme."""

    def __init__(self, browser: Browser, folder: Path, faults: Faults | None = None) -> None:
        self._browser, self._folder, self._faults = browser, folder, faults
        self.taken: list[Path] = []
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def at(self, url: str) -> Iterator[Windows]:
        """The page of the coordinator at ``url`` on this machine, opened at each size in each theme."""
        with OperatorClient(url) as operator:
            link = operator.login_link()
        entrance = self._browser.new_context()
        page = entrance.new_page()
        page.goto(link)
        page.get_by_role("navigation").wait_for()
        session = entrance.storage_state()
        entrance.close()
        windows = Windows(self._folder, self._faults)
        contexts = []
        try:
            for theme in THEMES:
                for size in SIZES:
                    context = self._browser.new_context(
                        viewport={"width": size.width, "height": size.height},
                        color_scheme="dark" if theme == "dark" else "light",
                        reduced_motion="reduce",
                        storage_state=session,
                    )
                    contexts.append(context)
                    context.set_default_timeout(READY_MS)
                    windows.mount(context.new_page(), f"{size.name}-{theme}", url)
            yield windows
        finally:
            for context in contexts:
                context.close()
            self.taken += windows.taken


class Windows:
    """One coordinator's page in several windows."""

    def __init__(self, folder: Path, faults: Faults | None) -> None:
        self._folder, self._faults = folder, faults
        self._pages: dict[str, Page] = {}
        self._errors: list[str] = []
        self.taken: list[Path] = []

    def mount(self, page: Page, window: str, url: str) -> None:
        """Add a window."""
        page.on("console", lambda said: self._errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self._errors.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(url) else self._errors.append(asked.url))
        page.goto(url)
        page.get_by_role("navigation").wait_for()
        self._pages[window] = page

    def go(self, place: str) -> None:
        """Go to the screen at ``place``, so that its picture can be taken at once when it is time."""
        for page in self._pages.values():
            page.evaluate("place => { location.hash = place }", place)

    def take(self, name: str, place: str, *words: str) -> None:
        """Take pictures of the screen at ``place`` (the address behind ``#``), once all of ``words`` stand on it.
        Broken where the console has an error, another origin was asked, something is wider than a window, or the page
        has a fault."""
        self.go(place)
        for page in self._pages.values():
            page.locator("main h1").wait_for()
            for text in words:
                page.locator("main").get_by_text(text).first.wait_for()
            page.get_by_text("Loading …").first.wait_for(state="detached")
        page.wait_for_timeout(SETTLE_MS)
        for window, page in self._pages.items():
            file = self._folder / f"{name}-{window}.png"
            page.screenshot(path=file)
            self.taken.append(file)
            width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if width > 0:
                raise Broken(f"{name} ({window}): the page is {width} pixels wider than its window")
        for theme in THEMES:
            page = self._pages[f"{SIZES[0].name}-{theme}"]
            if self._faults is not None and (found := self._faults(page)):
                raise Broken(f"{name} ({theme}): {found}")
        if self._errors:
            raise Broken(f"{name}: the page has said {self._errors}")
