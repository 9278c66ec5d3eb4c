"""Each private name of flwr that this project uses, by what it does: a new flwr that changes one fails here."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict

from client_sdk.flower import flwr_private
from tests.flower.folders import write_app

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
PRODUCT = ("quorate", "client_sdk", "coordinator", "simulation", "dashboards")


def test_received_message_has_the_metadata_of_the_other_side() -> None:
    metadata = Metadata(7, "m", 1, 2, "r", "3", 10.0, 60.0, "train.fast")
    message = flwr_private.received_message(RecordDict({"c": ConfigRecord({"x": 1})}), metadata)
    assert message.metadata is metadata
    assert message.content["c"]["x"] == 1
    assert flwr_private.received_message(Error(2, "why"), metadata).error.reason == "why"


def test_messages_of_this_process_come_from_the_server_app() -> None:
    flwr_private.create_messages_as(flwr_private.SERVER_NODE, 99)
    message = Message(RecordDict(), 5, "query")
    flwr_private.set_message_id(message, "a" * 64)
    assert message.metadata.message_id == "a" * 64
    assert (message.metadata.run_id, message.metadata.src_node_id) == (99, flwr_private.SERVER_NODE)


def test_run_and_node() -> None:
    run = flwr_private.run_of(12, "tests/tiny", "1.2.0", "a" * 64, {"lr": 0.1})
    assert (run.run_id, run.fab_id, run.fab_version, run.fab_hash) == (12, "tests/tiny", "1.2.0", "a" * 64)
    assert run.override_config == {"lr": 0.1}
    assert flwr_private.node_info(34).node_id == 34


def test_configuration() -> None:
    assert flwr_private.flat_config({"a": {"b": 1}, "c": "x"}) == {"a.b": 1, "c": "x"}
    assert flwr_private.parse_overrides(["a.b=2 c='y'"]) == {"a.b": 2, "c": "y"}
    assert flwr_private.problems_of_config({}) == ["Missing [project] section", "Missing [tool.flwr.app] section"]
    with pytest.raises(ValueError, match="invalid format"):
        flwr_private.parse_overrides(["a=b"])


def test_packed_files_and_components(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app")
    assert [path for path, _ in flwr_private.packed_files(folder, {})] == [
        "LICENSE",
        "tiny/__init__.py",
        "tiny/client_app.py",
        "tiny/server_app.py",
    ]
    (tmp_path / "loose.py").write_text("thing = 5\n")
    before = list(sys.path)
    assert flwr_private.load_component("loose:thing", tmp_path, KeyError) == 5
    with pytest.raises(KeyError):
        flwr_private.load_component("loose:other", tmp_path, KeyError)
    sys.path[:] = before


def imported(path: Path) -> set[str]:
    """Return the modules of flwr that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.ImportFrom(module=str(module), level=0):
                names.add(module)
            case ast.Import(names=aliases):
                names |= {alias.name for alias in aliases}
    return {name for name in names if name.partition(".")[0] == "flwr"}


def test_only_flower_folders_import_flwr_and_one_file_its_private_names() -> None:
    uses = {path.relative_to(ROOT): imported(path) for package in PRODUCT for path in (ROOT / package).rglob("*.py")}
    outside = [str(path) for path, names in uses.items() if names and path.parts[1] != "flower"]
    assert outside == []
    private = {
        str(path): left
        for path, names in uses.items()
        if (left := {name for name in names - PUBLIC if not name.startswith("flwr.serverapp.strategy")})
    }
    assert set(private) == {"client_sdk/flower/flwr_private.py"}, private


TELEMETRY = """
import socket, sys
{first}
tried = []
def connect(self, address):
    tried.append(address)
    raise OSError("no network")
def look_up(*args, **kwargs):
    tried.append(args)
    raise OSError("no network")
socket.socket.connect = socket.socket.connect_ex = connect
socket.getaddrinfo = look_up
import flwr
from flwr.supercore.telemetry import EventType, event
event(EventType.PYTHON_API_RUN_SIMULATION_ENTER).result(timeout=30)
print(len(tried))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "tries"), [("import client_sdk.flower", False), ("pass", True)], ids=["quorate", "flwr alone"]
)
def test_no_telemetry_leaves(first: str, tries: bool, tmp_path: Path) -> None:
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "1", "FLWR_HOME": str(tmp_path)}
    code = TELEMETRY.format(first=first)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    assert (int(done.stdout.split()[-1]) > 0) is tries, done
