"""The lock of a data folder is the process's that took it, and of none of its forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.datafolder import FolderError, locked

HOLDER = """
import os, signal, sys
from pathlib import Path
from coordinator.datafolder import locked

with locked(Path(sys.argv[1])):
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
    signal.pause()
"""


def test_a_folder_is_free_as_soon_as_its_process_is_killed_whatever_became_of_its_forks(tmp_path: Path) -> None:
    """A fork of a killed simulation kept the folder for a moment, in the name of a process that was no more."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(FolderError, match=f"process {holder.pid}"), locked(tmp_path):
                pass
            holder.kill()
            holder.wait()
            os.kill(child, 0)
            with locked(tmp_path):
                pass
        finally:
            os.kill(child, 9)


def test_a_fork_that_leaves_the_block_unlocks_nothing(tmp_path: Path) -> None:
    held = locked(tmp_path)
    held.__enter__()
    child = os.fork()
    if child == 0:
        held.__exit__(None, None, None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(FolderError), locked(tmp_path):
        pass
    held.__exit__(None, None, None)
    with locked(tmp_path):
        pass
