"""``quorate status --watch``: each second anew, through a restart of the coordinator, and plain lines in a pipe."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from client_sdk.protocol.problems import problem
from coordinator.commands.watching import readings
from tests import forks
from tests.coordinator.service.conftest import Server, server
from tests.terminals import on_terminal

__all__ = ["server"]


def scripted(*steps: object) -> Callable[[], object]:
    left = iter(steps)

    def read() -> object:
        step = next(left)
        if isinstance(step, Exception):
            raise step
        return step

    return read


def test_the_last_reading_stays_while_nobody_answers_and_the_next_one_ends_the_trouble() -> None:
    gone = problem("busy", "No coordinator answers.")
    found = readings(scripted(1, gone, gone, 2), pause=lambda seconds: None)
    assert [(one.last, bool(one.trouble(one.read_at + 60))) for one in (next(found) for _ in range(4))] == [
        (1, False),
        (1, True),
        (1, True),
        (2, False),
    ]


def test_the_silence_is_counted_from_its_beginning_and_its_reason_is_said() -> None:
    gone = problem("busy", "No coordinator answers at u.")
    found = readings(scripted(1, gone, gone), pause=lambda seconds: None)
    next(found)
    first, second = next(found), next(found)
    assert first.silent_since == second.silent_since
    assert first.silent_since is not None
    said = second.trouble(first.silent_since + 12)
    assert said.startswith("No answer for 12 s; this is as of ")
    assert said.endswith(" No coordinator answers at u.")


@pytest.mark.parametrize("steps", [(problem("busy", "No."),), (1, problem("unknown-run", "No."))])
def test_what_asking_again_does_not_mend_ends_it(steps: tuple[object, ...]) -> None:
    found = readings(scripted(*steps), pause=lambda seconds: None)
    with pytest.raises(Exception, match=r"No\."):
        list(found)


def watch(server: Server, *words: str) -> list[str]:
    key = server.folder / "owner-key"
    return [
        sys.executable, "-m", "client_sdk.cli", "status", *words,
        "--watch", "--coordinator", server.url, "--key-file", str(key),
    ]  # fmt: skip


@pytest.mark.slow
def test_on_a_terminal_it_survives_a_restart_and_ctrl_c_leaves_cleanly(tmp_path: Path) -> None:
    server = Server.start(tmp_path / "data")
    again = None
    try:
        run = server.create_run("seen", select=5)
        with on_terminal(watch(server, run)) as keyboard:
            keyboard.until("seen is running; round 1 is selecting", 60)
            server.stop(signal.SIGKILL)
            keyboard.until("No answer for", 60)
            keyboard.raw = ""
            again = Server.start(tmp_path / "data", port=int(server.url.rsplit(":", 1)[1]))
            again.http.post(f"/v1/runs/{run}/pause").raise_for_status()
            said = keyboard.until("seen is paused", 60)
            assert "No answer for" not in said.rpartition("seen is paused")[2]
            keyboard.interrupt()
            assert keyboard.wait() == 0
            assert "Traceback" not in keyboard.text
            assert keyboard.raw.endswith(("\x1b[?25h", "\r\n")), "the cursor is back"
        with on_terminal(watch(again)) as keyboard:
            keyboard.until("paused", 60)
            again.http.post(f"/v1/runs/{run}/stop").raise_for_status()
            keyboard.until("stopped by", 60)
            keyboard.interrupt()
            assert keyboard.wait() == 0
    finally:
        (again or server).stop()


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
def test_in_a_pipe_it_prints_a_line_for_each_change_and_ends_with_the_run(server: Server, as_json: bool) -> None:
    run = server.create_run("piped", select=5)
    command = [*watch(server, run), *(["--json"] if as_json else [])]
    with forks.Forked(command[3:], forks.ANY, stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        first = watching.stdout.readline()
        server.http.post(f"/v1/runs/{run}/stop").raise_for_status()
        rest = watching.stdout.read()
        assert watching.wait(30) == 0
    if as_json:
        assert json.loads(first)["status"] == "running"
        assert [json.loads(line)["status"] for line in rest.splitlines()] == ["stopped"]
    else:
        assert f"{run} is running; 0 of " in first
        (line,) = rest.splitlines()
        assert f"{run} is stopped: stopped by" in line
        assert "\x1b" not in first + rest


@pytest.mark.slow
def test_errors_are_one_sentence_on_a_terminal_too(server: Server) -> None:
    for words, sentence in (
        (watch(server, "nothing"), "there is no run 'nothing'"),
        ([*watch(server)[:-4], "--coordinator", "http://127.0.0.1:9"], "No coordinator answers at http://127.0.0.1:9"),
    ):
        with on_terminal(words, columns=200) as keyboard:
            assert keyboard.wait(60) == 1
            (line,) = keyboard.text.strip().splitlines()
            assert line.startswith("Error: ")
            assert sentence in line
