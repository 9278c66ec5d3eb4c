"""The engine takes time and chance as arguments: no call in it asks the machine for either, or for a file.

The import contracts keep whole modules out; this reads the calls of modules that may be imported (os, datetime, numpy).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[2] / "coordinator" / "engine"
ASKS_THE_MACHINE = ("urandom", "getrandom", "now", "utcnow", "today", "random", "default_rng", "environ", "getenv")
TOUCHES_DISK = ("open", "read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "memmap", "fromfile")

# A plan is loaded from the TOML file that the user wrote, before any run begins.
ALLOWED = {"plan_file.py": {"read_bytes"}}


def impure(source: str) -> set[str]:
    """Return every name in the source that asks the machine for time, chance, settings or files."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) if name in (*ASKS_THE_MACHINE, *TOUCHES_DISK):
                found.add(name)
            case ast.Call(func=ast.Name(id=("open" | "print" | "input") as name)):
                found.add(name)
            case _:
                pass
    return found


def test_no_call_of_the_engine_asks_the_machine() -> None:
    files = sorted(ENGINE.rglob("*.py"))
    assert files
    found = {file.relative_to(ENGINE).as_posix(): impure(file.read_text()) for file in files}
    assert {
        name: calls - ALLOWED.get(name, set()) for name, calls in found.items() if calls - ALLOWED.get(name, set())
    } == {}


@pytest.mark.parametrize(
    "call",
    [
        "os.urandom(8)",
        "numpy.random.default_rng()",
        "datetime.now(UTC)",
        "open('x')",
        "Path('x').read_text()",
        "os.environ['X']",
    ],
)
def test_such_calls_are_seen(call: str) -> None:
    assert impure(f"import os\nvalue = {call}\n")
