"""A user's own file that hides a package of ours is named before it runs, by the front door and by the commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from client_sdk.imports import PACKAGES, Shadowed, check
from client_sdk.learners import LearnerError, catalogue_for
from quorate.__main__ import _keep_folder_from_children

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = "open('it-ran', 'w').close()\nraise SystemExit('the file of the user ran')\n"


def python(folder: Path, *arguments: str, path: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder, with this checkout on PYTHONPATH."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**inherited, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def hide(folder: Path, name: str, kind: str) -> Path:
    """Write a module of this name that must not run; return what the user has to rename."""
    if kind == "file":
        (folder / f"{name}.py").write_text(NOT_OURS)
        return folder / f"{name}.py"
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(NOT_OURS)
    return folder / name


def names_it(text: str, place: Path, name: str) -> bool:
    return f"{place} hides quorate's own package {name!r}, because Python finds it first: rename it." in text


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("name", PACKAGES)
def test_front_door_names_what_hides_a_package(tmp_path: Path, name: str, kind: str) -> None:
    place = hide(tmp_path, name, kind)
    done = python(tmp_path, "-c", "import quorate; quorate.simulate")
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert names_it(error, place, name), done.stderr
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [*(("quorate", name) for name in PACKAGES), *(("client_sdk.cli", name) for name in PACKAGES[1:])],
)
def test_commands_name_what_hides_a_package(tmp_path: Path, module: str, name: str) -> None:
    place = hide(tmp_path, name, "file")
    done = python(tmp_path, "-m", module, "device", "--help")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert names_it(done.stderr, place, name)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("name", PACKAGES)
def test_file_on_pythonpath_hides_too(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine").mkdir()
    place = hide(tmp_path / "mine", name, "file")
    path = os.pathsep.join([str(place.parent), str(ROOT)])
    # As a console script runs: the working folder is not on the import path (-P), PYTHONPATH is.
    command = python(tmp_path, "-P", "-c", "from quorate.__main__ import main; main()", path=path)
    assert command.returncode == 1
    assert names_it(command.stderr, place, name)
    door = python(tmp_path, "-P", "-c", "from quorate import simulate", path=path)
    assert names_it(door.stderr, place, name)
    assert not (tmp_path / "it-ran").exists()


def test_script_of_that_name_is_named(tmp_path: Path) -> None:
    """The usual case: a first experiment is saved as simulation.py, and its folder leads the import path."""
    (tmp_path / "simulation.py").write_text("from quorate import simulate\n")
    done = python(tmp_path, "simulation.py")
    assert done.returncode == 1
    assert names_it(done.stderr.splitlines()[-1], tmp_path / "simulation.py", "simulation")


def test_folder_without_init_hides_nothing(tmp_path: Path) -> None:
    """Python takes a package before a folder without __init__.py, wherever the two lie."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.py").write_text(NOT_OURS)
    (tmp_path / "quorate-data").mkdir()
    done = python(tmp_path, "-c", "from quorate import partition, simulate; print(simulate.__module__)")
    assert done.stdout.startswith("simulation."), done.stderr
    assert python(tmp_path, "-m", "quorate", "--version").stdout.startswith("quorate ")


def test_device_is_not_kept_from_its_sdk_by_a_file_that_it_never_meets(tmp_path: Path) -> None:
    """``Client`` and ``Update`` are the SDK's, which imports no other room: an app may have a simulation.py."""
    hide(tmp_path, "simulation", "file")
    done = python(tmp_path, "-c", "from quorate import Client, Update; print(Client.__name__, Update.__name__)")
    assert done.stdout == "Client Update\n", done.stderr


def test_console_script_is_not_disturbed_by_the_folder_it_stands_in(tmp_path: Path) -> None:
    hide(tmp_path, "simulation", "file")
    code = "import os; from quorate.__main__ import main; main(); "
    done = python(tmp_path, "-P", "-c", code, "--version")
    assert done.stdout.startswith("quorate "), done.stderr


@pytest.mark.parametrize(
    ("path", "wanted"),
    [(["/usr/bin"], "1"), (["", "/usr/bin"], None), (["{cwd}"], None)],
    ids=["console script", "-c", "-m"],
)
def test_children_import_from_where_their_parent_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: list[str], wanted: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(sys, "path", [part.format(cwd=tmp_path) for part in path])
    _keep_folder_from_children()
    assert os.environ.get("PYTHONSAFEPATH") == wanted


@pytest.mark.parametrize("path", [[], [""]], ids=["console script", "python -c"])
def test_learner_of_the_folder_does_not_open_the_door_to_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: list[str]
) -> None:
    """``--learner mine:train`` looks into the working folder; what hides a package there is named."""
    hide(tmp_path, "dashboards", "file")
    (tmp_path / "mine.py").write_text(NOT_OURS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*path, *(part for part in sys.path if part)])
    monkeypatch.delitem(sys.modules, "dashboards", raising=False)
    with pytest.raises(LearnerError, match=r"dashboards\.py hides quorate's own package 'dashboards'"):
        catalogue_for(["mine:train"])
    assert not (tmp_path / "it-ran").exists()


def test_a_module_without_a_file_is_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dashboards", ModuleType("dashboards"))
    check()


def test_check_names_the_module_and_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = hide(tmp_path, "dashboards", "file")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "dashboards", raising=False)
    with pytest.raises(Shadowed) as shadowed:
        check(["dashboards"])
    assert (shadowed.value.name, shadowed.value.path) == ("dashboards", str(place))
