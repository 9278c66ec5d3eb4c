"""The word ``quorate``, as a script and as ``python -m quorate``: looks at the import path, then runs a command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from quorate import check_client_sdk


def main() -> None:
    """Run ``client_sdk.cli``; exit code 1 and one sentence where a file of the user's hides the package."""
    try:
        check_client_sdk()
    except ImportError as error:
        sys.exit(f"Error: {error}")
    _keep_folder_from_children()
    from client_sdk.cli import main as commands

    commands()


def _keep_folder_from_children() -> None:
    """Let child processes import from where this process does.

    A console script does not look for modules in the working folder. ``python -m``, by which child processes start,
    does: a ``simulation.py`` that lies there would run in them in place of ours.
    """
    if not {"", str(Path.cwd())} & set(sys.path):
        os.environ.setdefault("PYTHONSAFEPATH", "1")


if __name__ == "__main__":
    main()
