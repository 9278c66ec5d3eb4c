"""The enrolment token of a command: where it is read from, and what is said where there is none."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from client_sdk.commands.token_file import SENTENCE, VARIABLE, enrolment_token
from client_sdk.terminal import Failure
from tests.client_sdk.commands.run_cli import quorate
from tests.client_sdk.commands.token_files import token_file
from tests.client_sdk.http.http_authority import shared


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)


def refusal(file: str | None) -> str:
    with pytest.raises(Failure) as end:
        enrolment_token(None if file is None else Path(file))
    return str(end.value)


def test_the_first_line_of_a_file_is_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    text = shared().text
    assert enrolment_token(Path(token_file(f"{text}  \nfor the clinics"))) == text
    assert capsys.readouterr() == ("", "")


def test_a_file_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert enrolment_token(None) is None
    monkeypatch.setenv(VARIABLE, " ")
    assert enrolment_token(None) is None
    text, other = shared().text, shared().token().text
    monkeypatch.setenv(VARIABLE, f"{other}\n")
    assert enrolment_token(None) == other
    assert enrolment_token(Path(token_file(text))) == text != other


def test_a_dash_is_one_line_of_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{shared().text}\nanother line\n"))
    assert enrolment_token(Path("-")) == shared().text
    assert sys.stdin.read() == "another line\n"
    assert refusal("-") == "There is no enrolment token in standard input: its first line is empty."
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), encoding="utf-8"))
    assert refusal("-") == "There is no enrolment token in standard input: it is not text."


def test_a_pipe_is_read_without_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe", 0o644)
    writer = threading.Thread(target=lambda: Path("pipe").write_text(shared().text + "\n"))
    writer.start()
    assert enrolment_token(Path("pipe")) == shared().text
    writer.join()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_file_that_others_can_read_is_taken_with_a_note(mode: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert enrolment_token(Path(token_file(mode=mode))) == shared().text
    note = "Others can read or write the token file device.token: make it its owner's only, by chmod 600.\n"
    assert capsys.readouterr() == ("", note)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "There is no enrolment token in the token file t: its first line is empty."),
        (b"\nqe1_below", "There is no enrolment token in the token file t: its first line is empty."),
        (b"hunter2", "In the token file t: This is no enrolment token: one begins with qe1_."),
        (b"hunter2\xff", "There is no enrolment token in the token file t: it is not ASCII."),
        (b"hunter2" * 100_000, "In the token file t: This is no enrolment token: one begins with qe1_."),
        (b"qe1_hunter2", "In the token file t: This enrolment token was not copied whole."),
    ],
)
def test_what_holds_no_token_is_refused_without_its_content(content: bytes, sentence: str) -> None:
    Path("t").write_bytes(content)
    Path("t").chmod(0o600)
    assert refusal("t") == sentence
    assert "hunter2" not in sentence


def test_what_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal("nowhere") == "The token file nowhere cannot be read: No such file or directory."
    assert refusal(".") == "The token file . cannot be read: Is a directory."
    monkeypatch.setenv(VARIABLE, "hunter2")
    assert refusal(None) == f"In {VARIABLE}: This is no enrolment token: one begins with qe1_."


def test_who_is_enrolled_needs_its_token_file_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be deleted once it was used; one that is there must still hold a token."""
    assert enrolment_token(Path("nowhere"), enrolled=True) is None
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert enrolment_token(Path("-"), enrolled=True) is None
    Path("t").write_text("hunter2")
    with pytest.raises(Failure, match="This is no enrolment token"):
        enrolment_token(Path("t"), enrolled=True)


def test_a_token_in_place_of_a_file_is_not_shown() -> None:
    assert refusal(shared().text) == SENTENCE


@pytest.mark.parametrize("form", ["--enrolment-token {}", "--token {}", "--enrolment-token={}", "--token={}"])
@pytest.mark.parametrize("command", ["device", "fleet", "datacenter join"])
def test_a_token_among_the_arguments_is_refused_and_not_shown(
    command: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quorate(*command.split(), *form.format(shared().text).split()) == 1
    assert capsys.readouterr() == ("", f"Error: {SENTENCE}\n")


def test_a_token_in_place_of_its_file_is_refused_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("device", "--token-file", shared().text) == 1
    assert capsys.readouterr() == ("", f"Error: {SENTENCE}\n")


def test_a_file_whose_name_begins_like_a_token_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("device", "--data", "qe1_of_the_ward.npz") == 1
    assert SENTENCE not in capsys.readouterr().err


@pytest.mark.slow
def test_a_group_refuses_it_too() -> None:
    command = [sys.executable, "-m", "client_sdk.learning.collective", "--token", shared().text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"Error: {SENTENCE}\n")
