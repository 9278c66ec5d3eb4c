"""`quorate dashboard`, as somebody types it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from client_sdk.protocol.names import Route
from tests import forks
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forks.run(["dashboard", *arguments], env=os.environ | environment)


def started(*arguments: str) -> tuple[list[str], str]:
    """The first line of a dashboard, which is ended after it, and what it has said on standard error."""
    command = [sys.executable, "-m", "dashboards.cli", "dashboard", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip("\n")]
        process.send_signal(signal.SIGINT)
        return lines, process.communicate(timeout=60)[1]


def page_of(lines: list[str]) -> str:
    """The address in the line."""
    found = re.search(r"http://127\.0\.0\.1:\d+/", lines[0])
    assert found is not None, lines
    return found.group()


@pytest.mark.slow
def test_a_link_is_printed_that_logs_in_once(tmp_path: Path) -> None:
    server = Server.start(tmp_path)
    try:
        done = call("--login", "--coordinator", server.url, QUORATE_API_KEY=server.key)
        url, _, token = done.stdout.strip().partition("/#login=")
        assert (done.returncode, url) == (0, server.url), done.stderr
        page = {"Origin": server.url, "Sec-Fetch-Site": "same-origin", "Quorate-Request": "1", "Authorization": ""}
        answers = [server.http.post(Route.SESSION_BY_LINK, json={"token": token}, headers=page) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 401]
    finally:
        server.stop()


@pytest.mark.slow
def test_plain_http_to_another_machine_is_one_sentence() -> None:
    done = call("--coordinator", "http://fl.example.org", "--port", "0")
    assert done.returncode == 1
    assert "by https only" in done.stderr
    assert done.stderr.count("\n") == 1


@on_day(2, of=3)
def test_a_coordinator_that_does_not_answer_is_said_at_once_and_the_page_is_there_nevertheless(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
    lines, said = started("--coordinator", nobody, "--port", "0")
    assert lines == [f"The dashboard of {nobody} is at {page_of(lines)}. Ctrl-C ends it."]
    assert said.startswith(f"{nobody} does not answer now: ")
    assert said.endswith("The page works as soon as it does.\n")
    server = Server.start(tmp_path)
    try:
        assert started("--coordinator", server.url, "--port", "0")[1] == ""
    finally:
        server.stop()
