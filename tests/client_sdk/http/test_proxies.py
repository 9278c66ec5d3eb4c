"""Which requests go by the proxy that the environment names: never those to this machine, nor those to NO_PROXY."""

from __future__ import annotations

import socket
import threading

import httpx2
import pytest

from client_sdk.http.transport import open_http

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


class Listener:
    """Answers each request by its request line, as a server or a proxy sees it."""

    def __init__(self, status: bytes = b"200 OK") -> None:
        self._status = status
        self.lines: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.lines.append(connection.recv(65_536).partition(b"\r\n")[0].decode())
                connection.sendall(
                    b"HTTP/1.1 " + self._status + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
                )

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Listener:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    found = Listener()
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{found.port}")
    return found


def test_this_machine_is_reached_without_the_proxy(proxy: Listener) -> None:
    server = Listener()
    for host in ("127.0.0.1", "localhost"):
        with open_http(f"http://{host}:{server.port}") as http:
            assert http.get("/healthz").text == "ok"
    assert server.lines == ["GET /healthz HTTP/1.1"] * 2
    assert proxy.lines == []


@pytest.mark.parametrize("no_proxy", ["fl.invalid", ".invalid", "other.test,fl.invalid", "*"])
def test_a_host_of_no_proxy_is_reached_without_it(
    proxy: Listener, monkeypatch: pytest.MonkeyPatch, no_proxy: str
) -> None:
    monkeypatch.setenv("NO_PROXY", no_proxy)
    with open_http("https://fl.invalid") as http, pytest.raises(httpx2.ConnectError):
        http.get("/healthz")
    assert proxy.lines == []


def test_others_go_by_the_proxy_of_their_scheme(proxy: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "other.test")
    other = Listener()
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{other.port}")
    with open_http("https://fl.invalid") as http, pytest.raises(httpx2.HTTPError):
        http.get("/healthz")
    assert proxy.lines == ["CONNECT fl.invalid:443 HTTP/1.1"]
    assert other.lines == []


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    server = Listener(b"302 Found\r\nLocation: /elsewhere")
    with open_http(f"http://127.0.0.1:{server.port}") as http:
        assert http.get("/healthz").status_code == 302
    assert server.lines == ["GET /healthz HTTP/1.1"]
