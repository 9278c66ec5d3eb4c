"""Which tests call which function of the product: recorded once for each file of tests, and again when it changes.

The records lie in ``.mutate/calls``, one for each text of a file of tests. A change of the product leaves them as they
are: they name functions, not lines. A change that moves calls elsewhere makes the choice of tests worse until the
folder ``.mutate`` is deleted, never the verdict on a mutation that tests notice.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAST = "not slow and not service and not soak"
FOLDERS = ("client_sdk", "coordinator", "simulation", "equivalence", "imports")
"""The folders of tests/ that test the product; the others test pages, packages and deployment."""
PAGES = ("packaging/test_plan_page.py",)
"""Files of tests that hold a page against fields and their limits: these are read, not called."""

_Tests = dict[str, dict[str, Any]]
"""Name of a test function -> what was recorded of it."""


@dataclass(frozen=True, slots=True)
class RecordedTest:
    """A test function, with the sum over its parameters of what it costs."""

    name: str
    """The name that pytest takes: ``tests/coordinator/test_blobs.py::test_a_blob``."""
    seconds: float
    calls: frozenset[str]
    """``coordinator/engine/plan.py Plan.digest``."""

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


def recorded(root: Path, store: Path) -> list[RecordedTest]:
    """All fast tests that pass. Runs the files of tests whose record is missing. What is recorded of a file that
    changes meanwhile is returned and not stored: nobody knows of which text it is."""
    store.mkdir(parents=True, exist_ok=True)
    records = {file: _record(root, store, file) for file in files(root)}
    missing = defaultdict(list)
    for file, record in records.items():
        if not record.exists():
            missing[file.parent].append(file)
    found = {file: _read(record) for file, record in records.items() if record.exists()}
    for number, (folder, together) in enumerate(missing.items(), 1):
        print(f"recording what tests call, {number} of {len(missing)}: {folder.relative_to(root)}", flush=True)
        for file, tests in _run(root, store, together).items():
            found[file] = tests
            if file.exists() and _record(root, store, file) == records[file]:
                records[file].write_text(json.dumps(tests), "utf-8")
    return [
        RecordedTest(name, test["seconds"], frozenset(test["calls"]))
        for file in records
        for name, test in found[file].items()
        if test["passed"]
    ]


def _read(record: Path) -> _Tests:
    tests: _Tests = json.loads(record.read_text("utf-8"))
    return tests


def files(root: Path) -> list[Path]:
    """The files of tests against which mutations are held."""
    pages = [root / "tests" / page for page in PAGES]
    found = [file for folder in FOLDERS for file in (root / "tests" / folder).rglob("test_*.py")]
    return sorted([*found, *(page for page in pages if page.exists())])


def _record(root: Path, store: Path, file: Path) -> Path:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    return store / f"{'.'.join(file.relative_to(root / 'tests').with_suffix('').parts)}-{digest}.json"


def _run(root: Path, store: Path, together: Sequence[Path]) -> dict[Path, _Tests]:
    """One process for the files of a folder. Returns the tests of each."""
    written = store / f"running-{os.getpid()}.json"
    names = [file.relative_to(root).as_posix() for file in together]
    recorder = ["-p", "scripts.mutation.recorder", "--calls", str(written)]
    command = [sys.executable, "-m", "pytest", "-q", "-m", FAST, "-p", "no:cacheprovider", "--timeout=120", *recorder]
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
        "HYPOTHESIS_PROFILE": "calls",
        "QUORATE_SAMPLE": "0",
    }
    done = subprocess.run([*command, *names], cwd=root, env=environment, capture_output=True, text=True, check=False)
    if not written.exists():
        raise RuntimeError(f"The tests of {names[0]} and its neighbours do not run: {done.stdout[-2000:]}")
    tests = _read(written)
    written.unlink()
    return {
        file: {test: found for test, found in tests.items() if test.partition("::")[0] == name}
        for file, name in zip(together, names, strict=True)
    }
