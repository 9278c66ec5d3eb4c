"""The import graph has one direction, and the contracts in `pyproject.toml` that hold it do catch what breaks them.

`client_sdk <- coordinator.engine <- folding <- secure <- runtime <- requests <- {service, datacenter} <- simulation
<- quorate`
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rotating import in_parts

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("quorate", "client_sdk", "coordinator", "simulation", "dashboards")


def lint_imports(folder: Path) -> tuple[bool, str]:
    """Check the packages in the folder against its contracts; return whether all are kept, and what was said."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode == 0, " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    """Return a folder with this project's contracts and its packages, all of them empty."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        for module in (ROOT / package).rglob("*.py"):
            copy = tmp_path / module.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.touch()
    return tmp_path


def test_the_import_graph_has_one_direction() -> None:
    kept, message = lint_imports(ROOT)
    assert kept, message


def test_an_empty_house_is_in_order(skeleton: Path) -> None:
    kept, message = lint_imports(skeleton)
    assert kept, message
    assert "0 broken" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    in_parts(
        [
            ("simulation/wrong.py", "import quorate", "One direction"),
            ("client_sdk/wrong.py", "import quorate", "One direction"),
            ("client_sdk/wrong.py", "import coordinator", "client_sdk imports no other room"),
            ("client_sdk/wrong.py", "import fastapi", "client_sdk needs no server packages"),
            ("client_sdk/wrong.py", "import torch", "torch stays in client_sdk.learning"),
            ("coordinator/wrong.py", "import simulation", "coordinator never imports simulation"),
            ("coordinator/wrong.py", "import torch", "The coordinator needs no torch"),
            ("coordinator/runtime/coordinator.py", "import coordinator.service", "One direction"),
            ("coordinator/engine/wrong.py", "import coordinator.runtime", "One direction"),
            ("coordinator/engine/wrong.py", "import coordinator.secure", "One direction"),
            ("coordinator/secure/wrong.py", "import coordinator.runtime", "Secure rounds are performed over"),
            ("coordinator/secure/wrong.py", "import sqlalchemy", "Secure rounds are performed over"),
            ("coordinator/folding/wrong.py", "import coordinator.runtime", "One direction"),
            ("coordinator/folding/wrong.py", "import coordinator.secure", "One direction"),
            ("coordinator/engine/wrong.py", "import coordinator.folding", "One direction"),
            ("coordinator/engine/phases/wrong.py", "import coordinator.engine.rounds", "In the engine"),
            ("coordinator/engine/state.py", "import coordinator.engine.phases", "In the engine"),
            ("coordinator/engine/events.py", "import coordinator.engine.state", "In the engine"),
            ("coordinator/store/wrong.py", "import coordinator.engine", "Stores and blobs are ports"),
            ("coordinator/blobs/wrong.py", "import coordinator.runtime", "Stores and blobs are ports"),
            ("client_sdk/protocol/wrong.py", "import client_sdk.tensors", "In client_sdk"),
            ("client_sdk/protocol/wrong.py", "import client_sdk.device", "In client_sdk"),
            ("client_sdk/tensors/wrong.py", "import client_sdk.codecs", "In client_sdk"),
            ("client_sdk/device/wrong.py", "import client_sdk.http", "In client_sdk"),
            ("client_sdk/http/wrong.py", "import client_sdk.commands", "In client_sdk"),
            ("client_sdk/commands/wrong.py", "import client_sdk.learning", "In client_sdk"),
            ("client_sdk/device/wrong.py", "import httpx2", "Messages and a device's session"),
            ("client_sdk/device/wrong.py", "import socket", "Messages and a device's session"),
            ("client_sdk/protocol/wrong.py", "import http.client", "Messages and a device's session"),
            ("client_sdk/protocol/wrong.py", "import time", "Messages and a device's session"),
            ("coordinator/runtime/wrong.py", "import coordinator.requests", "One direction"),
            ("coordinator/requests/wrong.py", "import coordinator.service", "One direction"),
            ("coordinator/requests/wrong.py", "import fastapi", "The table of requests needs no server"),
            ("coordinator/runtime/wrong.py", "import opentelemetry", "OpenTelemetry stays in"),
            ("coordinator/engine/wrong.py", "import time", "The engine is pure"),
            ("simulation/wrong.py", "import ray", "One file needs ray"),
            ("simulation/wrong.py", "import tests.explorer", "What ships imports nothing that does not"),
            (
                "client_sdk/wrong.py",
                "def f():\n    from scripts import lock",
                "What ships imports nothing that does not",
            ),
            ("coordinator/engine/wrong.py", "def f():\n    from random import random", "The engine is pure"),
        ],
        of=3,
    ),
)
def test_the_contracts_catch(skeleton: Path, module: str, statement: str, contract: str) -> None:
    (skeleton / module).write_text(statement + "\n")
    kept, message = lint_imports(skeleton)
    assert not kept
    broken = message.split("Broken contracts")[1]
    assert contract in broken


def test_the_contracts_look_through_what_the_engine_imports(skeleton: Path) -> None:
    (skeleton / "client_sdk" / "clock.py").write_text("import time\n")
    (skeleton / "coordinator" / "engine" / "wrong.py").write_text("import client_sdk.clock\n")
    kept, message = lint_imports(skeleton)
    assert not kept
    assert "client_sdk.clock -> time" in message
