"""Every command's help shows each text as it was written, brackets and all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.main import get_command

from client_sdk import cli
from client_sdk.cli import literal
from tests.client_sdk.commands.run_cli import quorate


def every(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command and group, by its words after ``quorate``."""
    yield words, command
    if hasattr(command, "commands"):
        context = command.make_context("quorate", [], resilient_parsing=True)
        for name in command.list_commands(context):
            yield from every(command.get_command(context, name), (*words, name))


COMMANDS = dict(every(get_command(cli.app)))


def plain(text: str) -> str:
    """One line, without what a box is drawn with, and without the backslashes that keep brackets."""
    return " ".join(re.sub(r"[│╭╮╰╯─\x08]", " ", text).replace("\\[", "[").split())


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is folded or cut."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 3000)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert quorate(*words, "--help") == 0
    return plain(capsys.readouterr().out)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_every_text(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    command, found = COMMANDS[words], shown(capsys, *words)
    texts = [command.help, command.epilog, *(parameter.help for parameter in command.params)]
    texts += [getattr(parameter, "metavar", None) for parameter in command.params]
    assert [text for text in texts if text and plain(text) not in found] == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_and_json(words: tuple[str, ...]) -> None:
    command = COMMANDS[words]
    assert "Example: quorate" in f"{command.help} {command.epilog}"
    options = {option for parameter in command.params for option in parameter.opts}
    assert hasattr(command, "commands") or "--json" in options or words == ("plan", "schema"), "that is JSON"


def test_help_of_simulate_names_the_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Of a plan with [secure]: masked, really" in shown(capsys, "simulate")
    assert "for a plan with [datacenter];" in shown(capsys, "simulate")


@pytest.mark.parametrize("text", ["a [bold]b[/bold]", r"a \[b] c", "[NAME] [/] [0] []", "x[a][b]"])
def test_any_text_survives(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer(add_completion=False)
    app.command(help=f"H {text}", epilog=f"E {text}")(lambda: None)
    command = literal(literal(get_command(app)))
    with pytest.raises(SystemExit):
        command(["--help"])
    found = " ".join(capsys.readouterr().out.split())
    assert f"H {text}" in found
    assert f"E {text}" in found
