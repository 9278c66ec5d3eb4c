"""Progress of long commands: a bar on a terminal, a line now and then elsewhere; results stay where they go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from client_sdk.terminal import TimeLeft
from coordinator.commands.common import LINE_EVERY_S, _lines, counted_bytes
from tests.terminals import on_terminal

WORK = """
import sys, time
from client_sdk.terminal import say
from coordinator.commands.common import progress
with progress() as show:
    for done in range(1, 9):
        show("mnist: events [3]", done, 8)
        time.sleep(0.15)
    say("result")
"""


def test_the_time_left_is_that_of_what_was_done_since_the_first_look() -> None:
    now = 50.0
    left = TimeLeft(lambda: now)
    assert left.of(10, 100) == "", "how long the first ten took is not known"
    now = 60.0
    assert left.of(20, 100) == ", 80 s left"
    assert left.of(100, 100) == ""


def test_without_a_terminal_there_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    show = _lines(True, lambda: now)
    for done in range(1, 41):
        now = done * LINE_EVERY_S / 20
        show("version 3 of mnist", done * 1_000_000, 100_000_000)
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "version 3 of mnist: 20.0 of 100.0 MB, 40 s left\nversion 3 of mnist: 40.0 of 100.0 MB, 30 s left\n",
    )


def test_what_is_soon_done_prints_nothing_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with counted_bytes("a file", 10) as more:
        more(10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_a_terminal_gets_a_bar_with_counts_that_goes_when_it_is_done() -> None:
    with on_terminal([sys.executable, "-c", WORK], columns=100) as keyboard:
        assert keyboard.wait(60) == 0
        assert "mnist: events [3]" in keyboard.text
        assert "8/8" in keyboard.text
        assert "result\n" in keyboard.text
        assert keyboard.raw.rstrip().endswith(("\x1b[2K", "\x1b[?25h")), "the bar is gone"


@pytest.mark.slow
def test_results_go_into_the_pipe_while_the_bar_is_on_the_terminal(tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(WORK)
    shell = f"'{sys.executable}' '{script}' > '{tmp_path / 'out'}'"
    with on_terminal(["sh", "-c", shell], columns=100) as keyboard:
        assert keyboard.wait(60) == 0
        assert "result" not in keyboard.text
    assert (tmp_path / "out").read_text() == "result\n"


@pytest.mark.slow
def test_in_a_pipe_a_transfer_leaves_standard_output_to_the_result() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("result\n", "")
