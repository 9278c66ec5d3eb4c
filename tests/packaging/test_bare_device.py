"""A device that has nothing but the wheel's bare install takes part in a real run of a real coordinator."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.tensors import from_bytes, to_bytes
from tests.coordinator.service.conftest import Server

pytestmark = pytest.mark.slow

LEARNER = """
import sys
from client_sdk import Update

__version__ = "1.0"

def train(model, data, task):
    assert not {"torch", "fastapi", "sqlalchemy", "flwr"} & set(sys.modules)
    error = data.x @ model["w"] - data.y
    return Update({"w": -task.learning_rate * data.x.T @ error / len(data.x)}, examples=len(data.x))
"""


def test_a_device_joins_from_the_bare_wheel(bare_device_python: Path, tmp_path: Path) -> None:
    (tmp_path / "clinic.py").write_text(LEARNER)
    x = np.eye(3, dtype=np.float32)
    y = np.array([1.0, 2.0, 3.0], np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    plan = {
        "name": "clinic",
        "task": {"learner": "clinic:train", "learner_version": "1.0", "learning_rate": 1.5},
        "cohort": {"select": 1, "goal": 1, "select_s": 60, "collect_s": 60},
        "finish": {"rounds": 2},
    }
    server = Server.start(tmp_path / "coordinator")
    try:
        with OperatorClient(server.url) as operator:
            made = operator.create_run(
                plan, operator.upload_checkpoint(to_bytes({"w": np.zeros(3, np.float32)})), "test"
            )
            quorate = bare_device_python.with_name("quorate")
            options = ["--data", "data.npz", "--learner", "clinic:train", "--rounds", "2", "--url", server.url]
            device = subprocess.run(
                [quorate, "device", *options, "--token-file", server.token_file],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            assert device.returncode == 0, device.stdout + device.stderr
            run = operator.run(made.run)
            assert (run.status, run.version) == ("finished", 2), device.stdout + device.stderr
            operator.download(run.checkpoint, tmp_path / "model.safetensors")
    finally:
        server.stop()
    # Each step goes half way: w <- w - 1.5 / 3 * (w - y).
    model = from_bytes((tmp_path / "model.safetensors").read_bytes())
    np.testing.assert_allclose(model["w"], y * 0.75, rtol=0, atol=1e-6)
    history = subprocess.run(
        [quorate, "device", "history", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    joined = [json.loads(line) for line in history.stdout.splitlines()]
    assert [(entry["round"], entry["result"]) for entry in joined] == [(1, "receipt"), (2, "receipt")]


def test_the_doctor_says_what_the_bare_wheel_lacks(bare_device_python: Path, tmp_path: Path) -> None:
    quorate = bare_device_python.with_name("quorate")
    environment = {"PATH": str(quorate.parent), "QUORATE_PORT": "0", "HOME": str(tmp_path)}
    ran = subprocess.run(
        [quorate, "doctor", "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    rows = {row["check"]: row for row in map(json.loads, ran.stdout.splitlines())}
    assert (ran.returncode, ran.stderr) == (0, "")
    assert {rows[check]["state"] for check in ("Python", "PATH", "quorate", "port", "data", "disk")} == {"ok"}
    extras = {name: row for name, row in rows.items() if name.startswith("extra ")}
    assert {row["state"] for row in extras.values()} == {"missing"}
    assert rows["extra torch"]["found"] == "torch is not installed"
    assert rows["extra torch"]["next"] == "pip install 'quorate[torch]'"
    found = rows["extra simulation"]["found"]
    assert re.fullmatch(r"(\w+ is not installed; ){3}and \d\d packages more", found)
