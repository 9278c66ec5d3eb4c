"""The wheel, and a Python in which nothing but that wheel's bare install lies. Both are made once a session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.pip_settings import uv_environment

ROOT = Path(__file__).resolve().parents[2]


def without_path(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment, or this process's, without PYTHONPATH."""
    found = os.environ if environment is None else environment
    return {name: value for name, value in found.items() if name != "PYTHONPATH"}


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command outside the checkout, so that nothing is imported from its working folder or from PYTHONPATH.

    ``environment``: None: this process's.
    """
    return subprocess.run(
        [str(part) for part in command],
        cwd="/",
        env=without_path(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )


def succeed(*command: str | Path) -> str:
    """Run a command that must succeed; return what it printed."""
    done = run(*command)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    succeed(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def bare_device_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python whose clean environment holds the wheel without extras, at the locked versions.

    The `quorate` script lies beside it. Nothing of the checkout is on its path.
    """
    folder = tmp_path_factory.mktemp("bare-device")
    succeed(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    lock = ROOT / "requirements" / "lock.txt"
    # As `make install` does: with uv, which has the packages from there, and with pip where uv cannot.
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, "-c", lock, wheel]
    if run(*uv, environment=uv_environment(sys.executable)).returncode:
        succeed(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "-c", lock, wheel)
    return python
