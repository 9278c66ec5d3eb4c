"""A coordinator that logs browsers in at an OpenID Connect issuer on this machine, and a browser that goes there and
back."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import httpx2

from client_sdk.protocol.names import Route
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.service import create_app
from coordinator.settings import Settings
from tests.coordinator.access.issuer import AUDIENCE, CLIENT, LocalIssuer
from tests.coordinator.service.browser import Browser
from tests.coordinator.world import World

PAGE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Accept": "text/html,*/*"}
"""What a browser sends that comes from the issuer."""
ORIGIN = "http://localhost:8470"


class AtIssuer:
    """One coordinator, with a browser and an issuer."""

    def __init__(self, issuer: LocalIssuer, **settings: Any) -> None:
        self.issuer = issuer
        self.world = World(0)
        self.world.create()
        self.world.clock.at = time.time()
        given = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "oidc_client": CLIENT}
        self.settings = Settings(**{**given, **settings})
        self.coordinator = self.serve()
        public = self.settings.public
        self.browser = Browser(create_app(self.coordinator, self.settings), public.origin if public else ORIGIN)

    def serve(self) -> Coordinator:
        served = Coordinator(Core(self.world.store, self.world.blobs, settings=self.settings, clock=self.world.clock))
        served.recover()
        return served

    def begin(self, browser: Browser | None = None, **query: str) -> httpx2.Response:
        at = self.settings.prefix + Route.SESSION_OIDC
        return (browser or self.browser).ask("GET", at, PAGE, params=query)

    def there(self, begun: httpx2.Response) -> str:
        """Goes to the issuer. Returns the address to which that sends the browser back."""
        assert begun.status_code == 303, begun.text
        answer = httpx2.get(begun.headers["location"])
        assert answer.status_code == 303
        return str(answer.headers["location"])

    def back(self, address: str, browser: Browser | None = None, **headers: str) -> httpx2.Response:
        at = urlsplit(address)
        return (browser or self.browser).ask("GET", f"{at.path}?{at.query}", {**PAGE, **headers})

    def log_in(self, **query: str) -> httpx2.Response:
        return self.back(self.there(self.begin(**query)))

    def refused(self, address: str, browser: Browser | None = None) -> str:
        """Why the browser that comes back is not let in."""
        answer = self.back(address, browser, Accept="*/*")
        assert 400 <= answer.status_code < 600, answer.text
        assert (browser or self.browser).me().status_code == 401
        return f"{answer.json()['type'].removeprefix('/problems/')}: {answer.json()['detail']}"

    def close(self) -> None:
        self.browser.close()
