"""No case of a ``match`` is forgotten: each ends in a wildcard, and one over actions, events or effects in
``assert_never``, by which mypy finds a kind that nobody handles.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from client_sdk.device.actions import Action
from coordinator.datacenter.worker_session import WorkerAction
from coordinator.engine import effects, events

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("quorate", "client_sdk", "coordinator", "simulation")
CLOSED = {kind.__name__ for union in (Action, WorkerAction, effects.Effect, events.Event) for kind in get_args(union)}
"""The classes of which a new one must not be overlooked."""


def class_names(case: ast.match_case) -> Iterator[str]:
    """Yield the classes that a case matches, not those of the fields inside."""
    patterns = case.pattern.patterns if isinstance(case.pattern, ast.MatchOr) else [case.pattern]
    for pattern in patterns:
        if isinstance(pattern, ast.MatchClass):
            yield ast.unparse(pattern.cls).rpartition(".")[2]


def wrong(source: str) -> list[str]:
    """Return what each ``match`` of the source lacks, by its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Match):
            continue
        last = node.cases[-1]
        if last.guard is not None or not isinstance(last.pattern, ast.MatchAs) or last.pattern.pattern is not None:
            found.append(f"line {node.lineno}: no wildcard at the end")
        elif "assert_never" not in ast.unparse(last) and CLOSED & {n for case in node.cases for n in class_names(case)}:
            found.append(f"line {node.lineno}: no assert_never at the end")
    return found


def test_every_match_ends_in_a_wildcard_or_in_assert_never() -> None:
    sources = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): wrong(path.read_text("utf-8")) for path in sources}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_closed_classes_are_known() -> None:
    assert {"Save", "Sleep", "Begin", "Draw", "RecordRound", "Reported", "Opened"} <= CLOSED


@pytest.mark.parametrize(
    ("last", "lack"),
    [
        ("case ev.Tick(): pass", ["line 1: no wildcard at the end"]),
        ("case _ if later: pass", ["line 1: no wildcard at the end"]),
        ("case _: pass", ["line 1: no assert_never at the end"]),
        ("case _: assert_never(event)", []),
    ],
)
def test_a_forgotten_case_is_seen(last: str, lack: list[str]) -> None:
    assert wrong(f"match event:\n    case ev.Drawn() | ev.Created(): pass\n    {last}") == lack
    assert wrong(f"match event:\n    case 'Drawn': pass\n    {last}") == [one for one in lack if "assert" not in one]
