"""Ctrl-C ends every command without a traceback, wherever it arrives: in the imports, in the command, at the exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

INTERRUPTED = """
import atexit, os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
if {module!r} == "exit":
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.argv = ["quorate", *{arguments!r}]
sys.path.insert(0, {root!r})
from quorate.__main__ import main
main()
"""


def interrupted(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that receives SIGINT when it imports ``module``, or while the interpreter shuts down."""
    source = INTERRUPTED.format(module=module, arguments=arguments, root=str(ROOT))
    return subprocess.run(
        [sys.executable, "-P", "-c", source], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )


DEVICE = ("device", "--data", "mine.npz", "--token-file", "t")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("client_sdk.imports", ("--help",)),
        ("client_sdk.cli", ("--help",)),
        ("typer", ("--help",)),
        ("pydantic", ("status",)),
        ("client_sdk.commands.device", DEVICE),
        ("coordinator.cli", ("status",)),
        ("simulation.cli", ("demo",)),
        ("numpy", DEVICE),
        ("sqlalchemy", ("serve", "--port", "0")),
        ("exit", ("--version",)),
    ],
)
def test_ctrl_c_during_imports_and_at_the_exit(tmp_path: Path, module: str, arguments: tuple[str, ...]) -> None:
    ended = interrupted(tmp_path, module, *arguments)
    assert (ended.returncode, ended.stderr) == (130, "")


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_ends_a_search_and_its_processes(jobs: int) -> None:
    """The signal goes to the whole process group, as a terminal sends it."""
    search = subprocess.Popen(
        [sys.executable, "-m", "tests.explorer", "--seconds", "60", "--jobs", str(jobs)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    time.sleep(4)  # in the middle of schedules, or of the start of the processes: any moment will do
    os.killpg(search.pid, signal.SIGINT)
    out, err = search.communicate(timeout=20)
    # Python ends itself by SIGINT where the signal arrived in an ``exec`` (dataclasses); a shell shows 130 for it too.
    assert search.returncode in (130, -signal.SIGINT)
    assert (out, err) == ("", "")


BEFORE_THE_HANDLER = """
import _signal, os, sys

def show(number, handler):
    print(*sorted(set(sys.modules) - before))
    sys.stdout.flush()
    os._exit(0)

before = set(sys.modules)
_signal.signal = show
from quorate.__main__ import main
main()
"""


def test_nothing_that_takes_time_is_imported_before_ctrl_c_is_handled() -> None:
    """Python itself needs ten to twenty milliseconds, in which Ctrl-C prints a traceback that nobody can prevent."""
    shown = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}){BEFORE_THE_HANDLER}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert shown.stdout.split() == ["__future__", "quorate", "quorate.__main__"]
