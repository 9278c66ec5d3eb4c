"""The lines of ``quorate flower run``: into a pipe one for each group of messages, when it is done; on a terminal also
how far it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.flower import process
from tests.client_sdk.commands.run_cli import quorate

EVENTS: list[dict[str, Any]] = [
    {"event": "run", "run": "trial", "app": "tests/tiny", "version": "1.2.0"},
    {"event": "group", "done": False, "text": "round 1: 1 of 2 replied"},
    {"event": "remark", "text": "A device has left."},
    {"event": "group", "done": True, "text": "round 1: 2 of 2 replied"},
]


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ServerApp's process that tells these events."""

    def follow(orders: object, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        for event in EVENTS:
            show(event)
        return {"rounds": 1, "replies": 2, "errors": 0, "seconds": 3.0}

    monkeypatch.setattr(process, "follow", follow)


def shown(capsys: pytest.CaptureFixture[str], tmp_path: Path, *options: str) -> list[str]:
    assert quorate("flower", "run", str(tmp_path), "--simulation", "2", *options) == 0
    return capsys.readouterr().out.splitlines()


def test_into_a_pipe_go_the_run_remarks_and_groups_that_are_done(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    *lines, last = shown(capsys, tmp_path)
    assert lines == ["The run trial of tests/tiny 1.2.0.", "A device has left.", "round 1: 2 of 2 replied"]
    assert last.startswith("Done: 1 rounds, 2 replies, 0 errors, ")


def test_a_terminal_also_shows_how_far_a_group_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert "round 1: 1 of 2 replied" in shown(capsys, tmp_path)


def test_json_has_every_event_and_the_totals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [json.loads(line) for line in shown(capsys, tmp_path, "--json")]
    assert rows[:-1] == EVENTS
    assert rows[-1] == {"rounds": 1, "replies": 2, "errors": 0, "seconds": 3.0}
