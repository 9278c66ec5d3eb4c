"""The page's own unit tests, of its reducer, formatters and other functions, run by Vitest."""

from __future__ import annotations

import subprocess

import pytest

from coordinator.requests import TABLE
from scripts.dashboard import ROOT, Dashboard, find_node


@pytest.mark.service
@pytest.mark.slow
def test_the_pages_functions_do_what_their_tests_say() -> None:
    node, web = find_node(), Dashboard(ROOT).web
    if node is None or not (web / "node_modules").exists():
        pytest.skip("the dashboard is not built: make install")
    done = subprocess.run([*node.npm, "test"], cwd=web, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_audited_request_has_plain_words() -> None:
    words = (Dashboard(ROOT).web / "src" / "audit.ts").read_text("utf-8")
    actions = {entry.audited.action for entry in TABLE if entry.audited is not None}
    assert "run.{action}" in actions
    actions |= {f"run.{action}" for action in ("pause", "resume", "stop")}
    missing = sorted(one for one in actions - {"run.{action}"} if f'"{one}": "' not in words)
    assert missing == []
