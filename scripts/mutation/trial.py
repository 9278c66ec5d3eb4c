"""One mutation on trial: a copy of the checkout in which one file at a time is changed, and its tests.

Results lie in ``.mutate/results.jsonl``. One that a test has noticed counts as long as the mutated file and that test's
file are what they were; one that survived, as long as product and tests are what they were.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from .calls import FAST, FOLDERS
from .places import Mutation
from .recorder import PACKAGES

COPIED = (*PACKAGES, "dashboards", "tests", "scripts", "benchmarks", "examples", "docs", "deploy", "requirements")
WARM = ("hypothesis", "numpy", "pydantic", "sqlalchemy", "fastapi", "httpx", "cryptography", "torch")
REPEATABLE = {"HYPOTHESIS_PROFILE": "ci", "QUORATE_SAMPLE": "0"}
"""Examples are the same each time, and cases of tests that run another part each day are always those of one day."""
RESULTS = "results.jsonl"
_FAILED = re.compile(r"^(?:FAILED|ERROR) ((?:[^\s:]|:(?!:))+)(?:::([^\s\[]+))?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests say of one mutation."""

    mutation: str
    outcome: str
    """``passed``, ``failed`` or ``timed out``."""
    noticed_by: str
    """The test that failed first; empty where none has, or none says."""
    tests: int
    seconds: float
    diff: list[str]
    digest: str
    """Of everything that the result depends on."""

    @property
    def survived(self) -> bool:
        return self.outcome == "passed"


class Copy:
    """A copy of the checkout in which one file at a time is changed.

    Each run of tests is a fork of this process, which has imported the heavy libraries and nothing of the product.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        unwanted = shutil.ignore_patterns("__pycache__", "node_modules")
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name, ignore=unwanted)
        for file in root.iterdir():
            if file.is_file():
                shutil.copy2(file, folder / file.name)
        for name in WARM:
            importlib.import_module(name)

    def run(self, tests: list[str], timeout_s: float = 600) -> tuple[str, str]:
        """``passed``, ``failed`` or ``timed out``, and the test that failed first."""
        if not tests:
            return "passed", ""
        output = self.folder / "output.txt"
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            self._pytest(tests, output)
        until = time.monotonic() + timeout_s
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > until:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "timed out", ""
            time.sleep(0.05)
        if ended[1] == 0:
            return "passed", ""
        failed = _FAILED.search(output.read_text("utf-8", "replace"))
        return "failed", "::".join(part for part in failed.groups() if part) if failed else ""

    def _pytest(self, tests: list[str], output: Path) -> NoReturn:
        """In the child: a process group of its own, in the copy."""
        code = 1
        try:
            os.setsid()
            os.chdir(self.folder)
            sys.stdout = sys.stderr = output.open("w", encoding="utf-8")
            os.dup2(sys.stdout.fileno(), 1)
            os.dup2(sys.stdout.fileno(), 2)
            os.environ.update(PYTHONPATH=str(self.folder), OMP_NUM_THREADS="1", **REPEATABLE)
            for name in [name for name in sys.modules if name.partition(".")[0] in (*PACKAGES, "tests")]:
                del sys.modules[name]  # where this process has imported the product after all
            sys.path_importer_cache.clear()
            sys.path[:] = [str(self.folder), *(path for path in sys.path if path not in ("", str(self.root)))]
            code = int(pytest.main(["-q", "-x", "-m", FAST, "--timeout=30", "-p", "no:cacheprovider", *tests]))
            sys.stdout.flush()
        finally:
            os._exit(code)

    def verdict(self, mutation: Mutation, tests: list[str], timeout_s: float) -> Verdict:
        """Makes the mutation, runs these tests, and takes it back."""
        path = self.folder / mutation.file
        before = path.read_text("utf-8")
        after = mutation.of(before)
        began = time.monotonic()
        outcome, noticed_by = "passed", ""
        try:
            _write(path, after)
            for part in _in_parts(tests):
                outcome, noticed_by = self.run(part, timeout_s)
                if outcome != "passed":
                    break
        finally:
            _write(path, before)
        diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
        digest = digest_of(self.folder, mutation, outcome, noticed_by)
        seconds = round(time.monotonic() - began, 1)
        return Verdict(mutation.name, outcome, noticed_by, len(tests), seconds, diff, digest)


def _in_parts(tests: list[str]) -> list[list[str]]:
    """The tests of the first three files, which notice most mutations, and the others, which need not be imported
    then."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))[:3]
    first = [test for test in tests if test.partition("::")[0] in files]
    return [first, [test for test in tests if test not in first]]


def _write(path: Path, source: str) -> None:
    """Writes a module and removes its bytecode: two texts of one size within a second look alike to Python."""
    path.write_text(source, "utf-8")
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def digest_of(root: Path, mutation: Mutation, outcome: str, noticed_by: str) -> str:
    """Of what a result depends on: for one that was noticed, the mutated file and the file of the test that failed."""
    sha256 = hashlib.sha256((root / mutation.file).read_bytes())
    killer = root / noticed_by.partition("::")[0]
    if outcome != "passed" and killer.is_file():
        files = [killer]
    else:
        folders = [*PACKAGES, *(f"tests/{name}" for name in FOLDERS)]
        files = sorted(file for folder in folders for file in (root / folder).rglob("*.py"))
    for file in files:
        sha256.update(file.read_bytes())
    return sha256.hexdigest()[:12]


def stored(folder: Path) -> dict[str, Verdict]:
    """The last result of each mutation, by its name."""
    path = folder / RESULTS
    if not path.exists():
        return {}
    lines = path.read_text("utf-8").splitlines()
    return {verdict.mutation: verdict for verdict in (Verdict(**json.loads(line)) for line in lines)}


def store(folder: Path, verdict: Verdict) -> None:
    with (folder / RESULTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(verdict)) + "\n")
