"""What the README shows of the SDK and of the API is run as it stands there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.operators import RunView
from client_sdk.tensors import from_bytes, to_bytes
from tests.coordinator.service.conftest import Server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BEFORE = """
import sys
import numpy as np
from client_sdk.data import Examples

url, token = sys.argv[1:]
x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
my_data = Examples(x, x @ np.array([1, -2, 0.5], np.float32))
"""
PLAN = {
    "name": "risk",
    "task": {"learner": "clinic:risk", "learning_rate": 0.5},
    "cohort": {"select": 1, "goal": 1, "select_s": 30},
    "finish": {"rounds": 8},
}


def snippet_of_the_app() -> str:
    (snippet,) = (block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "Catalogue(" in block)
    return snippet


def test_what_is_picked_from_a_run_is_there() -> None:
    (picked,) = re.findall(r"v1/runs -H @viewer.header \| jq '\.\[\] \| \{(.*?)\}'", README)
    assert set(picked.split(", ")) <= set(RunView.model_fields)


@pytest.mark.slow
def test_the_app_takes_part_in_a_run(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(BEFORE + snippet_of_the_app())
    server = Server.start(tmp_path / "coordinator")
    app = subprocess.Popen(
        [sys.executable, "app.py", server.url, server.token],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with OperatorClient(server.url) as operator:
            first = operator.upload_checkpoint(to_bytes({"w": np.zeros(3, np.float32)}))
            run = operator.create_run(PLAN, first, "a test").run
            until = time.monotonic() + 60
            while operator.run(run).status != "finished" and app.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            model = from_bytes(operator.checkpoint(operator.run(run).checkpoint))
        app.send_signal(signal.SIGINT)
        progress, error = app.communicate(timeout=20)
    finally:
        app.kill()
        app.wait()
        server.stop()
    np.testing.assert_allclose(model["w"], [1, -2, 0.5], atol=0.05)
    assert (app.returncode, error) == (0, "Stopping; once more ends it at once.\n")
    assert f"{run} round 8: Training clinic:risk." in progress.splitlines()
    assert (tmp_path / ".clinic" / "quorate" / "record.json").exists()


STOPPED_AT_AN_IMPORT = """
import importlib.abc, signal, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
url, token, my_data = "http://127.0.0.1:1", sys.argv[2], []
"""


@pytest.mark.parametrize("module", ["numpy", "pydantic", "httpx2"])
def test_ctrl_c_while_the_app_imports_its_packages_stops_it_cleanly(module: str, tmp_path: Path) -> None:
    token = EnrolmentToken("http://127.0.0.1:1", bytes(32), bytes(16)).text
    app = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_AN_IMPORT + snippet_of_the_app(), module, token],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (app.returncode, app.stderr) == (0, "Stopping; once more ends it at once.\n")


@pytest.mark.parametrize(
    "made",
    [
        "quorate-data/quorate.sqlite",
        "quorate-device/record.json",
        "quorate-fleet/1",
        "device-3/key",
        "demo-runs/1",
        "model.safetensors",
        "run-1/quorate.sqlite",
        "run-1.png",
        "viewer.header",
        "viewer.key",
    ],
)
def test_git_ignores_what_the_commands_make(made: str) -> None:
    assert subprocess.run(["git", "check-ignore", "-q", made], cwd=ROOT, check=False).returncode == 0
