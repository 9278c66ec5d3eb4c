"""`quorate dashboard` and a coordinator of which it cannot be sure: it sends nothing, and goes nowhere else."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest
import trustme

from dashboards.proxy import create_proxy
from tests.dashboards.test_proxy import HERE, PAGE, PORT, run

COOKIE = {"Cookie": f"quorate-dashboard-{PORT}=qs_secret", "Sec-Fetch-Site": "same-origin"}


class Coordinator:
    """Speaks TLS with a certificate of its own authority, and remembers what it was sent."""

    def __init__(self, authority: trustme.CA, name: str, location: str = "") -> None:
        """``location``: where it redirects to."""
        self.cookies: list[str | None] = []
        cookies = self.cookies

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cookies.append(self.headers["cookie"])
                self.send_response(307 if location else 200)
                if location:
                    self.send_header("Location", location)
                    self.send_header("Refresh", f"0; url={location}")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(context)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://localhost:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=["localhost", "another.example"])
def there(request: pytest.FixtureRequest, authority: trustme.CA) -> Iterator[tuple[str, Coordinator]]:
    made = Coordinator(authority, request.param)
    yield request.param, made
    made.end()


async def through(url: str, tls: ssl.SSLContext | None) -> httpx2.Response:
    app = create_proxy(url, PORT, PAGE, tls)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=HERE) as page:
        return await page.get("/v1/me", headers=COOKIE, follow_redirects=False)


def test_a_certificate_that_is_not_trusted_or_of_another_name_gets_no_session(
    there: tuple[str, Coordinator], authority: trustme.CA
) -> None:
    name, coordinator = there
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    for tls in (None, ssl.create_default_context(), trusting):
        answer = run(through(coordinator.url, tls))
        if tls is trusting and name == "localhost":
            assert answer.status_code == 200
            assert coordinator.cookies == ["__Host-quorate=qs_secret"]
        else:
            assert answer.status_code == 502
            assert "certificate verify failed" in answer.json()["detail"]
            assert coordinator.cookies == []


def test_a_redirect_is_not_followed_and_not_passed_on(authority: trustme.CA) -> None:
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    elsewhere = Coordinator(authority, "localhost")
    coordinator = Coordinator(authority, "localhost", location=f"{elsewhere.url}/v1/me")
    try:
        answer = run(through(coordinator.url, trusting))
    finally:
        coordinator.end()
        elsewhere.end()
    assert answer.status_code == 307
    assert (coordinator.cookies, elsewhere.cookies) == (["__Host-quorate=qs_secret"], [])
    assert not {"location", "refresh"} & set(answer.headers)
