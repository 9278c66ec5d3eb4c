"""`quorate dashboard` against paths, cookies and headers made to be misread, and a coordinator that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import unquote

import httpx2
import pytest
from starlette.types import Message

from dashboards.proxy import create_proxy
from tests.dashboards.test_proxy import HERE, OURS, PAGE, PORT, THERE, Far, browser, far, run

__all__ = ["browser", "far"]


async def asked(far: Far, path: str, query: bytes = b"", *headers: tuple[bytes, bytes]) -> int:
    """The status for a request with exactly this path, which clients of HTTP would tidy."""
    app = create_proxy(THERE, PORT, PAGE, http=httpx2.AsyncClient(transport=httpx2.ASGITransport(far.app)))
    status = 0
    came = asyncio.Event()

    async def receive() -> Message:
        if came.is_set():
            await asyncio.Event().wait()
        came.set()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("latin-1"),
        "query_string": query,
        "root_path": "",
        "headers": [(b"host", f"127.0.0.1:{PORT}".encode()), *headers],
    }
    await app(scope, receive, send)
    return status


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../metrics",
        "/v1/%2e%2e/metrics",
        "/v1/%2E./%2e%2e/another-application",
        "/v1/..%2f..%2fanother-application",
        "/v1/%252e%252e/metrics",
        "/v1/./runs",
        "/v1/runs/a%2Fb",
        "/v1/runs/a%3Fb=c",
        "/v1/runs/%23x",
        "/v1/..\\metrics",
        "/v1/%00",
        "/v1/\u00e9",
        "/v1/%0d%0aHost:x",
    ],
)
def test_repro_a_path_that_leaves_the_api_or_means_another_one_is_not_passed_on(far: Far, path: str) -> None:
    assert run(asked(far, path, b"", (b"cookie", f"quorate-dashboard-{PORT}=secret".encode()))) == 404
    assert not far.requests


def test_path_and_query_are_passed_on_as_they_were_sent(far: Far) -> None:
    assert run(asked(far, "/v1/runs/a%2Db.c", b"q=%23&label=%C3%A9+x")) == 200
    (came,) = far.requests
    assert (came.scope["raw_path"], came.scope["query_string"]) == (b"/base/v1/runs/a%2Db.c", b"q=%23&label=%C3%A9+x")
    assert run(asked(far, "/v1/runs", b"q=\xe9")) == 404


@pytest.mark.parametrize("value", [b'"a\\073 other=1"', b'"a\\015\\012X: y"', b"\xe9", b'"', b""])
def test_repro_a_cookie_that_another_port_has_set_adds_none_to_the_request(far: Far, value: bytes) -> None:
    assert run(asked(far, "/v1/runs", b"", (b"cookie", b"quorate-dashboard-%d=%s" % (PORT, value)))) == 200
    assert "cookie" not in far.requests[0].headers


def test_several_sessions_are_for_the_coordinator_to_refuse(far: Far) -> None:
    ours = f"quorate-dashboard-{PORT}"
    assert run(asked(far, "/v1/runs", b"", (b"cookie", f"{ours}=a; {ours}=b".encode()))) == 200
    assert far.requests[0].headers["cookie"] == "__Host-quorate=a; __Host-quorate=b"


def test_a_header_that_is_not_ascii_is_left_out(far: Far) -> None:
    assert run(asked(far, "/v1/runs", b"", (b"accept", b"\xe9"), (b"if-range", b'"x"'))) == 200
    assert far.requests[0].headers.get("accept") != "\u00e9"
    assert far.requests[0].headers["if-range"] == '"x"'


@pytest.mark.parametrize("path", ["/", "/nothing", "/dashboard/", "/dashboard/nothing", "/v1/runs", "/v1/%2e%2e/x"])
def test_every_answer_has_the_headers_that_protect_a_browser(browser: httpx2.AsyncClient, path: str) -> None:
    for headers in (OURS, {"Origin": "http://evil.example"}):
        answer = run(browser.get(path, headers=headers))
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


class Breaking(httpx2.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"event: snapshot\n\n"
        raise httpx2.ReadError("the coordinator was killed")


@pytest.mark.parametrize("length", [None, 1000])
def test_repro_a_stream_ends_without_an_error_where_the_coordinator_goes_away(length: int | None) -> None:
    """What has a length does not end quietly: it would look like the whole."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {} if length is None else {"content-length": str(length)}
        return httpx2.Response(200, stream=Breaking(), headers=headers)

    app = create_proxy(THERE, PORT, PAGE, http=httpx2.AsyncClient(transport=httpx2.MockTransport(answer)))
    page = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=HERE)
    if length is None:
        assert run(page.get("/v1/stream")).text == "event: snapshot\n\n"
    else:
        with pytest.raises(httpx2.ReadError):
            run(page.get("/v1/stream"))
