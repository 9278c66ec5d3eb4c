"""The command line of ``quorate``, called in this process."""

from __future__ import annotations

import pytest

from client_sdk import cli


def quorate(*arguments: str) -> int:
    """Exit code of the command, run in this process."""
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    return int(end.value.code or 0)
