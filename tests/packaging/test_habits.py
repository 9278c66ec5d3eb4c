"""The habits that `make` and `tests/conftest.py` promise: order, narrowing, services in CI, an install that rests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT
from tests.rotating import in_parts

SERVICE_TEST = """
import pytest

@pytest.mark.service
def test_needs_a_database():
    pytest.skip("no database here: start one")
"""
MODULE_SKIP = """
import pytest

pytest.skip("no database here: start one", allow_module_level=True)
"""
SLOW_FIRST_AND_SOAK = """
import pytest

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.soak
def test_soak(): pass

def test_quick(): pass
"""


def run_pytest(folder: Path, source: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run pytest on one file under this project's configuration and conftest; return its exit status and words."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "tests").mkdir(exist_ok=True)
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    (folder / "tests" / "test_it.py").write_text(source)
    inherited = {name: value for name, value in os.environ.items() if name != "QUORATE_CI"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("source", [SERVICE_TEST, MODULE_SKIP])
def test_a_missing_service_skips_with_its_reason(tmp_path: Path, source: str) -> None:
    status, output = run_pytest(tmp_path, source, QUORATE_CI="0")
    assert "1 skipped" in output
    assert "no database here" in output
    assert status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


@pytest.mark.slow
@pytest.mark.parametrize("source", in_parts([SERVICE_TEST, MODULE_SKIP], of=2))
def test_a_missing_service_fails_in_ci(tmp_path: Path, source: str) -> None:
    status, output = run_pytest(tmp_path, source, QUORATE_CI="1")
    assert status in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    assert "no database here" in output


@pytest.mark.slow
@pytest.mark.parametrize("marks", in_parts(["pytest.mark.slow", "[pytest.mark.datacenter, pytest.mark.slow]"], of=2))
def test_a_file_of_slow_tests_alone_is_not_imported_by_make_fast(tmp_path: Path, marks: str) -> None:
    heavy = f"import pytest\n\npytestmark = {marks}\nprint('it is imported')\n\ndef test_heavy(): pass\n"
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_heavy.py").write_text(heavy)
    status, output = run_pytest(tmp_path, SLOW_FIRST_AND_SOAK, "-s", "-m", "not slow and not service")
    assert (status, "1 passed" in output, "it is imported" in output) == (pytest.ExitCode.OK, True, False), output
    status, output = run_pytest(tmp_path, SLOW_FIRST_AND_SOAK, "-s", "-m", "not service")
    assert (status, "3 passed" in output, "it is imported" in output) == (pytest.ExitCode.OK, True, True), output


@pytest.mark.slow
def test_an_ordinary_skip_is_one_in_ci_too(tmp_path: Path) -> None:
    status, output = run_pytest(tmp_path, SERVICE_TEST.replace("@pytest.mark.service", ""), QUORATE_CI="1")
    assert status == pytest.ExitCode.OK
    assert "1 skipped" in output


@pytest.mark.slow
def test_slow_tests_run_last_and_soak_tests_on_demand(tmp_path: Path) -> None:
    status, output = run_pytest(tmp_path, SLOW_FIRST_AND_SOAK, "-v")
    assert status == pytest.ExitCode.OK
    assert output.index("test_quick PASSED") < output.index("test_slow PASSED")
    assert "test_soak" not in output
    status, output = run_pytest(tmp_path, SLOW_FIRST_AND_SOAK, "-v", "-m", "soak")
    assert "test_soak PASSED" in output
    assert "test_quick" not in output


@pytest.mark.slow
def test_where_processes_share_the_files_those_with_slow_tests_come_first(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_first.py").write_text("def test_first(): pass\n")
    shared = ("-n", "1", "--dist", "loadfile", "--no-loadscope-reorder")
    _, said = run_pytest(tmp_path, SLOW_FIRST_AND_SOAK, "-v", *shared)
    ran = re.findall(r"PASSED tests/\S+::(\w+)", said)
    assert ran == ["test_quick", "test_slow", "test_first"]


BOUNDED = """
import time
from hypothesis import given, strategies as st

ran = []

@given(st.integers())
def test_property(number):
    ran.append(number)
    time.sleep(0.01)

def test_it_was_bounded():
    assert 0 < len(ran) < 400
"""


@pytest.mark.slow
def test_a_property_is_searched_for_the_time_of_a_soak_at_most(tmp_path: Path) -> None:
    """5,000 examples of a slow property took hours, whatever the time was."""
    status, said = run_pytest(tmp_path, BOUNDED, HYPOTHESIS_PROFILE="soak", SOAK_SECONDS="1")
    assert status == pytest.ExitCode.OK, said


LEAVING = """
import os, subprocess, sys, tempfile

def test_leaving():
    killed = "import os, tempfile; tempfile.mkdtemp(prefix='left-'); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", killed]).returncode == -9
    assert os.path.exists(tempfile.mkdtemp(prefix="left-"))
"""


@pytest.mark.slow
def test_temporary_folders_of_killed_processes_lie_below_those_of_the_tests(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    kept = ("-o", "tmp_path_retention_policy=all")  # else they are gone after a test that passes
    status, said = run_pytest(tmp_path, LEAVING, *kept, TMPDIR=str(tmp_path / "temporary"))
    assert status == pytest.ExitCode.OK, said
    assert len(list((tmp_path / "temporary").rglob("left-*"))) == 2
    assert not [one for one in (tmp_path / "temporary").iterdir() if not one.name.startswith("pytest-of-")]


def would_run(*arguments: str) -> str:
    """Return the commands that make would run, running none."""
    done = subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


@pytest.mark.parametrize(
    ("only", "narrowed"),
    [
        ("tests/imports", "-m pytest tests/imports"),
        (
            "tests/imports/test_engine_calls.py::test_such_calls_are_seen",
            "test_engine_calls.py::test_such_calls_are_seen",
        ),
        ("slow", '-m pytest -m "slow"'),
        ("not slow and not service", '-m pytest -m "not slow and not service"'),
    ],
)
def test_only_is_a_path_or_a_marker(only: str, narrowed: str) -> None:
    assert narrowed in would_run("test", f"ONLY={only}")


def test_help_lists_every_target() -> None:
    output = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    for target in ("install", "demo", "test", "check", "bench", "soak", "help"):
        assert f"make {target} " in output


@pytest.mark.parametrize("candidate", ["/nonexistent/python", "false"])
def test_a_missing_python_is_one_plain_sentence(candidate: str) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "find_python.sh"],
        env=os.environ | {"PYTHON": candidate},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert candidate in done.stderr


def test_an_installed_project_is_left_alone() -> None:
    """A stamp that matches the inputs ends `scripts/install.py` before it touches anything but the stamp."""
    stamp = ROOT / ".venv" / ".installed"
    assert stamp.exists(), "run `make install` first"
    before = {path.name: path.stat().st_mtime_ns for path in (ROOT / ".venv").iterdir() if path != stamp}
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "install.py"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == ""
    assert {path.name: path.stat().st_mtime_ns for path in (ROOT / ".venv").iterdir() if path != stamp} == before


def test_the_lock_pins_everything_but_torch() -> None:
    lines = (ROOT / "requirements" / "lock.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert all("==" in line for line in pins)
    names = {line.split("==")[0] for line in pins}
    assert {"flwr", "ray", "fastapi", "numpy"} <= names
    assert not {name for name in names if name == "torch" or name.startswith(("nvidia-", "cuda-", "triton"))}
    assert not [line for line in lines if "://" in line], "a lock names no registry"
