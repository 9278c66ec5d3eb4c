"""Reading a Flower app: its layouts, its digest, its run-config, its components; each fault in one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from client_sdk.flower import work
from client_sdk.flower.app import AppError, load_client_app, load_server_app, read_app
from tests.flower.folders import LAYOUTS, write_app

CONFIG = {"lr": 0.1, "epochs": 2, "name": "x", "fast": True, "deep.er": 1}


@pytest.fixture(autouse=True)
def own_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test imports its own app: what it has put into sys.path and sys.modules goes with it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("tiny", "twin"):
            del sys.modules[name]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_app_is_read_in_each_layout(tmp_path: Path, layout: str) -> None:
    app = read_app(write_app(tmp_path / "app", config=CONFIG, layout=layout))
    assert (app.app.name, app.app.version) == ("tests/tiny", "1.2.0")
    assert app.run_config() == CONFIG
    assert isinstance(load_server_app(app), ServerApp)
    assert isinstance(load_client_app(app.folder, app.clientapp), ClientApp)


def test_digest_is_that_of_the_files_that_flower_packs(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "one")
    first = read_app(folder).app.digest
    assert read_app(write_app(tmp_path / "two")).app.digest == first, "the folder's name does not count"
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    (folder / "data.csv").write_text("1,2\n")
    (folder / "tiny" / "__pycache__").mkdir()
    (folder / "tiny" / "__pycache__" / "x.py").write_text("1")
    (folder / "pyproject.toml").write_text("# a comment\n" + (folder / "pyproject.toml").read_text())
    assert read_app(folder).app.digest == first, "times, comments and files that are not packed do not count"
    (folder / "tiny" / "model.py").write_text("SIZE = 3\n")
    changed = read_app(folder).app.digest
    assert changed != first
    (folder / "tiny" / "model.py").rename(folder / "tiny" / "models.py")
    assert read_app(folder).app.digest not in (first, changed)


def test_digest_stays_when_flower_moves_the_federations_out(tmp_path: Path) -> None:
    old, new = write_app(tmp_path / "old", layout="federations"), write_app(tmp_path / "new", layout="no format")
    assert read_app(old).app.digest == read_app(new).app.digest


def test_overrides_are_typed_as_toml(tmp_path: Path) -> None:
    app = read_app(write_app(tmp_path / "app", config=CONFIG))
    given = app.run_config(["lr=1 name='a b'", "fast=false", "epochs=3.5"])
    assert given == {"lr": 1, "epochs": 3.5, "name": "a b", "fast": False, "deep.er": 1}
    assert (type(given["lr"]), type(given["fast"])) == (int, bool)
    (tmp_path / "over.toml").write_text("lr = 2.0\n[deep]\ner = 5\n")
    assert app.run_config([str(tmp_path / "over.toml")]) == {**CONFIG, "lr": 2.0, "deep.er": 5}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["rate=1"], r"no key 'rate' \(it has deep\.er, epochs, fast, lr, name\): correct the name, or add"),
        (["lr=0.1 epochs"], r"'epochs' is not understood; write key=value pairs"),
        (["lr=abc"], r"^--run-config: .*'key1=123 key2=false"),
        (["missing.toml"], r"no file missing\.toml"),
        (["lr=nan"], r"lr is nan, which cannot travel"),
    ],
)
def test_wrong_override_is_one_sentence(tmp_path: Path, overrides: list[str], says: str) -> None:
    app = read_app(write_app(tmp_path / "app", config=CONFIG))
    with pytest.raises(AppError, match=says) as raised:
        app.run_config(overrides)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[project]", "[project", r"cannot be read as TOML"),
        ('publisher = "tests"', "", r'not that of a Flower app: Property "publisher" missing'),
        ('clientapp = "tiny.client_app:app"', "", r'Property "clientapp" missing'),
        ('serverapp = "tiny.server_app:app"', 'agentapp = "a:b"', r"has no serverapp, and Quorate runs apps that"),
        ('version = "1.2.0"', "", r'"version" missing in \[project\]'),
        ("fab-format-version = 1", "fab-format-version = 9", r"Unsupported .*fab-format-version: 9"),
        ("fab-format-version = 1", 'fab-include = ["*.none"]\nfab-format-version = 1', r"flwr would not pack the app"),
        ('[tool.flwr.app.components]\nserverapp = "tiny.server_app:app"\nclientapp = "tiny.client_app:app"',
         "[tool.flwr.app.components]\nserverapp = 3\nclientapp = 4", r"flwr cannot read it"),
        ('clientapp = "tiny.client_app:app"', 'clientapp = "tiny.client_app"', r"Missing attribute in tiny\.client"),
    ],
)  # fmt: skip
def test_faulty_pyproject_is_one_sentence(tmp_path: Path, old: str, new: str, says: str) -> None:
    project = write_app(tmp_path / "app") / "pyproject.toml"
    assert old in project.read_text()
    project.write_text(project.read_text().replace(old, new))
    with pytest.raises(AppError, match=says) as raised:
        read_app(project.parent)
    assert "\n" not in str(raised.value)


def test_folder_without_an_app_and_sections_of_old_versions(tmp_path: Path) -> None:
    with pytest.raises(AppError, match=r"no pyproject\.toml in .*: name the folder of a Flower app"):
        read_app(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "a"\n[flower.components]\nserverapp = "a:b"\n')
    with pytest.raises(AppError, match=r"rename them to \[tool\.flwr\.app\]"):
        read_app(tmp_path)


@pytest.mark.parametrize(
    ("client", "says"),
    [
        ("import nowhere_to_be_found", r"cannot be imported \(ModuleNotFoundError: .*\): install what the app needs"),
        ("raise RuntimeError('no weights')", r"cannot be imported \(RuntimeError: no weights\)\.$"),
        ("other = 1", r"\(tiny\.client_app:app, of .*\) does not exist: correct"),
        ("app = 3", r"is a int: name a ClientApp"),
    ],
)
def test_component_that_cannot_be_loaded_is_one_sentence(tmp_path: Path, client: str, says: str) -> None:
    app = read_app(write_app(tmp_path / "app", client=client))
    with pytest.raises(AppError, match=says):
        load_client_app(app.folder, app.clientapp)


def test_other_version_of_flwr_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    work.require_flwr()
    monkeypatch.setattr(work, "version", lambda _: "1.43.0")
    with pytest.raises(
        work.WrongFlower, match=r"^flwr 1\.43\.0 is installed, and Quorate works with flwr 1\.41 or 1\.42"
    ):
        work.require_flwr()

    def absent(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(work, "version", absent)
    with pytest.raises(work.WrongFlower, match=r"not installed: pip install 'quorate\[flower\]'$"):
        work.require_flwr()
