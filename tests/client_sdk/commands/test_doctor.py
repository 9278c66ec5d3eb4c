"""``quorate doctor``: each of its checks, where it is fine and where it is not."""

from __future__ import annotations

import json
import socket
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from client_sdk.commands import doctor
from client_sdk.imports import extras
from client_sdk.tensors import compiled
from tests.client_sdk.commands.run_cli import quorate
from tests.coordinator.service.conftest import Server

ASKED = [
    "numpy>=2.0",
    'fast>=0.138; extra == "web"',
    'flwr<1.43,>=1.41; extra == "flower"',
    'quorate[web]; extra == "all"',
    'pytest; extra == "dev"',
]


@pytest.fixture(autouse=True)
def fine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which nothing is wrong."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    script = tmp_path / "bin" / "quorate"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("QUORATE_PORT", "0")
    monkeypatch.chdir(tmp_path)


def have(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Exactly these distributions are installed beside a package that asks for ``ASKED``."""

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(extras, "version", version)
    monkeypatch.setattr(extras, "_requirements", lambda: extras._parsed(ASKED))


def found(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    assert quorate("doctor", "--json", *arguments) == code
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(row["next"] and row["kind"] == "check" for row in rows)
    return {row["check"]: row for row in rows}


def test_each_thing_has_its_line_and_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("doctor") == 0
    lines = capsys.readouterr().out.splitlines()
    checks = {line[9:27].strip() for line in lines[::2]}
    assert {"Python", "PATH", "quorate", "extra torch", "extra flower", "port", "data", "data folder", "disk"} <= checks
    assert all(line.strip().startswith("-> ") for line in lines[1::2])


def test_it_says_what_adds_updates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for loops, state in ((object(), "ok"), (None, "missing")):
        monkeypatch.setattr(compiled, "loops", loops)
        row = found(capsys)["exact sum"]
        assert row["state"] == state
        assert ("NumPy" in row["found"]) == (loops is None)


def test_a_python_without_an_environment_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for prefix, command in (("/env", "quorate --help"), (sys.base_prefix, "python3 -m venv .venv")):
        monkeypatch.setattr(sys, "prefix", prefix)
        row = found(capsys)["Python"]
        assert (row["state"], row["next"]) == ("ok", command)
        assert ("no environment of its own" in row["found"]) == (prefix == sys.base_prefix)


def test_extras_are_missing_whole_or_in_another_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    have(monkeypatch, quorate="0.2.0.dev0", numpy="2.4.1", flwr="1.43.0")
    rows = found(capsys)
    assert (rows["extra web"]["found"], rows["extra web"]["state"]) == ("fast is not installed", "missing")
    assert rows["extra all"]["found"] == "fast is not installed"
    assert rows["extra flower"]["found"] == "flwr 1.43.0 is installed, and <1.43 is needed"
    assert rows["extra flower"]["next"] == "pip install 'quorate[flower]'"
    assert "extra dev" not in rows
    have(monkeypatch, quorate="0.2.0.dev0", numpy="2", flwr="1.42.7", fast="0.138.0+local")
    rows = found(capsys)
    assert {rows[f"extra {name}"]["state"] for name in ("web", "all", "flower")} == {"ok"}


def test_a_requirement_of_the_device_itself_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    have(monkeypatch, quorate="0.2.0.dev0", numpy="1.26")
    assert found(capsys, code=1)["quorate"]["found"] == "numpy 1.26 is installed, and >=2.0 is needed"


def test_it_says_where_quorate_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (row := found(capsys)["PATH"]).pop("kind")
    assert (row["state"], row["next"]) == ("missing", f'export PATH="{Path(sys.executable).parent}:$PATH"')
    other = Path("other")
    other.mkdir()
    (other / "quorate").write_text("#!/bin/sh\n")
    (other / "quorate").chmod(0o755)
    monkeypatch.setenv("PATH", str(other.resolve()))
    assert found(capsys, code=1)["PATH"]["found"] == f"the PATH has another quorate: {other.resolve() / 'quorate'}"
    (other / "quorate").unlink()
    (other / "quorate").symlink_to(Path(sys.executable).parent / "quorate")
    assert found(capsys)["PATH"]["state"] == "ok"


@contextmanager
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(5)
        port = other.getsockname()[1]
        monkeypatch.setenv("QUORATE_PORT", str(port))
        yield port


def test_a_port_that_something_else_has_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_answers", lambda port: False)
    with taken(monkeypatch) as port:
        row = found(capsys, code=1)["port"]
    assert row["found"].startswith(f"{port} cannot be had (")
    assert row["next"] == "quorate serve --dev-authority --port 0"


@pytest.mark.slow
def test_a_coordinator_on_the_port_is_fine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.undo()  # the server needs the real Python
    server = Server.start(tmp_path / "coordinator")
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        monkeypatch.setenv("QUORATE_PORT", server.url.rpartition(":")[2])
        row = found(capsys)["port"]
    finally:
        server.stop()
    assert (row["state"], row["next"]) == ("ok", f"quorate status --url {server.url}")


def test_data_is_loaded_where_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.csv").write_text("a,b,split,y\n1,2,train,0\n3,4,train,1\n5,6,test,1\n")
    row = found(capsys, "--data", "mine.csv", "--target", "y")["data"]
    assert row["found"] == "mine.csv: 2 examples of 2 (float32), targets int64, 1 held out"
    assert row["next"] == "quorate device --data mine.csv --target y"
    row = found(capsys, "--data", "gone.csv", "--target", "y", code=1)["data"]
    assert (row["state"], row["found"]) == ("wrong", "There is no file gone.csv.")


def test_the_data_folder_is_made_read_or_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found(capsys)["data folder"]["found"] == "quorate-data is not there yet"
    Path("quorate-data").mkdir()
    assert found(capsys)["data folder"]["next"] == "quorate verify quorate-data"
    Path("taken").write_text("")
    monkeypatch.setenv("QUORATE_DATA", "taken")
    assert found(capsys, code=1)["data folder"]["found"] == "taken is no folder that you can write to"


def test_a_full_disk_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(10**10, 10**10, 3 * 10**8))
    assert found(capsys, code=1)["disk"]["found"].endswith(": 0.3 GB are free")


def test_a_data_folder_that_is_a_program_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("QUORATE_DATA", str(tmp_path / "bin" / "quorate"))
    assert found(capsys, code=1)["data folder"]["found"].endswith("is no folder that you can write to")


def test_data_that_lacks_a_package_and_what_is_offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load_data(source: object) -> None:
        raise ModuleNotFoundError("No module named 'pooch'", name="pooch")

    monkeypatch.setattr("client_sdk.data.load_data", load_data)
    assert "pooch" in found(capsys, "--data", "adult", code=1)["data"]["found"]
    monkeypatch.setattr("client_sdk.data.names", lambda: ["adult", "mnist"])
    assert found(capsys)["data"]["next"] == "quorate doctor --data mnist"
    monkeypatch.setattr("client_sdk.data.names", lambda: ["adult"])
    assert found(capsys)["data"]["next"] == "quorate doctor --data adult"


def test_each_folder_that_is_written_to_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def disks(code: int) -> list[tuple[str, str]]:
        assert quorate("doctor", "--json") == code
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [(row["state"], row["found"]) for row in rows if row["check"] == "disk"]

    temporary = tmp_path / "temporary"
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: str(temporary))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: namedtuple("U", "free")(doctor.ROOM_BYTES))
    access = doctor.os.access
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: Path(path) != temporary and access(path, mode))
    assert disks(1) == [("ok", f"{tmp_path}: 1.0 GB are free"), ("wrong", f"{temporary} cannot be written")]
