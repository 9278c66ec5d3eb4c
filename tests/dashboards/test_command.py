"""`quorate dashboard`, as somebody types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from client_sdk.protocol.names import Route
from tests.coordinator.service.conftest import Server


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dashboards.cli", "dashboard", *arguments]
    given = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=given)


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
