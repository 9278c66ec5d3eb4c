"""The option ``--ca FILE`` of every command that has ``--coordinator``: whose certificates are trusted.

It is added in one place when a command is looked up, so that no command can lack it. The file goes into QUORATE_CA,
where ``http.transport.open_http`` finds it, also in processes that the command starts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from typer.core import TyperOption

_ADDRESS = "--coordinator"
_VARIABLE = "QUORATE_CA"


def with_ca(command: Any) -> Any:
    """The command, or the group and all of its commands, with ``--ca`` beside ``--coordinator``."""
    for inner in getattr(command, "commands", {}).values():
        with_ca(inner)
    names = {option for parameter in command.params for option in parameter.opts}
    if _ADDRESS in names and "--ca" not in names:
        after = next(place for place, parameter in enumerate(command.params) if _ADDRESS in parameter.opts)
        command.params.insert(after + 1, _option())
    return command


def _option() -> TyperOption:
    return TyperOption(
        param_decls=["--ca"],
        metavar="FILE",
        envvar=_VARIABLE,
        show_envvar=True,
        expose_value=False,
        callback=_take,
        help="The certificate of the private authority that vouches for the coordinator's, in PEM form.",
    )


def _take(context: Any, parameter: Any, file: str | None) -> None:
    """Checks the file before the command begins. ValueError where it holds no certificate."""
    if file:
        from client_sdk.http.transport import trust

        trust(file)
        os.environ[_VARIABLE] = str(Path(file).absolute())
