"""A new file for a secret that a command makes: readable by its owner only, and never in place of another file."""

from __future__ import annotations

import os
from pathlib import Path

from client_sdk.terminal import fail


def require_new(path: Path | None) -> None:
    """Failure where the file exists, or its folder does not. Before the secret is made. None: no file was asked for."""
    if path is not None and (path.exists() or not path.absolute().parent.is_dir()):
        fail(f"{path} exists, or has no folder: name a new file.")


def write_secret(path: Path, text: str) -> None:
    """Write a line into a new file with mode 0600. OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
