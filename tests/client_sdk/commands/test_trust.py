"""Every command that has ``--coordinator`` has ``--ca``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from client_sdk.cli import app


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    context = type("Context", (), {"obj": None})()
    names = group.list_commands(context) if not path else sorted(group.commands)
    for name in names:
        command = group.get_command(context, name) if not path else group.commands[name]
        yield f"{path} {name}".strip(), command
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}".strip())


def test_ca_stands_beside_coordinator_in_every_command() -> None:
    found = {
        name: [option for parameter in command.params for option in parameter.opts]
        for name, command in commands(get_command(app))
    }
    addressed = {name for name, options in found.items() if "--coordinator" in options}
    assert {"device", "evaluate", "status", "run create", "checkpoint get", "fleet", "datacenter join"} <= addressed
    assert addressed == {name for name, options in found.items() if "--ca" in options}
    assert all(found[name].count("--ca") == 1 for name in addressed)
