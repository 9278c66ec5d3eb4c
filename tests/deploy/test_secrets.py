"""No secret is where it does not belong: logs, database, blobs, command lines and titles, meters, the audit, spans.

A coordinator runs as users run it, with a distinctive secret wherever it takes one, and does a whole small federation,
with refusals and with a bug whose traceback it logs. Then everything that it has written and said is searched.
"""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from sqlalchemy import MetaData, create_engine, text

from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.protocol.authority import AuthorityRoute
from client_sdk.protocol.names import Route
from tests import forks
from tests.coordinator.service.conftest import Log, Server
from tests.coordinator.service.devices import Device
from tests.coordinator.service.test_rounds import until
from tests.coordinator.service.test_tls import Pair, issue
from tests.coordinator.store import postgres
from tests.deploy.planted import Places, Secret
from tests.rotating import on_day

WHO = "planted-proof-of-a-platform-4f1d9a77"
PASSWORD = "planted-database-password-b2e6"
COLLECTOR = "planted-collector-header-90ce"
JWT = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (
    b'{"alg":"RS256","kid":"planted"}', b'{"sub":"planted-subject"}', b"planted-signature-of-a-token"
))  # fmt: skip
RUN = "federation"
POSTGRES = postgres.programs()
BAD_EVENT = """
INSERT INTO events (run, seq, at, kind, body, link)
SELECT events.run, events.seq + 1, events.at, 'Blessed', '{', events.link
FROM events JOIN runs ON runs.run = events.run AND runs.seq = events.seq WHERE runs.run = :run
"""


class Played:
    """A coordinator with planted secrets, and what came of a federation with it."""

    def __init__(self, folder: Path, server: Server, places: Places, pair: Pair) -> None:
        self.folder = folder
        self.server = server
        self.places = places
        self.pair = pair
        self.log = server.log
        self.keys: dict[str, str] = {}
        self.devices: list[Device] = []
        self.made: dict[str, str] = {}
        """Other secrets that the coordinator has made, by name."""

    def secrets(self) -> list[Secret]:
        """THE TABLE: every secret, and where it belongs."""
        database = ("file quorate.sqlite3*", "rows of the database")
        found = [
            Secret("the owner's key", secret_of(self.server.key), ("file owner-key",)),
            *(Secret(f"the key of {name}", secret_of(key)) for name, key in self.keys.items()),
            Secret("a key that is tried", secret_of(wrong(self.server.key))),
            *of_token("device", self.server.token),
            *of_token("worker", self.server.worker_token),
            Secret("who a device is", WHO),
            *(Secret(f"the key in {place}", pem_body(content), (place,)) for place, content in self.places.pem_files()),
            *(Secret("a device's key", device.auth.key.seed.hex()) for device in self.devices),
            Secret("the token of an issuer", JWT),
            Secret("its signature", JWT.rpartition(".")[2]),
            Secret("the database's password", PASSWORD),
            Secret("the collector's header", COLLECTOR),
            *(Secret("a line of the TLS key", line) for line in self.pair.key.read_text().split("\n")[1:-2]),
            Secret("the selection seed", self.made.pop("selection seed"), database),
            *(Secret(name, value) for name, value in self.made.items()),
        ]
        assert len(found) > 15
        return found


def secret_of(key: str) -> str:
    """The secret part of an API key: its id is public."""
    return key.rpartition("_")[2]


def pem_body(content: bytes) -> str:
    """What differs from key to key in a PEM file of a private Ed25519 key: they all begin alike."""
    return content.decode().split("\n")[1][22:]


def of_token(holder: str, token: str) -> list[Secret]:
    """The secret of an enrolment token, as it is sent, and where it ends the token's text."""
    place = (f"file authority/{holder}-token",)
    return [
        Secret(f"the secret of the {holder}s' token", EnrolmentToken.parse(token).secret.hex(), place),
        Secret(f"the {holder}s' enrolment token", token[-26:], place),
    ]


def wrong(key: str) -> str:
    """A key of the same id with another secret, as somebody might try."""
    return key.removesuffix(secret_of(key)) + secret_of(key)[::-1]


# ------------------------------------------------------------ the coordinator, as users run it


def environment(**more: str) -> dict[str, str]:
    """The environment with planted secrets wherever the coordinator takes one from there."""
    planted = {
        "QUORATE_OIDC_ISSUER": "https://127.0.0.1:9/realms/ml",
        "QUORATE_OIDC_AUDIENCE": "quorate",
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{COLLECTOR}",
    }
    return {**os.environ, **planted, **more}


@contextmanager
def collector(places: Places) -> Iterator[str]:
    """Receives spans; the URL. It has their bytes in the places."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            places.add("spans", self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(folder: Path, places: Places, *options: str, **more: str) -> Iterator[Played]:
    """A coordinator with TLS and planted secrets until the block ends; then its output is in the places."""
    pair = issue(folder / "tls")
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"https://localhost:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "quorate", "serve", "--data", str(folder / "data"), "--public-url", url]
    command += ["--dev-authority"]
    command += ["--port", url.rpartition(":")[2], *pair.options, *options]
    process = subprocess.Popen(
        command, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        while "Ctrl-C" not in ready and "key_file" not in ready:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            ready += line
        key = (folder / "data" / "owner-key").read_text().strip()
        tokens = [
            (folder / "data" / "authority" / f"{holder}-token").read_text().strip() for holder in ("device", "worker")
        ]
        http = httpx2.Client(base_url=url, timeout=30, headers={"Authorization": f"Bearer {key}"}, verify=pair.tls)
        played = Played(folder, Server(process, url, *tokens, folder / "data", http, key), places, pair)
        assert isinstance(played.log, Log), "its pipe is read from now on"
        places.add("what serve prints when it is ready", ready)
        yield played
        places.add_processes(psutil.Process(process.pid))
        assert played.server.stop() == 0
        places.add("standard output", process.stdout.read())
        places.add("the log", played.log.text())
        places.add_folder(folder / "data")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def quorate(played: Played, *arguments: str) -> str:
    """Runs a command of an operator, and looks at its own command line while at it."""
    found = {**os.environ, "QUORATE_URL": played.server.url, "QUORATE_CA": str(played.pair.ca)}
    command = [sys.executable, "-m", "quorate", *arguments]
    played.places.add("command line", "\0".join(command))
    done = subprocess.run(command, env=found, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    played.places.add(f"what `quorate {arguments[0]}` prints", done.stdout + done.stderr)
    return done.stdout


# ------------------------------------------------------------ what is done with it


def play(played: Played) -> None:
    """Keys, a run, two devices, one round."""
    server = played.server
    for name in ("viewer", "operator"):
        file = played.folder / f"{name}.key"
        quorate(played, "keys", "create", "--role", name, "--output", str(file))
        played.keys[name] = file.read_text().strip()
    server.create_run(RUN, select=2, goal=2, finish={"rounds": 1})
    played.devices = [server.device(RUN, slot) for slot in range(2)]
    played.devices[0].check_in()
    work = [device.wait_for_work() for device in reversed(played.devices)]
    for device, task in zip(reversed(played.devices), work, strict=True):
        assert device.put(task, device.body(task)).status_code == 200
    until(lambda: server.http.get(f"/v1/runs/{RUN}").json()["status"] == "finished")
    quorate(played, "status")
    quorate(played, "audit")


def be_refused(played: Played) -> None:
    """Requests that are refused, with secrets where they belong and where they do not."""
    server, device = played.server, played.devices[0]
    basic = base64.b64encode(f"owner:{server.key}".encode()).decode()
    attempts: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/v1/runs", {"headers": {"Authorization": f"Bearer {wrong(server.key)}"}}),
        ("GET", "/v1/runs", {"headers": {"Authorization": f"Bearer {JWT}"}}),
        ("GET", "/v1/runs", {"headers": {"Authorization": f"Basic {basic}"}}),
        ("POST", "/v1/keys", {"json": {"role": "owner"}, "headers": bearer(played.keys["viewer"])}),
        ("POST", "/v1/runs", {"json": {"plan": {}, "init": "0"}, "headers": bearer(played.keys["operator"])}),
        ("POST", "/v1/keys", {"content": f"{{{server.key}".encode(), "headers": bearer(server.key)}),
        ("GET", f"/v1/runs?token={server.key}", {"headers": bearer(played.keys["viewer"]), "accepted": True}),
        ("PUT", Route.UPDATE.format(run=RUN, round=1, attempt=0), {"content": b"no update", "peer": device}),
    ]
    secret = EnrolmentToken.parse(server.token).secret.hex()
    for sent in ({"secret": secret}, {"secret": secret + "0"}, {"secret": secret.upper()}, {"token": server.token}):
        for who in (WHO, WHO * 1000):
            body = {"secret": secret, "public_key": "ab" * 32, "proof": "cd" * 64, "who": who, **sent}
            attempts.append(("POST", AuthorityRoute.CERTIFICATES, {"json": body, "headers": {"Authorization": ""}}))
    for method, url, more in attempts:
        accepted = more.pop("accepted", False)
        peer = more.pop("peer", None)
        answer = server.http.request(method, url, **more) if peer is None else peer.send(method, url, **more)
        assert (answer.status_code < 400) == accepted, f"{method} {url}: {answer.text}"
        played.places.add(
            f"the answer to {method} {url.partition('?')[0]}", answer.content + repr(answer.headers).encode()
        )
    malformed = f"GET /v1/runs HTTP/1.1\r\nAuthorization: Bearer {server.key}\r\nno header at all\r\n\r\n"
    host, port = "localhost", httpx2.URL(server.url).port
    with socket.create_connection((host, port or 443), 10) as plain:
        with played.pair.tls.wrap_socket(plain, server_hostname=host) as connection:
            connection.sendall(malformed.encode())
            played.places.add("the answer to a malformed request", connection.recv(65536))
    with socket.create_connection((host, port or 443), 10) as plain, suppress(OSError):
        plain.sendall(malformed.encode())  # without TLS: somebody's wrong URL
        played.places.add("the answer to a request without TLS", plain.recv(65536))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def meet_a_bug(played: Played, database: str) -> None:
    """Somebody has written into the database what this version does not know: requests fail by a bug, with
    credentials."""
    run, device = played.server.create_run("spoiled"), played.server.device("spoiled", 2)
    played.devices.append(device)
    engine = create_engine(database)
    with engine.begin() as connection:
        seed = connection.execute(text("SELECT selection_seed FROM runs WHERE run = :run"), {"run": RUN}).scalar_one()
        played.made["selection seed"] = str(seed)
        connection.execute(text(BAD_EVENT), {"run": run})
        connection.execute(text("UPDATE runs SET seq = seq + 1 WHERE run = :run"), {"run": run})
    engine.dispose()
    answers = [played.server.http.get(f"/v1/runs/{run}/events?follow=false"), device.check_in()]
    assert answers[0].status_code == 500, answers[0].text
    played.places.add("the answer after a bug", b"".join(answer.content for answer in answers))
    reference = re.findall(r"under (\w+)", answers[0].json()["detail"])[0]
    assert played.log.line(reference), "the bug is in the log"
    assert played.log.line("Traceback"), "with its traceback"


def look_around(played: Played) -> None:
    """Everything that can be read over HTTP."""
    pages = ["/metrics", "/openapi.json", "/docs", "/readyz", "/healthz", "/v1/runs", "/v1/audit", "/v1/keys"]
    pages += ["/v1/devices", "/v1/workers", *(f"/v1/runs/{RUN}{part}" for part in ("", "/rounds", "/checkpoints"))]
    pages += [f"/v1/runs/{RUN}/events?follow=false"]
    for page in pages:
        answer = played.server.http.get(page)
        assert answer.status_code in (200, 503), f"{page}: {answer.text}"
        played.places.add(f"GET {page}", answer.content)


def rows(database: str) -> str:
    """Every row of every table, as text: in the file long values are in pieces."""
    engine, tables = create_engine(database), MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        found = [repr(tuple(row)) for table in tables.sorted_tables for row in connection.execute(table.select())]
    engine.dispose()
    return "\n".join(found)


def federation(folder: Path, database: str, *options: str, **more: str) -> tuple[list[str], Places]:
    places = Places()
    with collector(places) as endpoint:
        with serving(folder, places, *options, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **more) as played:
            play(played)
            be_refused(played)
            meet_a_bug(played, database)
            look_around(played)
            places.add("rows of the database", rows(database))
    return places.leaks(played.secrets()), places


def require_all_looked_into(places: Places) -> None:
    """The search has read what it is about."""
    names = {name for name, _ in places.found}
    assert "file authority/authority.pem" in dict(places.pem_files())
    assert {"the log", "command line", "title", "spans", "GET /v1/audit", "file owner-key"} <= names
    assert any(RUN.encode() in content for name, content in places.found if name == "rows of the database")
    assert any(name.startswith("file blobs/") for name in names)
    log = b"".join(content for name, content in places.found if name == "the log")
    assert b"Traceback" in log
    spans = b"".join(content for name, content in places.found if name == "spans")
    assert RUN.encode() in spans


@on_day(0, of=2)
def test_no_secret_is_where_it_does_not_belong(tmp_path: Path) -> None:
    leaks, places = federation(tmp_path, f"sqlite:///{tmp_path / 'data' / 'quorate.sqlite3'}")
    assert leaks == []
    require_all_looked_into(places)
    assert any(name == "file quorate.sqlite3" for name, _ in places.found)


@on_day(1, of=2)
@pytest.mark.service
@pytest.mark.skipif(POSTGRES is None, reason="no PostgreSQL here: scripts/debian.sh postgresql")
def test_nor_with_postgresql_and_its_password_and_a_log_in_json(tmp_path: Path) -> None:
    assert POSTGRES is not None
    with postgres.running(POSTGRES) as database:
        url = database.url(database.create()).replace("quorate@", f"quorate:{PASSWORD}@")
        assert PASSWORD in url
        leaks, places = federation(tmp_path, url, "--json", QUORATE_DATABASE=url)
    assert leaks == []
    require_all_looked_into(places)


@pytest.mark.slow
@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://quorate:{PASSWORD}@127.0.0.1:9/quorate",
        f"postgresql+nothing://quorate:{PASSWORD}@127.0.0.1/quorate",
        f"sqlite://quorate:{PASSWORD}@/quorate.db",
        f"quorate:{PASSWORD}@127.0.0.1",
        f"postgresql+psycopg://quorate:{PASSWORD}@127.0.0.1:port/quorate",
    ],
    ids=["away", "no driver", "sqlite", "no scheme", "no port"],
)
def test_repro_a_start_that_fails_does_not_show_the_databases_password(tmp_path: Path, url: str) -> None:
    asked = {**os.environ, "QUORATE_DATABASE": url}
    done = forks.run(["serve", "--data", str(tmp_path / "data"), "--port", "0"], cwd=tmp_path, env=asked)
    assert (done.returncode, done.stdout) == (1, "")
    assert "database" in done.stderr
    assert "Traceback" not in done.stderr
    assert PASSWORD not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [["serve", "--port", "0", "--database"], ["verify"]], ids=lambda words: words[0])
@pytest.mark.parametrize("form", ["postgresql://q:{}@db/q", "postgresql+psycopg://db/q?user=q&password={}"])
def test_a_databases_password_on_a_command_line_is_refused(tmp_path: Path, command: list[str], form: str) -> None:
    done = forks.run([*command, form.format(PASSWORD)], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "which every user of this machine could read" in done.stderr
    assert PASSWORD not in done.stderr


def test_the_search_finds_what_it_looks_for_in_every_form() -> None:
    secret = Secret("planted", "planted-secret/of this test", ("file key",))
    for number, form in enumerate(secret.forms()):
        places = Places()
        places.add("the log", b"before " + form + b" after")
        places.add("file key", form)
        assert places.leaks([secret]) == ["planted is in the log"], number
    for shift in range(3):
        places = Places()
        places.add("the log", base64.b64encode(b"abc"[:shift] + secret.text.encode() + b"."))
        assert places.leaks([secret]) == ["planted is in the log"], shift
    places = Places()
    places.add("the log", "planted-secret/of another test")
    assert places.leaks([secret]) == []
