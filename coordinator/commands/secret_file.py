"""Secrets and command lines: a secret that a command makes goes into a new file, readable by its owner only and never
in place of another file. A password stands on no command line, since every user of a machine can read them."""

from __future__ import annotations

import os
import re
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


_PASSWORD = re.compile(r"://[^/?#]*:[^/?#]+@|[?&]password=")


def refuse_password(url: str | None) -> None:
    """Failure where the URL has a password."""
    if url is not None and _PASSWORD.search(url):
        fail(
            "The database's URL has a password, which every user of this machine could read on a command line: "
            "leave it out, and give it in PGPASSWORD or ~/.pgpass, or for 'quorate serve' the whole URL in "
            "QUORATE_DATABASE."
        )
