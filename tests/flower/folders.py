"""Folders of Flower apps, written for tests: in the layout that flwr 1.41 validates and in two older ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

LAYOUTS = ("format 1", "no format", "federations")

SERVER = """
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    pass
"""
CLIENT = """
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def query(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)
"""


def write_app(
    folder: Path,
    package: str = "tiny",
    *,
    server: str = SERVER,
    client: str = CLIENT,
    config: Mapping[str, bool | int | float | str] | None = None,
    layout: str = "format 1",
) -> Path:
    """Write an app whose modules are ``package.server_app`` and ``package.client_app``; return its folder."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").touch()
    (folder / package / "server_app.py").write_text(server)
    (folder / package / "client_app.py").write_text(client)
    (folder / "LICENSE").write_text("Apache-2.0\n")
    lines = [
        "[project]",
        f'name = "{package}"',
        'version = "1.2.0"',
        'license = { file = "LICENSE" }' if layout == "format 1" else 'license = "Apache-2.0"',
        'dependencies = ["flwr>=1.41"]',
        "[tool.flwr.app]",
        'publisher = "tests"',
        *(["fab-format-version = 1", 'flwr-version-target = "1.41.0"'] if layout == "format 1" else []),
        "[tool.flwr.app.components]",
        f'serverapp = "{package}.server_app:app"',
        f'clientapp = "{package}.client_app:app"',
        "[tool.flwr.app.config]",
        *(f"{key} = {json.dumps(value)}" for key, value in (config or {}).items()),
    ]
    if layout == "federations":
        lines += ["[tool.flwr.federations]", 'default = "local"', "[tool.flwr.federations.local]"]
        lines += ["options.num-supernodes = 4"]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n")
    return folder
