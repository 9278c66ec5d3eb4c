"""What operators do with a run from its page; who may not act is told why, and the API refuses it too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from client_sdk.protocol.names import Route
from tests.browser.conftest import Visitor
from tests.coordinator.service.conftest import Server

pytestmark = [pytest.mark.service, pytest.mark.slow]

Visit = Callable[..., Visitor]


def status(server: Server, run: str) -> str:
    return str(server.http.get(Route.RUN.format(run=run)).raise_for_status().json()["status"])


def button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def test_a_run_is_paused_resumed_and_stopped(visit: Visit, server: Server) -> None:
    run = server.create_run("steered")
    visitor = visit()
    page = visitor.log_in(server.key)
    asked: list[Any] = []
    page.on("request", lambda request: request.method == "POST" and asked.append(request))
    visitor.go(f"#/runs/{run}")
    button(page, "Pause").click()
    button(page, "Resume").wait_for()
    assert status(server, run) == "paused"
    button(page, "Resume").click()
    button(page, "Pause").wait_for()
    assert status(server, run) == "running"
    button(page, "Stop …").click()
    button(page, "Stop permanently").click()
    page.locator(".badge", has_text="stopped").first.wait_for()
    assert status(server, run) == "stopped"
    button(page, "Stop …").wait_for(state="detached")
    done = [row["action"] for row in server.http.get(Route.AUDIT).json() if row["run"] == run]
    assert done[-3:] == ["run.pause", "run.resume", "run.stop"]
    assert [request.url.rpartition("/")[2] for request in asked] == ["pause", "resume", "stop"]
    assert all(request.header_value("Quorate-Request") == "1" for request in asked), "no form of another page sends it"


def test_a_run_is_kept_where_the_confirmation_is_not_given(visit: Visit, server: Server) -> None:
    run = server.create_run("kept")
    visitor = visit()
    page = visitor.log_in(server.key)
    visitor.go(f"#/runs/{run}")
    for answer in ("Enter", "Escape"):
        button(page, "Stop …").click()
        page.get_by_role("group", name=f"Stop {run} permanently?").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "Keep it"
        assert visitor.violations() == []
        page.keyboard.press(answer)
        button(page, "Stop permanently").wait_for(state="detached")
        assert page.evaluate("document.activeElement.textContent") == "Stop …"
    assert status(server, run) == "running"


def test_a_viewer_may_not_act_and_is_told_why(visit: Visit, server: Server) -> None:
    run = server.create_run("looked-at")
    key = server.http.post(Route.KEYS, json={"role": "viewer", "scope": "looked-*"}).raise_for_status().json()
    visitor = visit(viewport={"width": 390, "height": 844})
    page = visitor.log_in(key["text"])
    visitor.go(f"#/runs/{run}")
    why = "For this run you need the role operator to pause or stop it."
    page.get_by_text(why).wait_for()
    for name in ("Pause", "Stop …"):
        assert button(page, name).is_disabled()
        described = "one => document.getElementById(one.getAttribute('aria-describedby')).textContent"
        assert button(page, name).evaluate(described) == why
    assert button(page, "Advance").count() == 0
    assert visitor.violations() == []
    visitor.fits()
    ask = "path => fetch(path, {method: 'POST', headers: {'Quorate-Request': '1'}}).then(answer => answer.status)"
    assert page.evaluate(ask, Route.RUN_ACTION.format(run=run, action="pause")) == 403
    assert status(server, run) == "running"
    visitor.expect("403")
