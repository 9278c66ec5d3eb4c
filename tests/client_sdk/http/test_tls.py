"""Where credentials go: to https and to this machine; never to plain http, nor on a redirect."""

from __future__ import annotations

import gzip
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
import trustme

from client_sdk.cli import main
from client_sdk.device.actions import Fetch, RequestRefused, Send
from client_sdk.device.storage import FileStorage, MemoryStorage
from client_sdk.http.client import Client
from client_sdk.http.exchange import Exchange, RequestSigner
from client_sdk.http.operator import OperatorClient
from client_sdk.http.transport import open_http, trust
from client_sdk.http.urls import check_url
from client_sdk.identity import DeviceKey
from client_sdk.learners import Catalogue, LearnerTrainer
from client_sdk.protocol.devices import CheckpointRef, Outcome
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError


@contextmanager
def answering(
    status: int, headers: dict[str, str], body: bytes = b"[]", tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[str]]]:
    """A server that answers everything in one way: its URL, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca(authority: trustme.CA, tmp_path: Path) -> Path:
    """The file of the authority's certificate."""
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


@pytest.fixture
def https(authority: trustme.CA) -> Iterator[str]:
    """The URL of a coordinator without runs, whose certificate is of the private authority."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with answering(200, {}, tls=tls) as (url, _):
        yield url


@pytest.mark.parametrize(
    "url", ["http://fl.example.org", "http://10.0.0.7:8470", "http://[2001:db8::1]:8470", "http://127.0.0.1.evil.test"]
)
def test_no_client_talks_plain_http_beyond_this_machine(url: str, tmp_path: Path) -> None:
    trainer = LearnerTrainer(Catalogue({}), [])
    makers = (
        lambda: open_http(url),
        lambda: OperatorClient(url),
        lambda: Client(url, FileStorage(tmp_path), trainer, http=httpx2.Client()),
    )
    for make in makers:
        with pytest.raises(ValueError, match=r"as plain text.*use its https URL, or an SSH tunnel"):
            make()


@pytest.mark.parametrize("url", ["http://localhost:1", "http://127.9.0.1", "http://[::1]:8470", "https://x/fl/"])
def test_this_machine_and_https_are_reached(url: str) -> None:
    assert check_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url", ["https://key@x", "https://x?a=1", "https://x#y", "https://x?", "ftp://x", "https://", "https://x:port", "x"]
)
def test_a_url_with_more_or_less_than_a_place_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="it looks like http"):
        check_url(url)


def test_the_private_authority_is_trusted_and_no_other(
    https: str, ca: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("QUORATE_CA", raising=False)
    with OperatorClient(https) as stranger, pytest.raises(ProblemError, match="certificate verify failed"):
        stranger.runs()
    with OperatorClient(https, http=open_http(https, ca=ca)) as operator:
        assert operator.runs() == []
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    with OperatorClient(https, http=open_http(https, ca=other)) as wrong, pytest.raises(ProblemError, match="verify"):
        wrong.runs()
    monkeypatch.setenv("QUORATE_CA", str(ca))
    with OperatorClient(https) as operator:
        assert operator.runs() == []


def test_a_command_trusts_the_file_of_its_option(
    https: str, ca: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUORATE_CA", "")  # also restores it: the option sets it
    with pytest.raises(SystemExit) as end:
        main(["status", "--coordinator", https, "--ca", str(ca), "--json"])
    assert (end.value.code, capsys.readouterr().out) == (0, "[]\n")
    with pytest.raises(SystemExit) as end:
        main(["status", "--coordinator", https, "--ca", __file__])
    assert end.value.code == 1
    assert "has no certificate in PEM form" in capsys.readouterr().err


def test_a_file_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        trust(tmp_path / "none.pem")


def test_redirects_are_not_followed_and_named() -> None:
    with answering(200, {}) as (elsewhere, asked):
        with answering(307, {"Location": f"{elsewhere}/v1/runs"}) as (url, _):
            with OperatorClient(url) as operator, pytest.raises(ProblemError, match=r"redirects to .*is not followed"):
                operator.runs()
    assert asked == []


def test_an_applications_own_http_client_follows_no_redirect_for_us() -> None:
    with answering(200, {}) as (elsewhere, asked):
        with answering(307, {"Location": f"{elsewhere}/v1/runs"}) as (url, _):
            with httpx2.Client(base_url=url, follow_redirects=True) as following:
                with OperatorClient(url, http=following) as operator, pytest.raises(ProblemError, match="not followed"):
                    operator.runs()
                signing = RequestSigner(url, time.time)
                signing.signer = DeviceKey.create()
                exchange = Exchange(following, url, MemoryStorage(), time.monotonic, signing)
                outcome = Send(method="GET", route=Route.OUTCOME, answers=(Outcome,), path={"run": "r", "round": 1})
                sent = exchange.send(outcome)
                checkpoint = CheckpointRef(version=0, digest="0" * 64, bytes=1)
                fetched = exchange.fetch(Fetch(checkpoint=checkpoint))
    assert isinstance(sent, RequestRefused)
    assert isinstance(fetched, RequestRefused)
    assert "not followed" in str(sent.problem)
    assert asked == []


def test_a_compressed_answer_is_not_read() -> None:
    with answering(200, {"Content-Encoding": "gzip"}, gzip.compress(b"[]")) as (url, _):
        with OperatorClient(url) as operator, pytest.raises(ProblemError, match="nothing is decompressed"):
            operator.runs()
