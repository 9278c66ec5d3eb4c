"""Command lines of templates, held against the real options of ``quorate datacenter``."""

from __future__ import annotations

from typing import Any

import typer

from coordinator.datacenter.cli import app


def options_of(words: list[str]) -> dict[str, Any]:
    """The options of ``datacenter train ...`` (or join, follow) by name. An error of click where one is unknown, lacks
    its value or is missing."""
    train_join_or_follow = command(*words[:2])
    params: dict[str, Any] = train_join_or_follow.make_context(words[1], words[2:]).params
    return params


def command(*names: str) -> Any:
    """The command of these names, as click has it: ``command("datacenter", "train")``."""
    found: Any = typer.main.get_command(app)
    for name in names:
        found = found.commands[name]
    return found
