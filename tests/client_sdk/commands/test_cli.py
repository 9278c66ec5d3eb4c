"""The word ``quorate``: its help, wrong usage, and the rooms' commands with and without the rooms."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint, version
from pathlib import Path

import numpy as np
import pytest

from client_sdk import cli
from tests.client_sdk.commands.run_cli import quorate
from tests.rotating import in_parts


@pytest.mark.parametrize("command", [["device"], ["device", "history"], ["evaluate"], []])
def test_every_command_has_help_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate(*command, "--help") == 0
    assert "Example: quorate" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["device", "--no-such-option"], "No such option '--no-such-option'. See 'quorate device --help'."),
        (["device", "--rounds", "0"], "Invalid value for '--rounds': 0 is not in the range x>=1. See 'quorate device"),
        (["no-such-command"], "No such command 'no-such-command'. See 'quorate --help'."),
        (["evaluate"], "Missing argument 'RUN'. See 'quorate evaluate --help'."),
    ],
)
def test_wrong_usage_exits_with_2_and_one_sentence(
    command: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quorate(*command) == 2
    output = capsys.readouterr().err
    assert output.startswith(f"Error: {sentence}")
    assert len(output.splitlines()) == 1


def test_the_word_alone_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate() == 2
    output = capsys.readouterr()
    assert "Example: quorate serve" in " ".join((output.out + output.err).split())
    assert "Error" not in output.err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert quorate("--version") == 0
    assert capsys.readouterr().out == f"quorate {version('quorate')}\n"


# ------------------------------------------------------------ the other rooms


def rooms(monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    """Make these entry points the installed rooms."""
    found = [EntryPoint(name, value, cli.GROUP) for name, value in modules.items()]

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [entry for entry in found if name is None or entry.name == name]

    monkeypatch.setattr(cli, "entry_points", entry_points)


@pytest.mark.parametrize(("room", "command"), [(room, name) for room, names in cli.ROOMS.items() for name in names])
def test_commands_of_rooms_that_are_not_installed_name_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], room: str, command: str
) -> None:
    rooms(monkeypatch)
    assert quorate(command, "create", "--port", "3") == 1
    output = capsys.readouterr().err
    assert output == f"Error: quorate {command} is not installed here: pip install 'quorate[{room}]'\n"
    assert quorate("--help") == 0
    assert re.search(rf"\b{command}\b", capsys.readouterr().out)


@pytest.mark.parametrize("room", cli.ROOMS)
def test_each_command_of_a_room_is_known_without_it(room: str) -> None:
    assert set(cli.ROOMS[room]) == set(cli._room(room) or {})


def test_a_room_that_lacks_a_package_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "room_without_torch.py").write_text("import torch\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    rooms(monkeypatch, simulation="room_without_torch:app")
    assert quorate("demo") == 1
    output = capsys.readouterr().err
    assert "pip install 'quorate[simulation]'" in output
    assert "torch" in output


WITHOUT = """
import sys
from importlib.metadata import PackageNotFoundError, version
from client_sdk import cli
from client_sdk.imports import extras

def only_some(name):
    if name in ("psutil", "torch", "matplotlib"):
        raise PackageNotFoundError(name)
    return version(name)

extras.version = only_some
sys.modules["psutil"] = sys.modules["torch"] = None
cli.main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "lacks"),
    in_parts(
        [
            ("demo", "matplotlib, psutil, torch, which are not installed: pip install 'quorate[simulation]'"),
            ("fleet", "matplotlib, psutil, torch, which are not installed: pip install 'quorate[simulation]'"),
            (
                "simulate small.toml --data a.npz",
                "matplotlib, psutil, torch, which are not installed: pip install 'quorate[simulation]'",
            ),
            (
                "datacenter train a:b --data a.npz --steps 1",
                "psutil, torch, which are not installed: pip install 'quorate[datacenter]'",
            ),
        ],
        of=2,
    ),
)
def test_a_command_names_its_own_extra_and_all_that_it_lacks(command: str, lacks: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((200, 2), np.float32), y=np.arange(200) % 2)
    (tmp_path / "small.toml").write_text('name = "small"\n[task]\nlearner = "quorate:mnist-mlp"\n')
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, *command.split()], cwd=tmp_path,
        env={**os.environ, "QUORATE_ENROLMENT_TOKEN": ""}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (1, f"Error: This needs {lacks}\n")


def test_a_rooms_commands_and_groups_stand_at_the_top(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "room_of_tests.py").write_text(
        textwrap.dedent("""
        import typer
        app = typer.Typer()
        sub = typer.Typer()

        @app.command()
        def serve(port: int = 1) -> None:
            print("serving on", port)

        @sub.command()
        def create() -> None:
            raise ValueError("the plan names no learner")

        @sub.command()
        def show() -> None:
            import fastapi_that_is_not_there
        app.add_typer(sub, name="run")
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    rooms(monkeypatch, coordinator="room_of_tests:app")
    assert quorate("serve", "--port", "7") == 0
    assert capsys.readouterr().out == "serving on 7\n"
    assert quorate("run", "create") == 1
    assert capsys.readouterr().err == "Error: the plan names no learner\n"
    assert quorate("run", "show") == 1
    assert "fastapi_that_is_not_there" in capsys.readouterr().err


def test_a_broken_room_leaves_the_device_its_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "room_that_breaks.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    rooms(monkeypatch, coordinator="room_that_breaks:app")
    assert quorate("--help") == 0
    output = capsys.readouterr()
    assert "device" in output.out
    assert "The commands of coordinator cannot be loaded" in output.err


def test_device_commands_import_no_other_room() -> None:
    code = (
        "import sys; from client_sdk import cli\n"
        "try: cli.main(['device', 'history', '--help'])\n"
        "except SystemExit: pass\n"
        "bad = {'torch', 'fastapi', 'sqlalchemy', 'flwr', 'coordinator', 'simulation'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("statu",), "No such command 'statu'. Did you mean 'status'? See 'quorate --help'."),
        (("plan", "chek"), "No such command 'chek'. Did you mean 'check', 'schema'? See 'quorate plan --help'."),
        (
            ("device", "--max-epoch", "x"),
            "No such option '--max-epoch'. Did you mean '--max-epochs'? See 'quorate device --help'.",
        ),
        (("xyzzy",), "No such command 'xyzzy'. See 'quorate --help'."),
    ],
)
def test_a_mistyped_command_or_option_names_the_near_ones_once(
    words: tuple[str, ...], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quorate(*words) == 2
    assert capsys.readouterr().err == f"Error: {near}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("quorate st", {"status"}),
        ("quorate plan ", {"check", "cohort", "schema"}),
        ("quorate run create --s", {"--seed", "--set", "--statistic"}),
    ],
)
def test_a_shell_completes_commands_of_all_packages_and_their_options(words: str, offered: set[str]) -> None:
    asked = {"_QUORATE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    ran = subprocess.run(
        [sys.executable, "-m", "quorate"],
        env={**os.environ, **asked}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (set(ran.stdout.split()), ran.stderr) == (offered, "")


def test_help_shows_options_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """typer 0.26 shows types as ``<str>`` and arguments in braces: pyproject.toml bounds it."""
    assert quorate("device", "--help") == 0
    shown = capsys.readouterr().out
    assert "URL" in shown
    assert "<" not in shown.replace("<=", "")
    assert "{" not in shown
