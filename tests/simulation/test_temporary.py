"""Temporary folders of simulations: deleted at the end, and those of killed processes by the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from simulation.virtual.temporary import TemporaryFolder

LIVES = """
import sys
from simulation.virtual.temporary import TemporaryFolder
made = TemporaryFolder("some-")
print(made.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_process_left_is_deleted_by_the_next_one(folders: Path) -> None:
    env = {**os.environ, "TMPDIR": str(folders)}
    children = [
        subprocess.Popen([sys.executable, "-c", LIVES], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    dead, alive = (Path(child.stdout.readline().decode().strip()) for child in children if child.stdout)
    (dead / "states").mkdir()
    (dead / "states" / "a.state").write_bytes(b"kept by a client")
    children[0].send_signal(signal.SIGKILL)
    children[0].wait()
    (folders / "some-link").symlink_to(dead)
    (folders / "some-other").mkdir()
    made = TemporaryFolder("some-")
    assert not dead.exists()
    assert alive.exists()
    assert (folders / "some-other").exists(), "it has no lock, so nobody knows whose it is"
    children[1].communicate()
    assert not alive.exists()
    made.cleanup()
    assert not Path(made.name).exists()
    assert made._held.closed
