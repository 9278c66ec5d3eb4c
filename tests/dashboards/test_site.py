"""What the page's server answers: the policy on everything, digests kept forever, the page asked for each time."""

from __future__ import annotations

import asyncio
import gzip
import re
import tomllib
from collections.abc import Coroutine
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
import structlog
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount

from coordinator.service import app as service_app
from coordinator.service import create_app
from coordinator.settings import Settings
from dashboards import site
from dashboards.site import BUILT, POLICY, Asset, Site, page, read
from tests.coordinator.world import World

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")
SCRIPT = b"console.log(1);" * 200


def run(asked: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asked)


@pytest.fixture
def http(tmp_path: Path) -> httpx2.AsyncClient:
    """A client of a site with three files, mounted as a coordinator mounts it."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>Quorate</title>")
    (tmp_path / "icon.svg").write_text("<svg/>")
    (tmp_path / "assets" / "index-abc.js").write_bytes(SCRIPT)
    app = Starlette(routes=[Mount("/dashboard", Site(read(tmp_path)))])
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost")


async def ask(http: httpx2.AsyncClient, path: str, method: str = "GET", **headers: str) -> httpx2.Response:
    return await http.request(method, f"/dashboard{path}", headers=headers)


@pytest.mark.parametrize("path", ["/", "/icon.svg", "/assets/index-abc.js", "/absent"])
def test_everything_has_the_policy_and_sends_no_referrer(http: httpx2.AsyncClient, path: str) -> None:
    answer = run(ask(http, path))
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_policy_is_the_one_that_was_promised() -> None:
    said = dict(part.strip().split(" ", 1) for part in POLICY.split(";"))
    assert said == {
        "default-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "object-src": "'none'",
        "frame-ancestors": "'none'",
        "form-action": "'self'",
    }


def test_files_with_a_digest_are_kept_and_the_page_is_not(http: httpx2.AsyncClient) -> None:
    assert "immutable" in run(ask(http, "/assets/index-abc.js")).headers["cache-control"]
    assert run(ask(http, "/")).headers["cache-control"] == "no-store"
    assert run(ask(http, "/icon.svg")).headers["cache-control"] == "no-store"


def test_a_file_is_compressed_for_who_takes_it(http: httpx2.AsyncClient) -> None:
    plain = run(ask(http, "/assets/index-abc.js", **{"Accept-Encoding": "identity"}))
    assert plain.content == SCRIPT
    assert "content-encoding" not in plain.headers
    small = run(ask(http, "/assets/index-abc.js", **{"Accept-Encoding": "gzip, br"}))
    assert small.headers["content-encoding"] == "gzip"
    assert small.content == SCRIPT
    assert int(small.headers["content-length"]) < len(SCRIPT) / 10
    found = Asset("assets/index-abc.js", SCRIPT).compressed
    assert found is not None
    assert gzip.decompress(found) == SCRIPT


def test_types_are_those_of_the_files(http: httpx2.AsyncClient) -> None:
    kinds = [run(ask(http, path)).headers["content-type"] for path in ("/", "/icon.svg", "/assets/index-abc.js")]
    assert [kind.split(";")[0] for kind in kinds] == ["text/html", "image/svg+xml", "text/javascript"]


def test_only_what_is_there_is_answered(http: httpx2.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    assert run(ask(http, "/secret")).status_code == 404, "it came after the files were read"
    assert run(ask(http, "/..%2f..%2fetc%2fpasswd")).status_code == 404
    assert run(ask(http, "/", "POST")).status_code == 405
    head = run(ask(http, "/", "HEAD"))
    assert (head.status_code, head.content) == (200, b"")


def test_a_folder_without_a_page_has_none(tmp_path: Path) -> None:
    assert read(tmp_path) == {}


@pytest.mark.service
def test_the_built_page_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    if page() is None:
        pytest.skip("the dashboard is not built: make install")
    html = (BUILT / "index.html").read_text()
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=|javascript:|data:", html)
    addresses = re.findall(r"(?:src|href)=\"([^\"]*)\"", html)
    assert addresses
    assert all(address.startswith("./") for address in addresses), "it works below any path"
    total = sum(len(gzip.compress(path.read_bytes())) for path in BUILT.rglob("*") if path.suffix in (".js", ".css"))
    assert total <= 400_000, "the page is at most 400 kB, compressed"


@pytest.mark.parametrize("name", ["v1", "docs", "healthz", "openapi.json"])
def test_a_page_hides_no_route_of_the_coordinator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [EntryPoint(name, "dashboards.site:page", "quorate.pages")]
    monkeypatch.setattr(service_app, "entry_points", lambda **_: entries)
    monkeypatch.setattr(site, "page", lambda: Response("a page"))
    with structlog.testing.capture_logs() as logged:
        app = create_app(World(0).coordinator, Settings())
    (said,) = [entry for entry in logged if entry.get("page") == name]
    assert "give this page another name" in str(said["exc_info"])
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost")
    for path in ("/v1/login", "/docs", "/healthz", "/openapi.json"):
        assert run(http.get(path)).text != "a page"
    assert run(http.get("/")).headers["location"] == "/docs"


@pytest.mark.parametrize("built", [True, False])
def test_a_coordinator_sends_a_browser_to_the_page_where_there_is_one(
    built: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if built:
        (tmp_path / "index.html").write_text("<!doctype html>")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["quorate.pages"]
    entries = [EntryPoint(name, value, "quorate.pages") for name, value in declared.items()]
    monkeypatch.setattr(site, "BUILT", tmp_path)
    monkeypatch.setattr(service_app, "entry_points", lambda **_: entries)
    app = create_app(World(0).coordinator, Settings())
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost")
    assert run(http.get("/")).headers["location"] == ("/dashboard/" if built else "/docs")
    assert run(http.get("/dashboard")).status_code == (307 if built else 404)
    answer = run(http.get("/dashboard", follow_redirects=True))
    assert (answer.status_code, answer.url.path) == ((200, "/dashboard/") if built else (404, "/dashboard"))
    answer = run(http.get("/dashboard/"))
    assert answer.status_code == (200 if built else 404)
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
