"""The word ``quorate``, as a script and as ``python -m quorate``: looks at the import path, then runs a command."""

from __future__ import annotations

import os
import sys

from quorate import TYPE_CHECKING, check_client_sdk

if TYPE_CHECKING:
    import signal
    from types import FrameType
else:
    import _signal as signal  # the part of it that is in Python itself: ``signal`` imports enum and collections


def main() -> None:
    """Run ``client_sdk.cli``; exit code 1 and one sentence where a file of the user's hides the package.

    Ctrl-C ends it with 130 and without a traceback at any time: during the imports, in the command, and while the
    interpreter shuts down. So this file and the package import nothing before the handler that takes time.
    """
    signal.signal(signal.SIGINT, _end_at_once)
    try:
        check_client_sdk()
    except ImportError as error:
        sys.exit(f"Error: {error}")
    _keep_folder_from_children()
    from client_sdk.cli import main as commands

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        commands()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, _end_at_once)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C while no command runs: there is nothing to finish."""
    os._exit(130)


def _keep_folder_from_children() -> None:
    """Let child processes import from where this process does.

    A console script does not look for modules in the working folder. ``python -m``, by which child processes start,
    does: a ``simulation.py`` that lies there would run in them in place of ours.
    """
    from pathlib import Path

    if not {"", str(Path.cwd())} & set(sys.path):
        os.environ.setdefault("PYTHONSAFEPATH", "1")


if __name__ == "__main__":
    main()
