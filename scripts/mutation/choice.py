"""Which tests a mutation is held against, those that say most for their time first.

A mutation inside a function is held against the tests that call it. What runs at import (a field of a class, a
constant) is called by nobody: it is held against the tests that call a function in which its name stands, and against
the tests of its room; so is a function that no test calls in its own process. Tests of the room and tests that name the
field come first, cheap files of tests before dear ones; the choice ends at ``BUDGET_S`` seconds of tests.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from .calls import PAGES, RecordedTest
from .places import Mutation
from .recorder import PACKAGES

BUDGET_S = 30.0
ROOM_S = 90.0
"""Seconds for tests of the room, some of which play through everything that the room is for."""
CHEAP_S = 1.0
"""At first no file of tests takes longer than this, so that many have their say. One that takes no longer is run as a
whole: what one of its tests has cached, another may look at."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def chosen(mutation: Mutation, every: Sequence[RecordedTest], root: Path) -> list[str]:
    """Tests and files of tests, as pytest takes them, in the order in which they shall run."""
    wanted, names = _wanted(mutation, root)
    exact = not names and any(wanted & test.calls for test in every)
    folders = {str(PurePosixPath(test.file).parent) for test in every}
    by_file: dict[str, list[RecordedTest]] = defaultdict(list)
    whole_s: dict[str, float] = defaultdict(float)
    for test in every:
        whole_s[test.file] += test.seconds
        near = of_the_room(test.file, mutation.file, folders) or test.file.removeprefix("tests/") in PAGES
        if wanted & test.calls or (near and not exact):
            by_file[test.file].append(test)

    def far(file: str) -> bool:
        return not of_the_room(file, mutation.file, folders) and not (names and names[-1] in _words(root / file))

    def rank(file: str) -> tuple[bool, float]:
        return far(file), sum(test.seconds for test in by_file[file])

    first, later = [], []
    spent_s = 0.0
    for file in sorted(by_file, key=rank):
        in_file_s = 0.0
        for test in sorted(by_file[file], key=lambda test: test.seconds):
            in_file_s += test.seconds
            if in_file_s <= CHEAP_S and spent_s + test.seconds <= BUDGET_S:
                first.append(test)
                spent_s += test.seconds
            else:
                later.append(test)
    found = list(dict.fromkeys(test.file if whole_s[test.file] <= CHEAP_S else test.name for test in first))
    for test in sorted(later, key=lambda test: (far(test.file), test.seconds)):
        if spent_s + test.seconds <= (BUDGET_S if far(test.file) else ROOM_S):
            found.append(test.name)
            spent_s += test.seconds
    return found


def of_the_room(test: str, file: str, folders: Collection[str]) -> bool:
    """Whether a file of tests has the path of the mutated file's room, or the name of the file or of its room.

    ``folders``: those that hold tests; a room without one of its own has that of the room around it.
    """
    path, stem = PurePosixPath(file), PurePosixPath(test).stem
    folder = next((one for one in map(str, path.parents) if f"tests/{one}" in folders), "")
    if str(PurePosixPath(test).parent) == f"tests/{folder}":
        return True
    return any(stem == f"test_{name}" or stem.startswith(f"test_{name}_") for name in (path.stem, path.parent.name))


def _wanted(mutation: Mutation, root: Path) -> tuple[set[str], list[str]]:
    """The functions whose tests are wanted; for what runs at import also the names that it defines, as ``Task`` and
    ``batch_size``."""
    tree = _tree(root / mutation.file)
    every = list(_definitions(tree, ""))
    inside = [name for name, node in every if _start(node) <= mutation.line <= (node.end_lineno or 0)]
    if inside:
        return {f"{mutation.file} {inside[-1]}"}, []
    names = list(_defined(tree.body, mutation.line))
    naming = {function for name in names for function in _naming(root).get(name, set())}
    methods = {f"{mutation.file} {one}" for one, _ in every if one.partition(".")[0] in names}
    return naming | methods, names or [Path(mutation.file).stem]


@cache
def _words(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", path.read_text("utf-8"))) if path.exists() else frozenset()


def _start(node: Definition) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
    """Every function with its ``co_qualname``, the outer ones first."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield prefix + child.name, child
                yield from _definitions(child, f"{prefix}{child.name}.<locals>.")
            case ast.ClassDef():
                yield from _definitions(child, f"{prefix}{child.name}.")
            case _:
                yield from _definitions(child, prefix)


def _defined(body: Sequence[ast.stmt], line: int) -> Iterator[str]:
    """What the statement on this line gives a name to: a constant, or a class and its field."""
    for statement in body:
        if not statement.lineno <= line <= (statement.end_lineno or 0):
            continue
        match statement:
            case ast.ClassDef(name=name, body=inner):
                yield name
                yield from _defined(inner, line)
            case ast.Assign(targets=targets):
                yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case _:
                pass


@cache
def _naming(root: Path) -> dict[str, set[str]]:
    """Name -> the functions of the product in which it stands, as a variable, an attribute or a keyword."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted(file for package in PACKAGES for file in (root / package).rglob("*.py")):
        for qualname, node in _definitions(_tree(file), ""):
            function = f"{file.relative_to(root).as_posix()} {qualname}"
            for part in ast.walk(node):
                match part:
                    case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                        found[name].add(function)
                    case _:
                        pass
    return found
