"""Files with enrolment tokens for commands."""

from __future__ import annotations

import os
from pathlib import Path

from tests.client_sdk.http.http_authority import shared


def token_file(text: str | None = None, mode: int = 0o600) -> str:
    """The name of a file in the working folder with this text; without one, with a token of the shared authority."""
    path = Path("device.token")
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write((shared().text if text is None else text) + "\n")
    path.chmod(mode)
    return str(path)
