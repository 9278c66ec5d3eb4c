"""Python's garbage collector rests while packages are imported, and when a command's process ends."""

from __future__ import annotations

import gc
import subprocess
import sys
from importlib import import_module

import pytest

from client_sdk.imports import uncollected


def test_the_collector_rests_during_an_import_and_works_afterwards() -> None:
    with pytest.raises(ModuleNotFoundError), uncollected():
        import_module("tests.no_such")
    assert gc.isenabled()


def test_a_collector_that_rests_already_goes_on_resting() -> None:
    with uncollected():
        with uncollected():
            pass
        assert not gc.isenabled()


def test_at_the_end_of_a_command_nothing_is_left_to_look_through() -> None:
    """A handler that was registered before the command's runs after it."""
    program = (
        "import atexit, gc; atexit.register(lambda: print(len(gc.get_objects()) < 1000 < gc.get_freeze_count())); "
        "from client_sdk.cli import main; main(['--version'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[1:] == ["True"]
