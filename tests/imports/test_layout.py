"""The packages stay easy to read: few modules at their roots, and no two modules that import each other when they run.

Type checkers may go in a circle inside a room (`coordinator.runtime`), but not between rooms.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("quorate", "client_sdk", "coordinator", "simulation", "dashboards")
MOST_AT_A_ROOT = 10


def room(module: str) -> list[str]:
    return module.split(".")[:2]


def circle(*packages: str) -> list[str]:
    """Return the modules of a circle of imports, or none. Imports for type checkers inside a room do not count."""
    with_types = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    running = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    imports = {
        module: running.find_modules_directly_imported_by(module)
        | {other for other in with_types.find_modules_directly_imported_by(module) if room(other) != room(module)}
        for module in sorted(running.modules)
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


@pytest.mark.parametrize("package", ["client_sdk", "coordinator", "simulation"])
def test_root_of_a_package_holds_few_modules(package: str) -> None:
    modules = sorted(path.name for path in (ROOT / package).glob("*.py"))
    assert "__init__.py" in modules
    assert len(modules) <= MOST_AT_A_ROOT, f"a new module has a room: {modules}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle(*PACKAGES) == [], "what both need belongs below them"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for folder in ("circles", "circles/here", "circles/there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "circles"
    sys.modules.pop("circles", None)


AT_THE_TOP = "import {}"
IN_A_FUNCTION = "def f():\n    import {}"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {}"


@pytest.mark.parametrize(
    ("last", "statement"),
    [
        ("circles.here.three", AT_THE_TOP),
        ("circles.here.three", IN_A_FUNCTION),
        ("circles.there.three", AT_THE_TOP),
        ("circles.there.three", FOR_TYPES),
    ],
)
def test_a_circle_is_seen(package: Path, last: str, statement: str) -> None:
    (package / "here" / "one.py").write_text("import circles.here.two\n")
    (package / "here" / "two.py").write_text(f"import {last}\n")
    package.parent.joinpath(*last.split(".")).with_suffix(".py").write_text(statement.format("circles.here.one") + "\n")
    found = circle("circles")
    assert found[0] == found[-1]
    assert set(found) == {"circles.here.one", "circles.here.two", last}


def test_a_circle_of_types_in_a_room_is_fine(package: Path) -> None:
    (package / "here" / "one.py").write_text("import circles.here.two\n")
    (package / "here" / "two.py").write_text(FOR_TYPES.format("circles.here.one") + "\n")
    assert circle("circles") == []


def test_modules_above_each_other_are_no_circle(package: Path) -> None:
    (package / "one.py").write_text("import circles.two\nimport circles.three\n")
    (package / "two.py").write_text("import circles.three\n")
    (package / "three.py").write_text("import time\n")
    assert circle("circles") == []
