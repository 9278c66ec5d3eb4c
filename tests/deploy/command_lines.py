"""Command lines of pages and templates, held against the real options of ``quorate datacenter``."""

from __future__ import annotations

from typing import Any

import typer
from click import Group

from coordinator.datacenter.cli import app


def options_of(words: list[str]) -> dict[str, Any]:
    """The options of ``datacenter train ...`` (or join, follow) by name. A click.UsageError where one is unknown, lacks
    its value or is missing."""
    command = typer.main.get_command(app)
    for place, word in enumerate(words):
        if not isinstance(command, Group):
            return command.make_context(words[place - 1], words[place:]).params
        command = command.commands[word]
    raise ValueError(f"{words} name no command")
