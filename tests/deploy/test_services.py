"""The units of systemd, the container file and the Caddyfile: what a machine without them can check."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from client_sdk.cli import app
from coordinator.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.service
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here: scripts/debian.sh systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_unit(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_units_commands_are_ours_and_hold_no_secret(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=/usr/bin/env quorate (.*)$", unit.read_text(), re.MULTILINE)
    name, *words = shlex.split(line)
    found: Any = typer.main.get_command(app)
    found = found.get_command(None, name)
    while not any(parameter.name == "as_json" for parameter in found.params):
        name, *words = words
        found = found.commands[name]
    given = found.make_context(name, words).params
    assert "token" not in line
    assert given["as_json"] is True


def test_every_variable_that_the_files_name_is_a_setting_or_an_option() -> None:
    options = {"QUORATE_URL", "QUORATE_CA", "QUORATE_ENROLMENT_TOKEN", "QUORATE_KEY_FILE", "QUORATE_SUMS_FOLDER"}
    known = options | {f"QUORATE_{name.upper()}" for name in Settings.model_fields}
    for path in [*UNITS, DEPLOY / "Containerfile", DEPLOY / "Caddyfile", DEPLOY.parent / "docs" / "deploy.md"]:
        assert set(re.findall(r"QUORATE_[A-Z_]+", path.read_text())) <= known, path.name


def test_every_file_of_the_page_is_in_the_folder() -> None:
    page = (DEPLOY.parent / "docs" / "deploy.md").read_text()
    named = set(re.findall(r"\(\.\./deploy/([^)]+)\)", page))
    assert named == {"nginx/quorate.conf", "Caddyfile", "Containerfile", *(f"systemd/{unit.name}" for unit in UNITS)}
    assert all((DEPLOY / name).exists() for name in named)
