"""Files that are no files: a pipe or a device is neither waited for nor replaced."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from coordinator.datacenter.rank import _check_writable
from tests.client_sdk.commands.run_cli import quorate

PLAN = '[task]\nlearner = "a:b"\n[cohort]\nselect = 4\ngoal = 3\n[finish]\nrounds = 2\n'


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_checkpoint_replaces_no_pipe_and_no_device(pipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("checkpoint", "get", "mnist", "--output", str(pipe), "--force", "--url", "http://127.0.0.1:1") == 1
    assert "pipe is not a regular file, and would be replaced by one" in capsys.readouterr().err
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_run_begins_with_no_pipe(pipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = pipe.with_name("plan.toml")
    plan.write_text(f'name = "mnist"\n{PLAN}')
    assert quorate("run", "create", str(plan), "--init", str(pipe), "--url", "http://127.0.0.1:1") == 1
    assert "a folder, a pipe or a device" in capsys.readouterr().err


def test_a_training_replaces_no_pipe(pipe: Path) -> None:
    with pytest.raises(FileExistsError, match="Not a regular file"):
        _check_writable(pipe)
    _check_writable(pipe.with_name("model.safetensors"))
