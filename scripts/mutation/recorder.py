"""A pytest plugin that records which functions of the product each test calls, how long it took, and whether it passed.

::

    python -m pytest -p scripts.mutation.recorder --calls calls.json tests/coordinator/engine

Calls in other threads count, calls in other processes do not. What a fixture of a module or a session calls counts for
each test that asks for the fixture. The names are ``coordinator/engine/plan.py Plan.digest``, as Python's
``co_qualname`` has them, so that they survive changes of line numbers.

A mutation is held against the tests that call its function, for at most half a minute, cheap ones and those of its
room first. Names of functions survive changes of lines, where contexts of coverage.py need all tests run again after
each. A test that runs the product in another process is found through its room's folder only, and a mutation that
survives may be noticed by a slow test.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Generator, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("client_sdk", "coordinator", "simulation", "quorate")
EXAMPLES = 5
"""Of each property, while calls are recorded. The profile "ci" of tests/conftest.py has 100."""

settings.register_profile("calls", max_examples=EXAMPLES, derandomize=True, deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--calls", default=None, help="the file to write: who calls what, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--calls")
    if path is not None:
        config.pluginmanager.register(Recorder(Path(path)), "mutation-recorder")


class Recorder:
    """Fills one dict of code objects for the test that runs; their identity is the key, as their hash is slow."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.current: dict[int, CodeType] = {}
        self.by_fixture: dict[int, dict[int, CodeType]] = {}
        self.tests: dict[str, dict[str, Any]] = {}

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> None:
        code = frame.f_code
        self.current[id(code)] = code

    def pytest_sessionstart(self) -> None:
        threading.settrace(self._trace)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Function) -> Generator[None, object, object]:
        self.current = {}
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            test = self._test(item)
            test["calls"] |= _names(self.current.values())
            for definitions in item._fixtureinfo.name2fixturedefs.values():
                for definition in definitions:
                    test["calls"] |= _names(self.by_fixture.get(id(definition), {}).values())

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        around, self.current = self.current, {}
        try:
            return (yield)
        finally:
            self.by_fixture[id(fixturedef)] = self.current
            self.current = around | self.current

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        test = self._test(item)
        test["seconds"] += report.duration * (100 / EXAMPLES if item.get_closest_marker("property") else 1)
        test["passed"] &= not report.failed
        return report

    def pytest_sessionfinish(self) -> None:
        written = {name: {**test, "calls": sorted(test["calls"])} for name, test in self.tests.items()}
        self.path.write_text(json.dumps(written), "utf-8")

    def _test(self, item: pytest.Item) -> dict[str, Any]:
        """The entry of a test function: all its parameters together."""
        name = item.nodeid.partition("[")[0]
        return self.tests.setdefault(name, {"seconds": 0.0, "passed": True, "calls": set()})


def _names(codes: Iterable[CodeType]) -> set[str]:
    found = set()
    for code in codes:
        path = Path(code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGES:
            found.add(f"{path.relative_to(ROOT).as_posix()} {code.co_qualname}")
    return found
