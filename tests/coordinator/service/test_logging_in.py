"""Logging in to a real ``quorate serve``: the link that it prints to a terminal, a restart, streams that end with their
session, and what its files and its output keep of the secrets."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.access import LINK_FRAGMENT, REQUEST_HEADER, REQUEST_VALUE, CreateKey
from client_sdk.protocol.names import Route
from tests.coordinator.service.conftest import READY_S, Server

LINK = re.compile(rf"(http://127\.0\.0\.1:[0-9]+/){LINK_FRAGMENT}(ql_[0-9a-f]{{16}}_[0-9a-f]{{64}})")
READY = "Ctrl-C stops it"


def browser(url: str) -> httpx2.Client:
    """With a jar for its cookies, and what a page of the coordinator sends."""
    headers = {"Origin": url.rstrip("/"), "Sec-Fetch-Site": "same-origin", REQUEST_HEADER: REQUEST_VALUE}
    return httpx2.Client(base_url=url, headers=headers, timeout=30)


def logged_in(server: Server, key: str = "") -> httpx2.Client:
    found = browser(server.url)
    found.post(Route.SESSIONS, json={"key": key or server.key}).raise_for_status()
    return found


# ------------------------------------------------------------ the link on a terminal


def with_page(folder: Path) -> dict[str, str]:
    """An environment in which a page is installed."""
    info = folder / "a_page-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-page\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[quorate.pages]\na-page = a_page:app\n")
    (folder / "a_page.py").write_text("async def ask(scope, receive, send): ...\n\n\ndef app():\n    return ask\n")
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


@contextmanager
def serving(folder: Path, environment: dict[str, str], *, terminal: bool) -> Iterator[str]:
    """What ``quorate serve`` has printed when it is ready, on a terminal or into a pipe."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-m", "coordinator.cli", "serve", "--data", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.STDOUT, env=environment)
    os.close(theirs)
    said, until = b"", time.monotonic() + READY_S
    try:
        while READY.encode() not in said and time.monotonic() < until:
            said += os.read(ours, 4096)
        yield said.decode()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(15)
        os.close(ours)


@pytest.mark.slow
def test_a_terminal_gets_a_link_that_logs_one_browser_in(tmp_path: Path) -> None:
    with serving(tmp_path / "data", with_page(tmp_path / "installed"), terminal=True) as said:
        url, token = LINK.findall(said)[0]
        first, second = browser(url), browser(url)
        answer = first.post(Route.SESSION_BY_LINK, json={"token": token})
        assert answer.status_code == 201, answer.text
        assert (answer.json()["by"], first.get(Route.ME).json()["grants"]) == (
            "local",
            [{"role": "owner", "scope": "*"}],
        )
        assert second.post(Route.SESSION_BY_LINK, json={"token": token}).status_code == 401
        assert first.get(Route.KEYS).status_code == 200
        printed = OperatorClient(url, key_file=tmp_path / "data" / "owner-key").login_link()
        assert LINK.fullmatch(printed)
        assert second.post(Route.SESSION_BY_LINK, json={"token": LINK.findall(printed)[0][1]}).status_code == 201
        stored = b"".join(path.read_bytes() for path in (tmp_path / "data").glob("*") if path.is_file())
        cookies = [value for one in (first, second) for value in one.cookies.values()]
        assert len(cookies) == 2
        for secret in (token, *cookies):
            assert secret[-64:].encode() not in stored


@pytest.mark.slow
def test_a_pipe_or_a_file_gets_none(tmp_path: Path) -> None:
    with serving(tmp_path / "data", with_page(tmp_path / "installed"), terminal=False) as said:
        assert READY in said
        assert LINK_FRAGMENT not in said
        assert "The dashboard:" in said


# ------------------------------------------------------------ a restart, and streams


@pytest.mark.slow
def test_a_session_holds_after_the_coordinator_was_killed_and_no_secret_is_in_its_log(tmp_path: Path) -> None:
    server = Server.start(tmp_path / "data")
    page = logged_in(server)
    secrets = [server.key, *page.cookies.values()]
    wrong = page.post(Route.SESSIONS, json={"key": server.key[:-1] + "g"})
    assert wrong.status_code == 401
    port = httpx2.URL(server.url).port
    log = server.log
    server.stop(signal.SIGKILL)
    again = Server.start(tmp_path / "data", port=port or 0)
    try:
        assert page.get(Route.ME).json()["id"].startswith("key:")
        page.delete(Route.CURRENT_SESSION).raise_for_status()
        assert page.get(Route.ME).status_code == 401
    finally:
        second = again.log
        again.stop()
    assert len(secrets) == 2
    for secret in secrets:
        assert secret not in log.text() + second.text()


class Following:
    """An open stream of a run's events, read in a thread until it ends."""

    def __init__(self, page: httpx2.Client, run: str) -> None:
        self.began, self.ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._read, args=(page, run), daemon=True)
        self._thread.start()

    def _read(self, page: httpx2.Client, run: str) -> None:
        with page.stream("GET", Route.EVENTS.format(run=run)) as answer:
            answer.raise_for_status()
            for _ in answer.iter_bytes():
                self.began.set()
        self.ended.set()


def _log_out(server: Server, page: httpx2.Client, key: str) -> None:
    page.delete(Route.CURRENT_SESSION).raise_for_status()


def _revoke(server: Server, page: httpx2.Client, key: str) -> None:
    server.http.post(Route.REVOKE_KEY.format(key=key.split("_")[1])).raise_for_status()


@pytest.mark.slow
@pytest.mark.parametrize("end", [_log_out, _revoke])
def test_a_stream_ends_at_once_with_its_session(
    server: Server, end: Callable[[Server, httpx2.Client, str], None]
) -> None:
    """Much sooner than it would read again by itself (``reread_s`` 20)."""
    run = server.create_run("watched", select=5)
    with OperatorClient(server.url, key=server.key) as owner:
        keys = [owner.create_key(CreateKey(role="viewer", scope="watched*")).text for _ in range(2)]
    ending, other = (logged_in(server, key) for key in keys)
    streams = [Following(page, run) for page in (ending, other)]
    assert all(stream.began.wait(READY_S) for stream in streams)
    end(server, ending, keys[0])
    assert streams[0].ended.wait(10)
    assert not streams[1].ended.is_set()
    assert ending.get(Route.ME).status_code == 401
    _log_out(server, other, keys[1])
    assert streams[1].ended.wait(10)
