"""The wheel as a user gets it: what is in it, and that a bare install of it is a device."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from scripts.dashboard import Dashboard
from simulation.commands.new import _FILES
from tests.packaging.conftest import ROOT, run, succeed, without_path

pytestmark = pytest.mark.slow

PACKAGES = ("quorate", "client_sdk", "coordinator", "simulation", "dashboards")
SERVER_PACKAGES = ("torch", "fastapi", "sqlalchemy", "flwr", "ray", "uvicorn", "alembic")


def test_wheel_holds_every_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {*PACKAGES, "quorate-0.2.0.dev0.dist-info"}
    for package in PACKAGES:
        on_disk = {
            str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py") if "node_modules" not in path.parts
        }
        assert on_disk <= set(names), "a module is missing from the wheel"
        assert f"{package}/py.typed" in names


def test_wheel_carries_the_contracts_of_packages(wheel: Path, tmp_path: Path) -> None:
    """pytest's own Python: the wheel's folder comes first on its path, and no checkout is there."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "import quorate.testing as t; print(t.__file__, *(getattr(t, name).__module__ for name in t.__all__))"
    where, *modules = run(
        sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"
    ).stdout.split()
    assert Path(where).is_relative_to(tmp_path)
    assert {name.rpartition(".")[0] for name in modules} == {"quorate.testing"}


def test_wheel_with_compiled_loops_says_for_which_platform_it_is(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    compiled = [name for name in names if name.startswith("client_sdk/tensors/") and name.endswith(".so")]
    assert "client_sdk/tensors/compiled.c" in names
    assert len(compiled) == (shutil.which("cc") is not None)
    assert wheel.name.endswith("-py3-none-any.whl") == (not compiled)


def test_wheel_carries_the_dashboards_page_and_not_its_sources(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "dashboards/built/index.html" in names, "it was built without Node.js"
    assert [name for name in names if name.startswith("dashboards/built/assets/") and name.endswith(".js")]
    assert not [name for name in names if name.startswith("dashboards/web/")]


def test_sdist_holds_the_tests_their_mutants_and_the_dashboards_page(tmp_path: Path) -> None:
    succeed(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, ROOT)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert {"dashboards/built/index.html", "dashboards/web/package-lock.json", "scripts/build_hook.py"} <= names
    assert not [name for name in names if "node_modules" in name]
    unpacked = next(path for path in tmp_path.iterdir() if path.is_dir())
    assert Dashboard(unpacked).is_current(), "a wheel that is made of it without Node.js has the page"
    assert {f"{package}/__init__.py" for package in PACKAGES} <= names
    assert {"tests/explorer/mutants/registry.py", "requirements/lock.txt", "Makefile", "README.md"} <= names


def test_wheel_carries_the_files_of_a_new_project(wheel: Path) -> None:
    templates = {f"simulation/commands/project/{template}" for template in _FILES.values()}
    assert templates <= set(zipfile.ZipFile(wheel).namelist())


def test_wheel_carries_the_migrations(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    revisions = [name for name in names if name.startswith("coordinator/store/migrations/versions/")]
    assert revisions, "a coordinator from this wheel could not make its database"


def test_wheel_is_labelled(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read("quorate-0.2.0.dev0.dist-info/METADATA").decode()
        licence = archive.read("quorate-0.2.0.dev0.dist-info/licenses/LICENSE").decode()
        entry_points = archive.read("quorate-0.2.0.dev0.dist-info/entry_points.txt").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert "Apache License" in licence
    assert "quorate = quorate.__main__:main" in entry_points


def test_bare_install_is_what_the_design_lists(bare_device_python: Path) -> None:
    listed = json.loads(
        succeed(
            bare_device_python,
            "-c",
            "import importlib.metadata as m, json; print(json.dumps([d.name.lower() for d in m.distributions()]))",
        )
    )
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {line.split(">")[0] for line in asked} <= set(listed)
    assert not set(SERVER_PACKAGES) & set(listed)
    assert Distribution.from_name("torch").version, "the checkout has torch, so its absence above says something"


def test_front_door_opens_without_extras(bare_device_python: Path) -> None:
    where = succeed(
        bare_device_python,
        "-c",
        "import client_sdk; from client_sdk import Client, Update, participate; print(client_sdk.__file__)",
    )
    assert Path(where.strip()).is_relative_to(bare_device_python.parent.parent)
    for package in SERVER_PACKAGES:
        assert run(bare_device_python, "-c", f"import {package}").returncode != 0


def test_front_door_of_a_bare_install_has_the_sdk_and_names_the_extra(bare_device_python: Path) -> None:
    assert succeed(bare_device_python, "-c", "from quorate import Client, Update; print(Update.__name__)") == "Update\n"
    refused = run(bare_device_python, "-c", "import quorate; quorate.simulate")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("ImportError: quorate.simulate needs ")
    assert refused.stderr.rstrip().endswith(": pip install 'quorate[simulation]'")
    assert "quorate[torch]" in run(bare_device_python, "-c", "from quorate import Learner").stderr


def test_script_and_module_name_a_file_that_hides_a_package(bare_device_python: Path, tmp_path: Path) -> None:
    """The script does not look into the working folder; `python -m` does, and PYTHONPATH concerns both."""
    for name in ("client_sdk", "simulation"):
        hiding = tmp_path / f"{name}.py"
        hiding.write_text("raise SystemExit('it ran')")
        script, module = [bare_device_python.with_name("quorate")], [bare_device_python, "-m", "quorate"]
        there = {"capture_output": True, "text": True, "check": False, "cwd": tmp_path}
        assert subprocess.run([*script, "--version"], env=without_path(), **there).stdout.startswith("quorate ")
        for command, environment in ((module, {}), (script, {"PYTHONPATH": str(tmp_path)})):
            done = subprocess.run([*command, "--version"], env=without_path() | environment, **there)
            assert done.returncode == 1
            assert f"{hiding} hides quorate's own package" in done.stderr
            assert done.stderr.count("\n") == 1
        hiding.unlink()


def test_quorate_says_how_to_use_it(bare_device_python: Path) -> None:
    assert "Usage" in succeed(bare_device_python.with_name("quorate"), "--help")
    assert "Usage" in succeed(bare_device_python.with_name("quorate"), "device", "--help")


def test_quorate_names_the_missing_extra(bare_device_python: Path) -> None:
    refused = run(bare_device_python.with_name("quorate"), "serve")
    output = " ".join((refused.stdout + refused.stderr).split())
    assert refused.returncode != 0
    assert "quorate[coordinator]" in output
    assert "Traceback" not in output
