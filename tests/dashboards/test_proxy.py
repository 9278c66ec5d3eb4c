"""`quorate dashboard`: one coordinator's API on this machine, for pages of this dashboard only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dashboards.proxy import create_proxy
from dashboards.site import Asset, Site

T = TypeVar("T")
PORT = 8471
HERE = f"http://127.0.0.1:{PORT}"
THERE = "https://fl.example.org/base"
PAGE = Site({"index.html": Asset("index.html", b"<!doctype html>")})


def run(asked: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asked)


class Far:
    """A coordinator behind TLS, below a path, that remembers what came."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.bodies: list[bytes] = []
        self.app = Starlette(routes=[Route("/base/{path:path}", self.answer, methods=["GET", "POST", "DELETE"])])

    async def answer(self, request: Request) -> Response:
        self.requests.append(request)
        self.bodies.append(await request.body())
        path = request.path_params["path"]
        if path == "v1/sessions":
            answer = JSONResponse({"id": "key:1"}, 201)
            answer.set_cookie("__Host-quorate", "secret", max_age=600, secure=True, httponly=True)
            answer.set_cookie("tracker", "x")
            return answer
        if path == "v1/sessions/current":
            gone = JSONResponse({})
            gone.delete_cookie("__Host-quorate", secure=True, httponly=True)
            return gone
        if path == "v1/sessions/ways":
            return JSONResponse({"key": True, "link": True, "oidc": "https://issuer.example"})
        if path == "v1/stream":
            return StreamingResponse(iter([b"event: snapshot\n", b"data: {}\n\n"]), media_type="text/event-stream")
        return JSONResponse({"path": path}, headers={"Server": "x", "Location": "/elsewhere"})


@pytest.fixture
def far() -> Far:
    return Far()


@pytest.fixture
def browser(far: Far) -> httpx2.AsyncClient:
    """A browser's requests to the proxy, without what a browser adds."""
    upstream = httpx2.AsyncClient(transport=httpx2.ASGITransport(far.app))
    app = create_proxy(THERE, PORT, PAGE, http=upstream)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=HERE)


OURS = {"Origin": HERE, "Sec-Fetch-Site": "same-origin", "Quorate-Request": "1"}


def test_a_request_goes_to_that_coordinator_as_one_of_its_own_page(browser: httpx2.AsyncClient, far: Far) -> None:
    headers = OURS | {"Authorization": "Bearer qk_x", "Referer": HERE, "X-Forwarded-For": "1.2.3.4"}
    answer = run(browser.post("/v1/runs?x=1", content=b"{}", headers=headers))
    assert answer.json() == {"path": "v1/runs"}
    (came,) = far.requests
    assert (str(came.url), far.bodies) == (f"{THERE}/v1/runs?x=1", [b"{}"])
    assert came.headers["origin"] == "https://fl.example.org"
    assert came.headers["quorate-request"] == "1"
    assert not {"authorization", "referer", "x-forwarded-for", "cookie"} & set(came.headers)
    assert not {"server", "location"} & set(answer.headers)


def test_the_session_is_kept_under_a_name_of_this_address(browser: httpx2.AsyncClient, far: Far) -> None:
    answer = run(browser.post("/v1/sessions", json={"key": "qk_x"}, headers=OURS))
    (cookie,) = answer.headers.get_list("set-cookie")
    assert cookie.startswith(f"quorate-dashboard-{PORT}=secret;")
    said = {part.strip().lower() for part in cookie.split(";")}
    assert {"httponly", "samesite=strict", "path=/", "max-age=600"} <= said
    assert "secure" not in said, "this address is plain http, and the browser would not send it"
    run(browser.get("/v1/me", headers={"Cookie": f"quorate-dashboard-{PORT}=secret; other=1"}))
    assert far.requests[-1].headers["cookie"] == "__Host-quorate=secret"
    (gone,) = run(browser.delete("/v1/sessions/current", headers=OURS)).headers.get_list("set-cookie")
    assert "max-age=0" in gone.lower()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": f"evil.example:{PORT}"}, 421),
        ({"Host": "127.0.0.1:9999"}, 421),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_other_pages_and_other_names_are_refused(
    browser: httpx2.AsyncClient, far: Far, headers: dict[str, str], status: int
) -> None:
    answer = run(browser.get("/v1/runs", headers=headers))
    assert answer.status_code == status
    assert json.loads(answer.content)["detail"]
    assert not far.requests


def test_what_changes_something_says_that_a_page_of_ours_does(browser: httpx2.AsyncClient, far: Far) -> None:
    assert run(browser.post("/v1/runs", json={})).status_code == 403
    assert not far.requests


def test_the_stream_comes_as_it_is(browser: httpx2.AsyncClient, far: Far) -> None:
    answer = run(browser.get("/v1/stream", headers={"Last-Event-ID": "e-7"}))
    assert answer.text == "event: snapshot\ndata: {}\n\n"
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert far.requests[-1].headers["last-event-id"] == "e-7"


def test_the_ways_that_cannot_work_here_are_not_offered(browser: httpx2.AsyncClient) -> None:
    assert run(browser.get("/v1/sessions/ways")).json() == {"key": True, "link": False, "oidc": None}


def test_nothing_but_the_page_and_the_api_is_there(browser: httpx2.AsyncClient, far: Far) -> None:
    assert run(browser.get("/")).headers["location"] == "/dashboard/"
    assert run(browser.get("/dashboard/")).text == "<!doctype html>"
    assert run(browser.get("/metrics")).status_code == 404
    assert not far.requests


def test_a_coordinator_that_does_not_answer_is_named() -> None:
    async def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("connection refused")

    app = create_proxy(THERE, PORT, PAGE, http=httpx2.AsyncClient(transport=httpx2.MockTransport(refuse)))
    browser = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=HERE)
    answer = run(browser.get("/v1/runs"))
    assert answer.status_code == 502
    assert "fl.example.org/base does not answer: connection refused" in answer.json()["detail"]


def test_plain_http_to_another_machine_is_refused() -> None:
    with pytest.raises(ValueError, match="https only"):
        create_proxy("http://fl.example.org", PORT, PAGE)
