"""Supervised children: their output is read, they end on request, and none is left when any process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from coordinator.child_processes import (
    ENV_PARENT_PIPE,
    SupervisedChild,
    SupervisedChildren,
    how_it_ended,
    kill_marked,
    marked,
    when_parent_ends,
)

PATIENCE_S = 60.0
READY = "print('ready', flush=True)\n"
STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + "time.sleep(600)"
WAITED_FOR = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
POLITE = WAITED_FOR + READY + "signal.sigwait({signal.SIGTERM})"
"""A handler of Python's does not run where the signal comes just before a long sleep begins."""
DETACHED = """
import subprocess, sys
command = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(command, start_new_session=True).pid, flush=True)
"""
"""Starts a process that leads a session of its own, as a torchrun starts its ranks; it holds the output open."""
PARENT = """
import sys
from coordinator.child_processes import SupervisedChild
child = SupervisedChild([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
child.follow(lambda line: print(line, end="", flush=True))
"""
ENDS_WITH_PARENT = (
    "import subprocess, sys, time\n"
    "from coordinator.child_processes import end_with_parent\n"
    "end_with_parent(0.2)\n" + DETACHED.strip() + "\n" + STUBBORN
)


def python(program: str, **options: Any) -> SupervisedChild:
    return SupervisedChild([sys.executable, "-c", program], **options)


def lines_and_child(program: str, **options: Any) -> tuple[list[str], SupervisedChild]:
    lines: list[str] = []
    child = python(program, **options)
    child.follow(lines.append)
    return lines, child


def is_gone(pid: int) -> bool:
    """Whether it is gone, or soon is."""
    try:
        psutil.Process(pid).wait(PATIENCE_S)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


# ------------------------------------------------------------ starting and following


def test_a_childs_output_is_read_line_by_line_and_its_exit_code_is_known() -> None:
    lines, child = lines_and_child("import sys\nprint('one')\nprint('two')\nsys.exit(3)")
    assert lines == ["one\n", "two\n"]
    assert (child.returncode, child.poll(), child.wait(), child.ending) == (3, 3, 3, "ended with code 3")


def test_a_child_leads_a_session_computes_with_one_thread_and_gets_one_line() -> None:
    program = "import os, sys\nprint(os.getsid(0) == os.getpid(), os.environ['OMP_NUM_THREADS'], sys.stdin.readline())"
    assert lines_and_child(program, first_line="orders", environment={**os.environ, "OMP_NUM_THREADS": "7"})[0] == [
        "True 1 orders\n",
        "\n",
    ]
    assert lines_and_child(program, first_line="", threads=None, environment={**os.environ, "OMP_NUM_THREADS": "7"})[
        0
    ] == [
        "True 7 \n",
        "\n",
    ]


def test_output_and_complaints_go_to_files_where_those_are_given(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out, (tmp_path / "log").open("wb") as log:
        child = python("import sys\nprint('said')\nsys.exit('complained')", output=out, errors=log)
        assert child.wait(PATIENCE_S) == 1
        child.end()
    assert ((tmp_path / "out").read_text(), (tmp_path / "log").read_text()) == ("said\n", "complained\n")


def test_a_child_that_ends_before_it_reads_its_line_is_no_error() -> None:
    lines, child = lines_and_child("import os\nos._exit(4)", first_line="x" * 1_000_000)
    assert (lines, child.ending) == ([], "ended with code 4")


def test_bytes_that_are_no_text_do_not_end_the_listening() -> None:
    assert lines_and_child("import os\nos.write(1, b'\\xff\\nnext\\n')")[0] == ["\N{REPLACEMENT CHARACTER}\n", "next\n"]


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "ended with code 0"), (-9, "was killed by SIGKILL"), (-250, "was killed by signal 250")],
)
def test_an_exit_code_in_words(code: int, words: str) -> None:
    assert how_it_ended(code) == words


# ------------------------------------------------------------ ending


def test_a_child_ends_by_itself_when_it_is_asked_and_is_killed_where_it_does_not() -> None:
    for program, grace_s, ending in (
        (POLITE, PATIENCE_S, "ended with code 0"),
        (STUBBORN, 0.2, "was killed by SIGKILL"),
        (POLITE, 0.0, "was killed by SIGKILL"),
    ):
        with tempfile.TemporaryFile("w+") as out:
            with python(program, output=out, grace_s=grace_s) as child:
                while not out.seek(0) and not out.read():
                    assert child.poll() is None
                assert child.ending == "has not ended"
            assert child.ending == ending


def test_the_last_line_of_interest_ends_the_child() -> None:
    child = python(STUBBORN)
    assert child.follow(lambda line: line == "ready\n") == -signal.SIGKILL


def test_a_child_is_killed_when_a_condition_holds() -> None:
    stop = Event()
    child = python(STUBBORN)

    def on_line(line: str) -> None:
        stop.set()

    assert child.follow(on_line, kill_when=stop.is_set) == -signal.SIGKILL


def test_an_error_while_a_childs_output_is_read_ends_it() -> None:
    child = python(STUBBORN)

    def on_line(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.follow(on_line)
    assert child.returncode == -signal.SIGKILL


def test_several_end_together_whatever_happens() -> None:
    started: list[SupervisedChild] = []

    def failing() -> None:
        with SupervisedChildren(0.2) as children:
            started.extend(children.add(python(program, output=subprocess.DEVNULL)) for program in (POLITE, STUBBORN))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert [child.returncode is not None for child in started] == [True, True]


# ------------------------------------------------------------ what children start


@pytest.mark.slow
def test_what_a_child_started_ends_with_it() -> None:
    pids: list[int] = []

    def on_line(line: str) -> bool:
        pids.append(int(line))
        return True

    python(DETACHED + "import time\ntime.sleep(600)").follow(on_line)
    assert is_gone(pids[0])


@pytest.mark.slow
def test_processes_that_outlive_a_child_do_not_block_its_reader() -> None:
    pids: list[int] = []
    child = python(DETACHED)
    child.follow(lambda line: pids.append(int(line)), linger_s=0.1)
    assert child.returncode == 0
    assert is_gone(pids[0])


def test_marks_reach_all_descendants_and_nobody_else() -> None:
    """The elder's mark finds a child of its child that has a mark of its own."""
    both = marked(marked(os.environ, "elder"), "younger")
    other = marked(os.environ, "stranger")
    sleep = [sys.executable, "-c", "input()"]
    with (
        subprocess.Popen(sleep, env=both, stdin=subprocess.PIPE, start_new_session=True) as mine,
        subprocess.Popen(sleep, env=other, stdin=subprocess.PIPE, start_new_session=True) as stranger,
    ):
        try:
            kill_marked(["elder", "third"])
            assert mine.wait(PATIENCE_S) == -signal.SIGKILL
            assert stranger.poll() is None
        finally:
            mine.kill()
            stranger.kill()


# ------------------------------------------------------------ the end of a parent


@pytest.mark.slow
def test_a_killed_parent_takes_a_stubborn_child_and_all_that_it_started_along() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, ENDS_WITH_PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child, grandchild = int(parent.stdout.readline()), int(parent.stdout.readline())
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
    assert is_gone(child)
    assert is_gone(grandchild)


def test_a_program_that_is_started_by_hand_does_not_watch_its_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    called = Event()
    monkeypatch.delenv(ENV_PARENT_PIPE, raising=False)
    when_parent_ends(called.set)
    done = subprocess.run(
        [sys.executable, "-c", "from coordinator.child_processes import end_with_parent as end\nend(0)\nprint(1)"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert not called.is_set()


def test_a_process_that_is_asked_to_look_at_its_pipe_passes_that_on_to_nobody() -> None:
    program = (
        "import os\nfrom coordinator.child_processes import end_with_parent\n"
        f"had = '{ENV_PARENT_PIPE}' in os.environ\nend_with_parent(0)\nprint(had, '{ENV_PARENT_PIPE}' in os.environ)"
    )
    assert lines_and_child(program)[0] == ["True False\n"]


def test_children_that_inherit_the_pipe_may_watch_it_too() -> None:
    program = (
        "import os\nfrom coordinator.child_processes import when_parent_ends\n"
        f"when_parent_ends(print, also_children=True)\nprint('{ENV_PARENT_PIPE}' in os.environ)"
    )
    assert lines_and_child(program)[0] == ["True\n"]
