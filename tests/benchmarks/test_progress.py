"""A benchmark says how far it is: with counts and the time left, on a terminal in one line, else every ten seconds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks._progress import counted
from benchmarks.harness import interleaved

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def played(clock: Clock, seconds: float) -> list[int]:
    found = []
    for number in counted("pairs", range(2, 6), clock):
        found.append(number)
        clock.now += seconds
    return found


def test_a_pipe_gets_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert played(Clock(), 6.0) == [2, 3, 4, 5]
    lines = capsys.readouterr()
    assert lines.out == ""
    assert lines.err.splitlines() == ["pairs: 2 of 4, 12 s left"]
    played(Clock(), 1.0)
    assert capsys.readouterr().err == "", "what is over at once says nothing"


def test_a_terminal_gets_one_line_that_goes_when_the_work_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    played(Clock(), 6.0)
    states = capsys.readouterr().err.split("\r\x1b[K")
    counts = ["pairs: 0 of 4", "pairs: 1 of 4, 18 s left", "pairs: 2 of 4, 12 s left", "pairs: 3 of 4, 6.0 s left"]
    assert states == ["", *counts, ""]


def test_pairs_say_how_far_they_are(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    interleaved(lambda: None, lambda: None, 3)
    assert "pairs: 0 of 3" in capsys.readouterr().err


def test_make_bench_counts_its_topics() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("bench: install")[2].partition("\n\n")[0]
    assert '"== $$topic ($$number of $$#)"' in recipe
