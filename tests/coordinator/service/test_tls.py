"""A coordinator that ends TLS itself: one URL for everything, a certificate that can be replaced, no other protocol."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import trustme

from client_sdk.http.operator import OperatorClient
from client_sdk.http.transport import open_http
from client_sdk.protocol.names import Route
from coordinator.service.sockets.tls import TlsCertificate, Unusable
from tests import forks
from tests.coordinator.service.conftest import Server, launch
from tests.coordinator.service.devices import model_bytes, plan
from tests.coordinator.service.raw import RawConnection, head
from tests.rotating import on_day

pytestmark = pytest.mark.whole

PREFIX = "/fl/one"


@dataclass(frozen=True)
class Pair:
    """A certificate's two files, and the context that trusts its authority."""

    cert: Path
    key: Path
    tls: ssl.SSLContext
    ca: Path

    @property
    def options(self) -> tuple[str, ...]:
        return ("--tls-cert", str(self.cert), "--tls-key", str(self.key))


def issue(folder: Path, authority: trustme.CA | None = None, *names: str) -> Pair:
    """A new certificate for this machine, over the one in the folder."""
    authority = authority or trustme.CA()
    folder.mkdir(exist_ok=True)
    issued = authority.issue_cert(*(names or ("localhost", "127.0.0.1")))
    found = Pair(folder / "cert.pem", folder / "key.pem", ssl.create_default_context(), folder / "ca.pem")
    authority.configure_trust(found.tls)
    authority.cert_pem.write_to_path(found.ca)
    (folder / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(found.key)
    return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return issue(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Iterator[Server]:
    """A server with TLS whose public URL has a path."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder, url = tmp_path_factory.mktemp("secure") / "data", f"https://localhost:{port}{PREFIX}"
    running = Server.start(folder, *pair.options, "--public-url", url, port=port, tls=pair.tls)
    assert running.url == url
    yield running
    running.stop()


def serial(server: Server, pair: Pair) -> str:
    """The serial number of the certificate that a new connection gets."""
    host, port = "localhost", httpx2.URL(server.url).port
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=pair.ca)
    with socket.create_connection((host, port or 443), 10) as plain:
        with context.wrap_socket(plain, server_hostname=host) as connection:
            assert connection.version() in ("TLSv1.2", "TLSv1.3")
            return str(connection.getpeercert()["serialNumber"])  # type: ignore[index]


@pytest.mark.slow
def test_a_round_over_tls_under_a_path(secure: Server) -> None:
    run = secure.create_run("over-tls")
    device = secure.device(run)
    work = device.wait_for_work()
    assert device.fetch(work).status_code == 200
    assert device.put(work, device.body(work)).json()["run"] == run
    assert device.outcome(run, 1).json()["result"] in ("pending", "counted")


def test_our_clients_reach_it_by_the_authoritys_file(secure: Server, pair: Pair) -> None:
    with OperatorClient(secure.url, http=open_http(secure.url, ca=pair.ca)) as operator:
        assert isinstance(operator.runs(), list)
    with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
        open_http(secure.url).get(Route.RUNS)


def test_everything_that_names_a_place_names_the_public_url(secure: Server) -> None:
    created = secure.http.get("/v1/runs")
    assert created.status_code == 200
    run = secure.create_run("placed")
    assert secure.http.get(f"/v1/runs/{run}").status_code == 200
    home = secure.http.get(secure.url + "/")
    assert home.status_code == 307
    # The dashboard where it is built, and the API's page where it is not.
    assert home.headers["location"] in (f"{PREFIX}/dashboard/", f"{PREFIX}/docs")
    shown = secure.http.get(secure.url.removesuffix(PREFIX) + home.headers["location"])
    assert (shown.status_code, shown.headers["content-type"].split(";")[0]) == (200, "text/html")
    assert secure.http.get("/openapi.json").json()["servers"] == [{"url": secure.url}]
    assert 'src="docs.js"' in secure.http.get("/docs").text
    assert secure.http.get("/docs.js").status_code == 200
    assert f"the page {PREFIX}/docs lists" in secure.http.get("/v1/nowhere").json()["detail"]
    wrong = secure.http.delete("/v1/devices")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, POST")


def test_a_created_run_is_at_its_location(secure: Server) -> None:
    body, digest = model_bytes()
    secure.http.put(Route.CHECKPOINT.format(digest=digest), content=body).raise_for_status()
    created = secure.http.post(Route.RUNS, json={"plan": plan("located"), "init": digest, "origin": "a test"})
    place = created.headers["location"]
    assert place == f"{PREFIX}/v1/runs/{created.json()['run']}"
    assert secure.http.get(secure.url.removesuffix(PREFIX) + place).status_code == 200


def test_routes_are_under_the_path_only(secure: Server) -> None:
    bare = secure.url.removesuffix(PREFIX)
    for path in ("/v1/runs", "/healthz", f"{PREFIX}x/v1/runs", "/"):
        answer = secure.http.get(bare + path)
        assert answer.status_code == 404
        assert "a proxy passes them on unchanged" in answer.json()["detail"]


def test_the_host_and_the_origin_are_the_public_ones(secure: Server) -> None:
    port = httpx2.URL(secure.url).port
    for host in ("fl.example.org", f"localhost.evil.test:{port}", ""):
        answer = secure.http.get("/v1/runs", headers={"Host": host})
        assert answer.status_code == 421, host
        for path in ("/healthz", "/readyz"):
            assert secure.http.get(path, headers={"Host": host}).json()["ok"] is True
            assert secure.http.head(path, headers={"Host": host}).status_code == 200
        assert secure.url in answer.json()["detail"]
    site = secure.url.removesuffix(PREFIX)
    assert secure.http.post("/v1/runs/x/stop", headers={"Origin": site}).status_code == 404
    for origin in ("https://evil.test", site.replace("https", "http"), "null"):
        answer = secure.http.post("/v1/runs/x/stop", headers={"Origin": origin, "Host": f"localhost:{port}"})
        assert answer.status_code == 403, origin


def test_plain_http_and_noise_get_no_answer_and_no_line_in_the_log(secure: Server) -> None:
    plain = secure.url.removesuffix(PREFIX)
    for sent in (head(), b"\x16\x03\x01\x02\x00" + b"x" * 600, b"\r\n\r\n"):
        with RawConnection(plain) as connection:
            connection.send(sent)
            assert b"HTTP" not in connection.drain(5, half_closed=True)
    assert secure.http.get("/healthz").status_code == 200
    assert not secure.log.line("", timeout=0.0)


@pytest.mark.slow
def test_a_handshake_has_as_much_time_as_a_head(tmp_path: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_HEAD_S", "0.4")
    server = Server.start(tmp_path / "data", *pair.options, tls=pair.tls)
    try:
        for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):
            with RawConnection(server.url) as connection:
                connection.send(sent)
                assert connection.closed()
    finally:
        server.stop()


def test_a_refusal_below_the_routes_is_a_problem_over_tls_too(secure: Server, pair: Pair) -> None:
    host, port = "localhost", httpx2.URL(secure.url).port
    with socket.create_connection((host, port or 443), 10) as plain:
        with pair.tls.wrap_socket(plain, server_hostname=host) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a b\r\nX: " + b"x" * 100_000)
            received = b""
            while b"headers-too-large" not in received:
                part = connection.recv(65_536)
                assert part
                received += part
            assert received.startswith(b"HTTP/1.1 431 ")


@pytest.mark.slow
def test_a_new_certificate_is_served_without_a_dropped_connection(tmp_path: Path) -> None:
    authority = trustme.CA()
    pair = issue(tmp_path / "pair", authority)
    server = Server.start(tmp_path / "data", *pair.options, tls=pair.tls)
    try:
        assert server.url.startswith("https://127.0.0.1:")
        first = serial(server, pair)
        held = server.http
        assert held.get("/healthz").status_code == 200
        issue(tmp_path / "pair", authority)
        secondly = seen(server, pair, other_than=first)
        assert held.get("/healthz").status_code == 200
        pair.key.write_text("no key")
        assert "the one before it serves on" in broken(server, pair)
        assert serial(server, pair) == secondly
        issue(tmp_path / "pair", authority)
        assert seen(server, pair, other_than=secondly) != first
    finally:
        server.stop()


def seen(server: Server, pair: Pair, other_than: str) -> str:
    """The serial number that follows this one, within some seconds."""
    for _ in range(200):
        found = serial(server, pair)
        if found != other_than:
            return found
        server.log.line("nothing", timeout=0.05)
    raise AssertionError("the certificate was not read again")


def broken(server: Server, pair: Pair) -> str:
    """The line of the log about a certificate that cannot be used."""
    for _ in range(200):
        serial(server, pair)
        line = server.log.line("cannot be used", timeout=0.05)
        if line:
            return line
    raise AssertionError("the log does not say it")


# ------------------------------------------------------------ without a process


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_files_are_looked_at_once_a_second_and_a_bad_pair_is_logged_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair, clock = issue(tmp_path), Clock()
    certificate = TlsCertificate(pair.cert, pair.key, clock)
    first = certificate.context()
    other = issue(tmp_path / "other")
    shutil.copy(other.cert, pair.cert)  # the certificate is there, its key not yet
    assert certificate.context() is first
    for clock.now in (1.0, 2.0, 3.0):
        assert certificate.context() is first
    logged = capsys.readouterr()
    assert (logged.out + logged.err).count("KEY_VALUES_MISMATCH") == 1
    shutil.copy(other.key, pair.key)
    clock.now = 4.0
    assert certificate.context() is not first


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda pair: pair.key.unlink(), "key.pem cannot be read"),
        (lambda pair: pair.cert.write_text("x"), "are no certificate with its private key"),
        (lambda pair: shutil.copy(issue(pair.cert.parent / "b").key, pair.key), "KEY_VALUES_MISMATCH"),
    ],
)
def test_a_pair_that_cannot_be_used_is_one_sentence(tmp_path: Path, spoil: object, sentence: str) -> None:
    pair = issue(tmp_path)
    assert callable(spoil)
    spoil(pair)
    with pytest.raises(Unusable, match=sentence):
        TlsCertificate(pair.cert, pair.key)


@pytest.mark.slow
def test_an_authority_ends_tls_too(tmp_path: Path, pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, folder = f"https://localhost:{port}", str(tmp_path / "authority")
    forks.run(["authority", "init", "--url", url, "--data", folder]).check_returncode()
    serve = ["authority", "serve", "--data", folder, "--port", str(port), "--json", *pair.options]
    process = forks.Forked(serve, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["url"] == url
        with open_http(url, ca=pair.ca) as http:
            assert len(http.get("/v1/authority").json()["public_key"]) == 64
            assert http.get("/v1/authority", headers={"Host": "elsewhere"}).status_code == 421
    finally:
        process.terminate()
        assert process.wait(20) == 0


@on_day(0, of=3)
def test_the_server_does_not_start_with_a_bad_pair_or_without_tls(tmp_path: Path) -> None:
    pair = issue(tmp_path)
    pair.key.write_text("no key")
    for options, sentence in (
        (pair.options, "Give others by --tls-cert and --tls-key."),
        (("--host", "0.0.0.0"), "0.0.0.0 is beyond this machine"),
        (("--tls-cert", str(pair.cert)), "--tls-cert is given without --tls-key"),
        (("--behind-proxy", "10.0.0.0/8"), "Say by --public-url"),
    ):
        process = launch(tmp_path / "data", *options)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 1
        assert sentence in errors
        assert len(errors.strip().splitlines()) == 1
