"""The URL of a database on a command line: it has no password, since every user of a machine can read command lines."""

from __future__ import annotations

import re

from client_sdk.terminal import fail

_PASSWORD = re.compile(r"://[^/?#]*:[^/?#]+@|[?&]password=")


def refuse_password(url: str | None) -> None:
    """Failure where the URL has a password."""
    if url is not None and _PASSWORD.search(url):
        fail(
            "The database's URL has a password, which every user of this machine could read on a command line: "
            "leave it out, and give it in PGPASSWORD or ~/.pgpass, or for 'quorate serve' the whole URL in "
            "QUORATE_DATABASE."
        )
