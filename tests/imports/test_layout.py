"""The packages stay easy to read: few modules at their roots, and no two modules that import each other."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("quorate", "client_sdk", "coordinator", "simulation", "dashboards")
MOST_AT_A_ROOT = 10


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def circle(*packages: str) -> list[str]:
    """Return the modules of a circle of imports, those for type checkers included; none where there is no circle."""
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}
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


def test_every_public_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for path in sources():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}, "readers would confuse them"


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle(*PACKAGES) == [], "what both need belongs below them"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "circles").mkdir()
    (tmp_path / "circles" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "circles"
    sys.modules.pop("circles", None)


@pytest.mark.parametrize(
    "statement",
    [
        "from circles import one",
        "def f():\n    import circles.one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circles.one import One",
    ],
    ids=["at the top", "in a function", "for types"],
)
def test_a_circle_is_seen(package: Path, statement: str) -> None:
    (package / "one.py").write_text("import circles.two\n")
    (package / "two.py").write_text("import circles.three\n")
    (package / "three.py").write_text(statement + "\n")
    found = circle("circles")
    assert found[0] == found[-1]
    assert set(found) == {"circles.one", "circles.two", "circles.three"}


def test_modules_above_each_other_are_no_circle(package: Path) -> None:
    (package / "one.py").write_text("import circles.two\nimport circles.three\n")
    (package / "two.py").write_text("import circles.three\n")
    (package / "three.py").write_text("import time\n")
    assert circle("circles") == []
