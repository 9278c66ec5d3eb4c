"""Requests by a session's cookie: which names the cookie has, and which pages may make them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx2
import pytest

from client_sdk.protocol.access import REQUEST_HEADER, REQUEST_VALUE, CreateKey
from client_sdk.protocol.names import Route
from coordinator.access import LOCAL_OWNER
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.service import create_app
from coordinator.settings import Settings
from tests.coordinator.service.browser import Browser
from tests.coordinator.world import World

pytestmark = pytest.mark.whole

LOCAL = "http://127.0.0.1:8470"
OURS = {"Origin": LOCAL, "Sec-Fetch-Site": "same-origin", REQUEST_HEADER: REQUEST_VALUE}
PAUSE = "/v1/runs/marks/pause"


class LoggedIn:
    def __init__(self, origin: str = LOCAL, **settings: Any) -> None:
        self.world = World(0)
        self.world.create()
        self.key = self.world.coordinator.access.keys.create(LOCAL_OWNER, CreateKey(role="owner")).text
        known = Settings(**settings)
        served = Coordinator(Core(self.world.store, self.world.blobs, settings=known, clock=self.world.clock))
        served.recover()
        self.browser = Browser(create_app(served, known), origin)

    def log_in(self) -> httpx2.Response:
        answer = self.browser.log_in(self.key)
        assert answer.status_code == 201, answer.text
        return answer


@pytest.fixture
def page() -> Iterator[LoggedIn]:
    made = LoggedIn()
    made.log_in()
    yield made
    made.browser.close()


def without(*names: str, **others: str) -> dict[str, str]:
    return {name: value for name, value in {**OURS, **others}.items() if name not in names}


FOREIGN = {
    "another site": without(Origin="https://evil.example", **{"Sec-Fetch-Site": "cross-site"}),
    "another site, by Origin alone": without("Sec-Fetch-Site", Origin="https://evil.example"),
    "another site, by Sec-Fetch-Site alone": without("Origin", **{"Sec-Fetch-Site": "cross-site"}),
    "another port": without(Origin="http://127.0.0.1:9999", **{"Sec-Fetch-Site": "same-site"}),
    "another port, by Sec-Fetch-Site alone": without("Origin", **{"Sec-Fetch-Site": "same-site"}),
    "another name": without("Sec-Fetch-Site", Origin="http://localhost:8470"),
    "another scheme": without("Sec-Fetch-Site", Origin="https://127.0.0.1:8470"),
    "an origin that is none": without("Sec-Fetch-Site", Origin="null"),
    "an origin that only begins so": without("Sec-Fetch-Site", Origin=f"{LOCAL}.evil.example"),
}
UNPROVEN = {
    "neither header of a browser": without("Origin", "Sec-Fetch-Site"),
    "no header of ours": without(REQUEST_HEADER),
    "another value": without(**{REQUEST_HEADER: "0"}),
}


@pytest.mark.parametrize("headers", [*FOREIGN.values(), *UNPROVEN.values()], ids=[*FOREIGN, *UNPROVEN])
def test_a_write_by_cookie_comes_from_an_own_page(page: LoggedIn, headers: dict[str, str]) -> None:
    assert page.browser.ask("POST", PAUSE, headers).status_code == 403
    assert page.browser.ask("DELETE", Route.CURRENT_SESSION, headers).status_code == 403
    assert page.world.coordinator.operators.run("marks").status == "running"
    assert page.browser.ask("POST", PAUSE, {**headers, "Authorization": f"Bearer {page.key}"}).status_code in (200, 403)
    assert page.browser.me().status_code == 200


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
def test_a_read_by_cookie_is_refused_where_the_browser_says_that_another_page_asks(
    page: LoggedIn, headers: dict[str, str]
) -> None:
    assert page.browser.ask("GET", Route.ME, headers).status_code == 403
    assert page.browser.ask("GET", Route.EVENTS.format(run="marks"), headers).status_code == 403


@pytest.mark.parametrize("headers", [without("Origin"), without("Sec-Fetch-Site"), OURS])
def test_an_own_page_writes(page: LoggedIn, headers: dict[str, str]) -> None:
    assert page.browser.ask("POST", PAUSE, headers).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}])
def test_an_own_page_reads_without_a_header_of_ours(page: LoggedIn, headers: dict[str, str]) -> None:
    assert page.browser.ask("GET", Route.ME, headers).status_code == 200


@pytest.mark.parametrize("headers", [*FOREIGN.values(), *UNPROVEN.values()], ids=[*FOREIGN, *UNPROVEN])
def test_another_page_logs_nobody_in(page: LoggedIn, headers: dict[str, str]) -> None:
    """It would work as the attacker, and what the victim then does lands in the attacker's account."""
    sent = Browser(page.browser.app, LOCAL)
    for path, message in ((Route.SESSIONS, {"key": page.key}), (Route.SESSION_BY_LINK, {"token": "ql_"})):
        assert sent.ask("POST", path, headers, json=message).status_code == 403
    assert sent.cookies == {}


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_form_of_another_page_logs_nobody_in_and_writes_nothing(page: LoggedIn, media: str) -> None:
    """A form can send JSON as text/plain, and no header of its own."""
    form = {"Content-Type": media, "Origin": "https://evil.example"}
    body = json.dumps({"key": page.key, "role": "owner", "=": ""}).encode()
    sent = Browser(page.browser.app, LOCAL)
    assert sent.ask("POST", Route.SESSIONS, form, content=body).status_code == 403
    assert page.browser.ask("POST", Route.KEYS, form, content=body).status_code == 403
    assert len(page.world.store.api_keys()) == 1


def test_a_request_with_a_key_needs_no_proof(page: LoggedIn) -> None:
    bearer = {"Authorization": f"Bearer {page.key}", "Cookie": "quorate-8470=qs_junk"}
    assert page.browser.ask("POST", PAUSE, bearer).status_code == 200


def test_several_cookies_of_our_name_are_refused(page: LoggedIn) -> None:
    """Another program on this machine can plant one (cookie tossing); which of them is ours cannot be known."""
    ((name, text),) = page.browser.cookies.items()
    other = f"qs_{'0' * 16}_{'1' * 64}"
    for planted in (f"{name}={other}; {name}={text}", f"{name}={text}; {name}={other}", f"{name}={text};{name}={text}"):
        answer = page.browser.ask("GET", Route.ME, {"Cookie": planted})
        assert (answer.status_code, "several session cookies" in answer.text) == (401, True)
    assert page.browser.ask("GET", Route.ME, {"Cookie": f"{name}={text}; x{name}={other}"}).status_code == 200


def test_coordinators_of_one_machine_have_cookies_of_their_own(page: LoggedIn) -> None:
    """Browsers send a cookie of 127.0.0.1 to every port of it."""
    other = Browser(page.browser.app, "http://127.0.0.1:9470")
    other.log_in(page.key)
    assert set(page.browser.cookies) | set(other.cookies) == {"quorate-8470", "quorate-9470"}


BEYOND = {
    "TLS ends here": {"tls_cert": Path("cert.pem"), "tls_key": Path("key.pem")},
    "a proxy ends TLS": {"behind_proxy": (ip_network("10.0.0.0/8"),)},
}


@pytest.mark.parametrize("more", BEYOND.values(), ids=BEYOND)
@pytest.mark.parametrize("prefix", ["", "/quorate"])
def test_under_tls_the_cookie_is_secure_and_of_this_host_alone(more: dict[str, Any], prefix: str) -> None:
    made = LoggedIn("https://fl.example", public_url=f"https://fl.example{prefix}", **more)
    answer = made.browser.ask("POST", prefix + Route.SESSIONS, json={"key": made.key})
    name, *attributes = [part.strip() for part in answer.headers["set-cookie"].split(";")]
    assert name.startswith("__Host-quorate=qs_")
    assert {one.lower() for one in attributes} >= {"secure", "httponly", "samesite=lax", "path=/"}
    assert not [one for one in attributes if one.lower().startswith("domain")]
    assert made.browser.ask("GET", prefix + Route.ME).status_code == 200
    assert made.browser.ask("POST", prefix + PAUSE).status_code == 200
    foreign = {**made.browser.page, "Origin": "https://other.example"}
    assert made.browser.ask("POST", prefix + PAUSE, foreign).status_code == 403
    assert made.browser.ask("GET", prefix + Route.SESSION_WAYS).json()["link"] is False
    link = made.browser.ask("POST", prefix + Route.SESSION_LINKS)
    assert (link.status_code, link.json()["type"]) == (409, "/problems/conflict")
    made.browser.close()


def test_what_a_session_is_told_is_kept_by_no_cache(page: LoggedIn) -> None:
    assert page.log_in().headers["cache-control"] == "no-store"
