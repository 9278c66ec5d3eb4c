"""What the pages name exists: tests, files, modules, and the pages and headings that links lead to."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from scripts import security_tests
from scripts.security_tests import tests_of_promises

ROOT = Path(__file__).resolve().parents[2]
_PLACES = ("*.md", "docs/*.md", "docs/decisions/*.md", "examples/*/*.md")
PAGES = [page for place in _PLACES for page in sorted(ROOT.glob(place))]
PACKAGES = ("quorate", "client_sdk", "coordinator", "simulation", "dashboards", "benchmarks", "tests", "scripts")
_PATH = re.compile(rf"(?<![\w/.-])((?:{'|'.join(PACKAGES)}|docs|deploy|examples|requirements)/[\w./*-]*\w)")
_MODULE = re.compile(rf"`{{1,2}}((?:{'|'.join(PACKAGES[1:4])})(?:\.(?!py`)\w+)+)`")
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")
# Names of data folders in examples of commands, and what is designed and marked so.
NOT_FILES = re.compile(r"dashboards/web")


@cache
def names_of_tests() -> frozenset[str]:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    found = (re.findall(r"^ *(?:async )?def (test_\w+)\(", source, flags=re.MULTILINE) for source in sources)
    return frozenset(name for names in found for name in names)


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchor(heading: str) -> str:
    """The fragment that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def headings(page: Path) -> set[str]:
    outside = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    return {anchor(found) for found in re.findall(r"^#+ (.*)$", outside, flags=re.MULTILINE)}


def lost(of: Callable[[Path], set[str]]) -> dict[str, set[str]]:
    """What the pages name and ``of`` does not find, by page."""
    return {page.name: found for page in PAGES if (found := of(page))}


def test_every_test_that_a_page_names_exists() -> None:
    assert lost(lambda page: set(re.findall(r"`(test_\w+)`", text_of(page))) - names_of_tests()) == {}


def test_each_promise_of_security_has_tests_and_each_entry_of_the_annex_is_a_promise() -> None:
    named = re.findall(r"^- \*\*([A-Z]\d+)\*\* ", text_of(ROOT / "SECURITY.md"), flags=re.MULTILINE)
    assert len(named) == len(set(named)) > 30
    assert set(named) == set(tests_of_promises())
    assert all(tests for tests in tests_of_promises().values())


def test_every_test_of_a_promise_exists() -> None:
    named = {test for tests in tests_of_promises().values() for test in tests}
    assert {name for name in named if name not in names_of_tests() and not (ROOT / name).is_file()} == set()


def test_the_annex_is_as_the_table_gives_it() -> None:
    assert text_of(security_tests.ANNEX) == security_tests.annex()


def test_every_file_that_a_page_names_exists() -> None:
    @cache
    def exists(path: str) -> bool:
        return bool(NOT_FILES.match(path) or list(ROOT.glob(path)) or list(ROOT.glob(f"{path}.*")))

    assert lost(lambda page: {path for path in _PATH.findall(text_of(page)) if not exists(path)}) == {}


def is_there(name: str) -> bool:
    """Whether the dotted name is a module, or a name in the module before it."""
    path = ROOT / name.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    home, _, last = name.rpartition(".")
    sources = [ROOT / home.replace(".", "/") / "__init__.py", (ROOT / home.replace(".", "/")).with_suffix(".py")]
    return any(re.search(rf"\b{last}\b", text_of(source)) for source in sources if source.exists())


def test_every_module_that_a_page_names_exists() -> None:
    assert lost(lambda page: {name for name in _MODULE.findall(text_of(page)) if not is_there(name)}) == {}


@pytest.mark.parametrize("package", PACKAGES[:7])
def test_every_module_that_a_docstring_names_exists(package: str) -> None:
    sources = sorted((ROOT / package).rglob("*.py"))
    gone = {(path.name, name) for path in sources for name in _MODULE.findall(text_of(path)) if not is_there(name)}
    assert gone - {("test_pages.py", "client_sdk.policy")} == set()


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, fragment = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and not (fragment and target.suffix == ".md" and fragment not in headings(target))


def test_every_link_leads_somewhere() -> None:
    assert lost(lambda page: {link for link in _LINK.findall(text_of(page)) if not leads_somewhere(page, link)}) == {}


def test_what_is_lost_is_seen() -> None:
    assert anchor("One engine, three drivers") == "one-engine-three-drivers"
    assert _PATH.findall("see `client_sdk/gone.py`, and docs/plan.md.") == ["client_sdk/gone.py", "docs/plan.md"]
    assert _MODULE.findall("`client_sdk.policy` and ``coordinator.engine``") == [
        "client_sdk.policy",
        "coordinator.engine",
    ]
    assert _LINK.findall("[a](b.md#c) [d](https://e)") == ["b.md#c"]
