"""Help texts are shown as they are written: typer hands them to rich, which would take ``[secure]`` for a style."""

from __future__ import annotations

import re
from typing import Any

_TAG = re.compile(r"(\\*)(\[[a-z#/@][^[]*?\])")
"""What rich takes for a tag, as in its own ``rich.markup.escape``, which takes long to import."""
_TEXTS = ("help", "short_help", "epilog")


def literal(command: Any) -> Any:
    """The command, or the group and all of its commands, with texts in which rich finds no tags. May be called again
    for the same command."""
    if getattr(command, "rich_markup_mode", None) == "rich" and not hasattr(command, "texts_are_literal"):
        command.texts_are_literal = True
        for holder in (command, *command.params):
            for name in _TEXTS:
                if text := getattr(holder, name, None):
                    setattr(holder, name, _TAG.sub(r"\1\1\\\2", text))
    for inner in getattr(command, "commands", {}).values():
        literal(inner)
    return command
