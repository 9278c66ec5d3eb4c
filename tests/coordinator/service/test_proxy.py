"""A coordinator behind a real nginx that ends TLS, under a path: devices, commands, streams, whose address counts."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import numpy as np
import pytest

from client_sdk import Catalogue, FileStorage, LearnerTrainer
from client_sdk.http.client import Client
from client_sdk.http.operator import OperatorClient
from client_sdk.http.transport import open_http
from client_sdk.protocol.devices import Task
from client_sdk.protocol.names import Route
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from tests import forks
from tests.coordinator.service.authorities import AuthorityProcess
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import Given, model_bytes, plan
from tests.coordinator.service.nginx import nginx, nginx_program
from tests.coordinator.service.raw import ask, head
from tests.coordinator.service.test_tls import Pair, issue
from tests.ports import free_port

PATH = "/fl"
pytestmark = [
    pytest.mark.service,
    pytest.mark.slow,
    pytest.mark.skipif(nginx_program() is None, reason="no nginx here: scripts/debian.sh nginx"),
]


@dataclass(frozen=True)
class Site:
    """A coordinator behind nginx."""

    server: Server
    authority: AuthorityProcess
    pair: Pair
    direct: str
    """The coordinator's own address, which only the proxy should use."""

    @property
    def url(self) -> str:
        return self.server.url

    def http(self) -> httpx2.Client:
        return open_http(self.url, ca=self.pair.ca)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs ``quorate`` through the proxy."""
        others = {name: value for name, value in os.environ.items() if name != "QUORATE_CA"}
        return forks.run([*words, "--coordinator", self.url, "--ca", str(self.pair.ca)], env=others)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    pair, front, back = issue(folder / "pair"), free_port(), free_port()
    options = ("--behind-proxy", "127.0.0.1/32", "--public-url", f"https://localhost:{front}{PATH}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUORATE_UNLIMITED", "")
        authority = AuthorityProcess.start(folder / "authority")
        server = Server.start(folder / "data", *options, *authority.options, port=back, tls=pair.tls)
        server.token = authority.token()
    try:
        with nginx(folder / "nginx", port=front, upstream=back, path=PATH, cert=pair.cert, key=pair.key):
            yield Site(server, authority, pair, f"http://127.0.0.1:{back}")
    finally:
        server.stop()
        authority.stop()


def test_devices_of_the_sdk_train_a_run_through_the_proxy(site: Site, tmp_path: Path) -> None:
    body, digest = model_bytes()
    with OperatorClient(site.url, http=site.http()) as operator:
        assert operator.upload_checkpoint(body) == digest
        wanted = plan("proxied", select=2, finish={"rounds": 2})
        run = operator.create_run(wanted, digest).run
        threads = [threading.Thread(target=train, args=(site, tmp_path / str(n))) for n in range(2)]
        for thread in threads:
            thread.start()
        events = [event.kind for event in operator.events(run)]
        for thread in threads:
            thread.join(60)
        assert events.count("Reported") == 4
        assert operator.run(run).version == 2
        assert operator.download(operator.checkpoints(run)[-1].digest, tmp_path / "model.safetensors") > 0


def train(site: Site, folder: Path) -> None:
    """One device, for two rounds."""

    def learner(model: Tensors, data: object, task: Task) -> Update:
        return Update({"marks": np.ones(64, np.float32)}, 10)

    trainer = LearnerTrainer(Catalogue({"tests:proxied": learner}), range(10))
    with FileStorage(folder) as storage:
        with Client(site.url, storage, trainer, enrolment_token=site.server.token, http=site.http()) as device:
            device.run(2)


def test_commands_reach_it_by_its_public_url(site: Site) -> None:
    shown = site.command("devices", "--json")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert isinstance(json.loads(shown.stdout), list)
    created = site.command("keys", "create", "--role", "viewer", "--json")
    assert created.returncode == 0, created.stderr
    assert "text" in json.loads(created.stdout)


def test_pages_are_under_the_path(site: Site) -> None:
    home = site.server.http.get(site.url + "/")
    assert home.headers["location"] in (f"{PATH}/dashboard/", f"{PATH}/docs")
    assert site.server.http.get("/openapi.json").json()["servers"] == [{"url": site.url}]
    assert "docs.js" in site.server.http.get("/docs").text


def test_an_update_is_refused_before_it_is_sent(site: Site) -> None:
    """nginx would otherwise store the whole body first."""
    device = site.server.device()
    path = Route.UPDATE.format(run="nobody", round=1, attempt=0)

    def endless() -> Iterator[bytes]:
        for _ in range(2000):
            yield b"x" * 65_536

    try:
        given = Given(device.signed("PUT", path))
        answer = device.send("PUT", path, content=endless(), auth=given)
    except (httpx2.WriteError, httpx2.RemoteProtocolError):
        return  # nginx closes while the body still comes
    assert answer.status_code == 404


def test_a_client_cannot_choose_the_address_that_counts(site: Site) -> None:
    """nginx writes the headers anew; what a client sends has no effect."""
    liar = {"X-Forwarded-For": "198.51.100.1", "X-Forwarded-Proto": "http", "Forwarded": "for=unknown"}
    assert site.server.http.get(Route.RUNS, headers=liar).status_code == 200


def test_the_coordinator_itself_answers_the_proxy_only(site: Site) -> None:
    port = site.url.rsplit(":", 1)[1].removesuffix(PATH)
    unnamed = ask(site.direct, head(f"{PATH}/v1/runs"))
    assert (unnamed.status, unnamed.kind()) == (400, "malformed-request")
    assert "X-Forwarded-For" in unnamed.json()["detail"]
    assert ask(site.direct, head(f"{PATH}/healthz")).json() == {"ok": True}
    named = ("X-Forwarded-For: 192.0.2.1", "X-Forwarded-Proto: https")
    wrong_host = ask(site.direct, head(f"{PATH}/v1/runs", *named))
    assert wrong_host.status == 421
    bare = head("/v1/runs", *named).decode().replace("Host: localhost", f"Host: localhost:{port}")
    assert "All paths begin with /fl" in ask(site.direct, bare.encode()).json()["detail"]
    plain = head(f"{PATH}/v1/runs", named[0], "X-Forwarded-Proto: http").decode()
    answer = ask(site.direct, plain.replace("Host: localhost", f"Host: localhost:{port}").encode())
    assert (answer.status, "come by https" in answer.json()["detail"]) == (403, True)


def test_an_address_that_sends_too_much_is_refused_with_a_time_to_return(site: Site) -> None:
    """By the address that the proxy names: another one goes on."""
    port = site.url.rsplit(":", 1)[1].removesuffix(PATH)

    def one(client: str) -> tuple[int, dict[str, str]]:
        lines = (f"X-Forwarded-For: {client}", "X-Forwarded-Proto: https", "Content-Encoding: gzip")
        sent = head(f"{PATH}/v1/runs", *lines).decode().replace("Host: localhost", f"Host: localhost:{port}")
        answer = ask(site.direct, sent.encode())
        return answer.status, answer.headers

    statuses = [one("192.0.2.77")[0] for _ in range(80)]
    assert statuses[:50] == [415] * 50
    assert statuses[-1] == 429
    assert int(one("192.0.2.77")[1]["retry-after"]) >= 1
    assert one("192.0.2.78")[0] == 415
