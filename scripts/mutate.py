"""Measures the tests: makes small mutations of the product, one at a time, and runs the fast tests of their room.

    make mutate ONLY=coordinator/engine               # 20 mutations of this room
    make mutate ONLY=client_sdk/tensors ARGS="--count 50 --seed 2"

Cosmic Ray makes the mutations. A sample is a function of the room, the seed and the sources, and each result is stored
under the sources that it was measured with (``.mutate/``): a second run continues where the first one ended. The
product is mutated in a copy, never in this checkout. A mutation that no test notices either needs a test of a rule that
a user would miss, or changes nothing that anybody can see.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".mutate"
PACKAGES = ("client_sdk", "coordinator", "simulation", "quorate")
COPIED = (*PACKAGES, "dashboards", "tests", "scripts", "benchmarks", "examples", "docs", "deploy", "requirements")
FAST = "not slow and not service and not soak"
OPERATORS = (
    *(
        f"ReplaceBinaryOperator_{pair}"
        for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mod", "Mod_Add")
    ),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_GtE", "GtE_Lt", "Is_IsNot", "IsNot_Is")),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub", "AddNot"),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer"),
    *("NumberReplacer", "ZeroIterationForLoop"),
)
"""Cosmic Ray's, without those that mostly change annotations (``int | None``) or make code that cannot run."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one file: the ``occurrence``-th place in it where the operator applies."""

    file: str
    operator: str
    occurrence: int

    @property
    def name(self) -> str:
        return f"{self.file} {self.operator} {self.occurrence}"

    def of(self, source: str) -> str:
        """The changed source."""
        changed = mutate_code(source, get_operator(f"core/{self.operator}")(), self.occurrence)
        if not isinstance(changed, str):
            raise TypeError(f"{self.name} changes nothing")
        return changed


def mutations(room: Path) -> list[Mutation]:
    """All mutations of a room's files, or of one file."""
    files = [room] if room.is_file() else sorted(room.rglob("*.py"))
    found = []
    for file in files:
        tree = get_ast(file.read_text("utf-8"))
        for name in OPERATORS:
            operator = get_operator(f"core/{name}")()
            places = sum(1 for node in _nodes(tree) for _ in operator.mutation_positions(node))
            path = file.relative_to(ROOT).as_posix()
            found += [Mutation(path, name, occurrence) for occurrence in range(places)]
    return found


def _nodes(node: object) -> Iterator[object]:
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def sample(every: list[Mutation], count: int, seed: int) -> list[Mutation]:
    """``count`` of them, the same for the same seed."""

    def drawn(mutation: Mutation) -> bytes:
        return hashlib.sha256(f"{seed} {mutation.name}".encode()).digest()

    return sorted(every, key=drawn)[:count]


def tests_of(file: str) -> list[str]:
    """The tests of a file's room: the folder of the same path below tests/, or the nearest one above it, and the tests
    that are named after the file."""
    path = Path(file)
    folder = next(one for one in path.parents if (ROOT / "tests" / one).is_dir())
    named = [*(ROOT / "tests").rglob(f"test_{path.stem}.py"), *(ROOT / "tests").rglob(f"test_{path.stem}_*.py")]
    inside = [str(Path("tests") / folder)] if folder != Path() else ["tests/imports", "tests/packaging"]
    beside = sorted({str(test.relative_to(ROOT)) for test in named if not str(test).startswith(str(ROOT / inside[0]))})
    return [*inside, *beside]


def sources() -> str:
    """A digest of everything that decides the result of a test: product and tests."""
    sha256 = hashlib.sha256()
    for file in sorted(file for folder in (*PACKAGES, "tests") for file in (ROOT / folder).rglob("*.py")):
        sha256.update(file.read_bytes())
    return sha256.hexdigest()[:12]


class Copy:
    """A copy of the checkout in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy2(file, folder / file.name)

    def run(self, tests: list[str], timeout_s: float | None = None) -> str:
        """``passed``, ``failed``, or ``timed out``."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", FAST, "-p", "no:cacheprovider", *tests]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "HYPOTHESIS_PROFILE": "ci",
        }
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            return "timed out"
        return "passed" if done.returncode == 0 else "failed"

    def verdict(self, mutation: Mutation, baseline_s: float) -> dict[str, Any]:
        """Makes the mutation, runs the tests of its room, and takes it back."""
        path = self.folder / mutation.file
        before = path.read_text("utf-8")
        after = mutation.of(before)
        began = time.monotonic()
        try:
            path.write_text(after, "utf-8")
            outcome = self.run(tests_of(mutation.file), timeout_s=60 + 5 * baseline_s)
        finally:
            path.write_text(before, "utf-8")
        diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
        return {
            "mutation": mutation.name,
            "survived": outcome == "passed",
            "outcome": outcome,
            "seconds": round(time.monotonic() - began, 1),
            "diff": diff,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutate a room of the product and run its fast tests.")
    parser.add_argument("room", help="a folder or a file, as coordinator/engine")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    room = ROOT / arguments.room
    if not room.exists() or room.relative_to(ROOT).parts[0] not in PACKAGES:
        sys.exit(f"There is no room {arguments.room}; one is a folder or a file in {', '.join(PACKAGES)}.")
    digest = sources()
    stored = FOLDER / f"{digest}.jsonl"
    done = _results(stored)
    chosen = sample(mutations(room), arguments.count, arguments.seed)
    missing = [mutation for mutation in chosen if mutation.name not in done]
    if missing:
        copy = Copy(FOLDER / f"copy-{os.getpid()}")
        try:
            _measure(copy, missing, stored, done)
        finally:
            shutil.rmtree(copy.folder, ignore_errors=True)
    _report(arguments.room, [done[mutation.name] for mutation in chosen])


def _measure(copy: Copy, missing: list[Mutation], stored: Path, done: dict[str, dict[str, Any]]) -> None:
    baselines: dict[tuple[str, ...], float] = {}
    for number, mutation in enumerate(missing, 1):
        tests = tuple(tests_of(mutation.file))
        if tests not in baselines:
            began = time.monotonic()
            if copy.run(list(tests)) != "passed":
                sys.exit(f"The tests fail without a mutation: {' '.join(tests)}")
            baselines[tests] = time.monotonic() - began
        found = copy.verdict(mutation, baselines[tests])
        done[mutation.name] = found
        with stored.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{number}/{len(missing)} {found['outcome']:9} {found['seconds']:6} s  {mutation.name}", flush=True)


def _results(stored: Path) -> dict[str, dict[str, Any]]:
    if not stored.exists():
        return {}
    lines = stored.read_text("utf-8").splitlines()
    return {str(found["mutation"]): found for found in map(json.loads, lines)}


def _report(room: str, results: list[dict[str, Any]]) -> None:
    counts = Counter("survived" if found["survived"] else "noticed" for found in results)
    for found in results:
        if found["survived"]:
            print(f"\nSURVIVED {found['mutation']}")
            print("\n".join(f"  {line}" for line in found["diff"]))
    share = counts["noticed"] / max(1, len(results))
    print(f"\n{room}: {counts['noticed']} of {len(results)} mutations noticed ({share:.0%}).")


if __name__ == "__main__":
    main()
