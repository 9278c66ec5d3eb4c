"""A fresh interpreter imports the SDK's front door, and no heavy package and no other room comes with it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.whole

KEPT_OUT = {"torch", "fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "flwr", "ray", "grpc"}
OTHER_ROOMS = {"coordinator", "simulation", "dashboards"}


def top_level_modules_after(statement: str) -> set[str]:
    """Return the top-level names in `sys.modules` of a fresh interpreter that ran the statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("from client_sdk import Client, Update, participate", id="front door"),
        pytest.param("import client_sdk.cli", id="cli"),
        pytest.param("from quorate import Client, Update", id="quorate"),
        pytest.param("import client_sdk.flower, client_sdk.flower.work, client_sdk.flower.serving", id="flower"),
        pytest.param("import client_sdk.flower.http_port, client_sdk.commands.device", id="flower device"),
    ],
)
def test_the_sdk_comes_alone(statement: str) -> None:
    loaded = top_level_modules_after(statement)
    assert "client_sdk" in loaded
    assert not loaded & (KEPT_OUT | OTHER_ROOMS)


def test_the_command_line_loads_numerical_libraries_later() -> None:
    """``--threads`` must be set before they are loaded."""
    assert not top_level_modules_after("import client_sdk.cli, client_sdk.commands.joining") & {"numpy", "torch"}


def test_importing_quorate_imports_no_room() -> None:
    assert not top_level_modules_after("import quorate, quorate.__main__") & (OTHER_ROOMS | {"client_sdk", "numpy"})


@pytest.mark.slow
def test_the_coordinator_needs_no_torch() -> None:
    loaded = top_level_modules_after("import coordinator.cli, coordinator.runtime.coordinator, coordinator.service")
    assert not loaded & {"torch", "flwr", "ray", "simulation", "dashboards"}


def test_the_engine_brings_no_server() -> None:
    loaded = top_level_modules_after("import coordinator.engine")
    assert not loaded & (KEPT_OUT | {"httpx2", "simulation", "dashboards"})


def test_the_check_sees_what_it_looks_for() -> None:
    assert "fastapi" in top_level_modules_after("import fastapi")
