"""A folder with data and a learner, and the word ``quorate`` as nobody has called it yet."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest

from client_sdk import cli, terminal


@pytest.fixture(autouse=True)
def _a_fresh_word(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUORATE_URL", "QUORATE_ENROLMENT_TOKEN", "QUORATE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cli, "_rooms", {})
    monkeypatch.setattr(terminal, "_style", terminal._Style())
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERMINAL_WIDTH", "120")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data and a learner."""
    (tmp_path / "my_learner_of_tests.py").write_text(
        textwrap.dedent("""
        import numpy as np
        from client_sdk import Update

        __version__ = "0.1"

        def train(model, data, task):
            return Update({"w": np.ones_like(model["w"])}, examples=len(data))
        """)
    )
    np.savez(tmp_path / "mine.npz", x=np.zeros((10, 2), np.float32), y=np.zeros(10, np.int64))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
