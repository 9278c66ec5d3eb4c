"""Another flwr than the supported one, or none, is named in one sentence; and no telemetry leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from client_sdk.flower import work
from tests.client_sdk.commands.run_cli import quorate
from tests.client_sdk.flower.apps import CLIENTAPP, write_app


def absent(name: str) -> str:
    raise PackageNotFoundError(name)


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (
            lambda name: "1.43.0",
            "flwr 1.43.0 is installed, and Quorate works with flwr 1.41 or 1.42: pip install 'quorate[flower]'",
        ),
        (absent, "This needs flwr, which is not installed: pip install 'quorate[flower]'"),
    ],
)
def test_a_device_says_which_flwr_it_needs(
    version: Callable[[str], str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(work, "version", version)
    assert quorate("device", "--flower", str(write_app(tmp_path / "app")), "--folder", str(tmp_path / "d")) == 1
    assert capsys.readouterr().err == f"Error: d: {sentence}\n"
    assert not (tmp_path / "d").exists()


OFFLINE = """
import json, socket, sys
asked = []
true_connect, true_lookup = socket.socket.connect, socket.getaddrinfo

def connect(self, address):
    if self.family == socket.AF_UNIX:
        return true_connect(self, address)
    asked.append(str(address))
    raise OSError("blocked by the test")

def lookup(host, *more, **named):
    asked.append(str(host))
    raise OSError("blocked by the test")

socket.socket.connect = socket.socket.connect_ex = connect
socket.getaddrinfo = lookup
"""
WORK = """
import subprocess, time
from pathlib import Path
from threading import Event
from client_sdk.flower.app import load_client_app
from client_sdk.flower.app_call import call
from client_sdk.flower.work import AppWork

folder = Path(sys.argv[1])
app = load_client_app(folder / "app", sys.argv[2])
from client_sdk.flower import records
from flwr.app import ArrayRecord, RecordDict
import numpy as np
content = records.encode(RecordDict({"arrays": ArrayRecord([np.ones(2)])}))
(folder / "content").write_bytes(b"".join(content.parts()))
said = call(app, AppWork(run="r", number=1, node=2, node_config={"partition-id": 0}, run_config={"rate": 1.0},
    message="0" * 64, type="train", group="1", created_at=time.time(), ttl_s=60, content=str(folder / "content"),
    state=None, answer=str(folder / "answer"), max_reply=10**6))
from flwr.supercore.telemetry import EventType, event
event(EventType.PING)
if len(sys.argv) > 3:
    import urllib.request
    try:
        urllib.request.urlopen("http://flower.example")
    except OSError:
        pass
time.sleep(1)
print(json.dumps({"said": said.kind, "asked": asked}))
"""


def offline(folder: Path, *more: str) -> dict[str, object]:
    """What an app's work said, and which hosts its process asked for."""
    write_app(folder / "app")
    command = [sys.executable, "-c", OFFLINE + WORK, str(folder), CLIENTAPP, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_no_host_is_asked_while_an_app_works(tmp_path: Path) -> None:
    assert offline(tmp_path) == {"said": "worked", "asked": []}


@pytest.mark.slow
def test_the_check_sees_a_host_that_is_asked(tmp_path: Path) -> None:
    assert offline(tmp_path, "ask") == {"said": "worked", "asked": ["flower.example"]}
