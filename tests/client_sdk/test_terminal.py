"""How commands speak: errors in one sentence, exit codes, tables and JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import typer

from client_sdk import cli, terminal
from client_sdk.protocol.devices import Task
from client_sdk.protocol.problems import problem


@pytest.fixture(autouse=True)
def _style(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a process prints before a command has begun, whichever commands ran in it before."""
    monkeypatch.setattr(terminal, "_style", terminal._Style())


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = (
        "from client_sdk.terminal import errors_as_sentences, say\n@errors_as_sentences\ndef much():\n"
        "  while True: say('x' * 9999)\nmuch()"
    )
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as much:
        assert much.stdout is not None
        assert much.stderr is not None
        much.stdout.readline()
        much.stdout.close()
        output = much.stderr.read().decode()
    assert "Broken" not in output


def test_what_others_wrote_breaks_no_table_and_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.say_table(["why", "label"], [["out of\nmemory", "\x1b[31mred"], ["é", None]])
    assert capsys.readouterr().out.splitlines()[1:] == [r"out of\nmemory  \x1b[31mred", "é               -"]


class NotAnErrorOfOurs(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (terminal.Failure("No."), "No."),
        (problem("late", "Too late."), "Too late."),
        (ValueError("a\nb"), "a b"),
        (FileNotFoundError(2, "No such file or directory", "plan.toml"), "No such file or directory: plan.toml."),
        (ModuleNotFoundError("x", name="sqlalchemy.orm"), "pip install 'quorate[coordinator]'"),
        (ModuleNotFoundError("x", name="strange"), "The Python module strange is not installed"),
        (NotAnErrorOfOurs("boom"), "A bug in quorate, please report it: NotAnErrorOfOurs: boom"),
    ],
)
def test_the_texts_of_errors(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("QUORATE_DEBUG", raising=False)

    @terminal.errors_as_sentences
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as end:
        command()
    assert end.value.exit_code == 1
    output = capsys.readouterr().err
    assert sentence in output
    assert len(output.splitlines()) == 1


def test_with_debug_the_traceback_is_shown_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUORATE_DEBUG", "1")

    @terminal.errors_as_sentences
    def command() -> None:
        raise ValueError("no")

    with pytest.raises(typer.Exit):
        command()
    output = capsys.readouterr().err
    assert "Traceback" in output
    assert output.endswith("Error: no\n")


def test_ctrl_c_exits_with_130() -> None:
    @terminal.errors_as_sentences
    def command() -> None:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as end:
        command()
    assert end.value.exit_code == 130


def test_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[list[Any]] = [["a", 1, None], ["long name", 0.123456, "x"]]
    terminal.say_table(["name", "value", "note"], rows)
    assert capsys.readouterr().out == "name       value   note\na          1       -\nlong name  0.1235  x\n"
    terminal.say_table(["name"], [])
    assert capsys.readouterr().out == "Nothing yet.\n"
    terminal.say_json([Task(learner="a:b"), {"n": 1}])
    (task, other) = json.loads(capsys.readouterr().out)
    assert (task["learner"], other) == ("a:b", {"n": 1})


def test_errors_are_json_where_the_output_is(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in ((["status", "--url", "http://127.0.0.1:9", "--json"], 1), (["nonsense", "--json"], 2)):
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert end.value.code == code
        printed = capsys.readouterr()
        assert printed.out == ""
        error = json.loads(printed.err)
        assert error["kind"] == "error"
        assert error["text"]
    with pytest.raises(SystemExit):
        cli.main(["status", "--url", "http://127.0.0.1:9"])
    assert capsys.readouterr().err.startswith("Error: ")


@pytest.mark.parametrize("as_json", [False, True])
def test_any_name_is_printed_on_any_terminal(as_json: bool) -> None:
    source = (
        "import sys\nfrom client_sdk import terminal\n"
        f"terminal.start({['--json'] if as_json else []})\n"
        "name = 'Zürich 東京 \\udcff'\nterminal.speak_as(name)\n"
        "terminal.say_json({'name': name}) if sys.argv[1:] else terminal.say(name)\nterminal.print_error(name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, *(["json"] if as_json else [])],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rich" in done.stdout
    assert "rich" in done.stderr
    assert done.stdout.isascii()
    assert done.stderr.isascii()
