"""Who gets in, by what, and for how long."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.names import Route
from tests.browser.conftest import Visitor
from tests.coordinator.service.conftest import Server

pytestmark = [pytest.mark.service, pytest.mark.slow]

Visit = Callable[..., Visitor]


def made(server: Server, **message: object) -> tuple[str, str]:
    """A new API key: its id and its text."""
    found = server.http.post(Route.KEYS, json=message).raise_for_status().json()
    return found["key"], found["text"]


def test_a_key_opens_the_page_until_somebody_logs_out(visit: Visit, server: Server) -> None:
    visitor = visit()
    page = visitor.log_in(server.key)
    page.get_by_role("heading", name="Runs").wait_for()
    page.reload()
    page.get_by_role("heading", name="Runs").wait_for()
    page.get_by_role("button", name="Log out").click()
    page.get_by_text("You are logged out.").wait_for()
    page.reload()
    page.get_by_label("API key").wait_for()
    assert visitor.context.cookies() == []


def test_the_session_is_no_scripts_business(visit: Visit, server: Server) -> None:
    visitor = visit()
    page = visitor.log_in(server.key)
    (cookie,) = visitor.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
    assert page.evaluate("document.cookie") == ""
    assert server.key not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert not [url for url in visitor.requests if server.key in url]


def test_a_wrong_key_is_refused_in_a_sentence(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open()
    page.get_by_label("API key").fill("qk_0123456789abcdef_" + "0" * 32)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("alert").wait_for()
    assert page.get_by_role("alert").inner_text().strip() == "This API key is not valid here."
    visitor.expect("401")


def test_a_link_opens_the_page_once_and_leaves_the_address(visit: Visit, server: Server) -> None:
    with OperatorClient(server.url, key=server.key) as operator:
        link = operator.login_link()
    token = link.partition("#login=")[2]
    first, second = visit(), visit()
    page = first.open(link.removeprefix(server.url))
    page.get_by_role("heading", name="Runs").wait_for()
    assert token not in page.url
    assert not [url for url in first.requests if token in url.partition("#")[0]]
    again = second.open(f"/#login={token}")
    again.get_by_label("API key").wait_for()
    assert again.get_by_role("status").inner_text()
    second.expect("401")


def test_a_viewer_sees_the_runs_of_its_scope(visit: Visit, server: Server) -> None:
    server.create_run("looked-at")
    server.create_run("hidden")
    page = visit().log_in(made(server, role="viewer", scope="looked-*")[1])
    page.get_by_role("link", name="looked-at").first.wait_for()
    assert page.get_by_text("hidden").count() == 0
    page.get_by_role("link", name="looked-at").first.click()
    page.get_by_role("heading", name="looked-at").wait_for()
    assert page.get_by_role("link", name="Audit").count() == 0


def test_a_revoked_key_ends_what_was_open(visit: Visit, server: Server) -> None:
    visitor = visit()
    key, text = made(server, role="viewer")
    page = visitor.log_in(text)
    page.get_by_role("heading", name="Runs").wait_for()
    server.http.post(Route.REVOKE_KEY.format(key=key)).raise_for_status()
    page.get_by_text("Your session has ended.").wait_for()
    visitor.expect("401")


def test_the_page_is_served_elsewhere_for_one_coordinator(chromium: Any, server: Server) -> None:
    server.create_run("far-away")
    command = [sys.executable, "-m", "dashboards.cli", "dashboard", "--coordinator", server.url, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"is at (http://127\.0\.0\.1:\d+)/", process.stdout.readline())
        assert found is not None
        visitor = Visitor(chromium, found[1])
        page = visitor.log_in(server.key)
        page.get_by_role("link", name="far-away").first.wait_for()
        page.get_by_role("button", name="Log out").click()
        page.get_by_text("You are logged out.").wait_for()
        assert visitor.context.cookies() == []
        visitor.close()
    finally:
        process.terminate()
        process.wait(20)
