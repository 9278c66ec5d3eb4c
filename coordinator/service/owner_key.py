"""The owner's key of a data folder: made when the folder is first served, and again where it was revoked.

Whoever can read the file is an owner. The commands of the same user on this machine find it by themselves
(``client_sdk.http.operator_key``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from client_sdk.http.operator_key import forget_key, note_key, read_key
from client_sdk.protocol.problems import ProblemError
from coordinator.access import OperatorAccess
from coordinator.datafolder import write_private

OWNER_KEY_FILE = "owner-key"
log = structlog.get_logger("coordinator.service")


def owner_key(folder: Path, access: OperatorAccess) -> Path:
    """Returns the file with a valid owner's key of this coordinator; draws one where there is none. OSError,
    StoreError."""
    path = folder / OWNER_KEY_FILE
    with suppress(ValueError, ProblemError):
        access.keys.operator(read_key(path))
        return path
    made = access.keys.create_owner("quorate serve", f"{OWNER_KEY_FILE} of {folder.resolve()}"[:120])
    write_secret(path, made.text)
    return path


def login_link(url: str, key_file: Path, access: OperatorAccess) -> str:
    """A link with which a browser logs in as the owner of the file's key, once and within five minutes."""
    owner = access.keys.operator(read_key(key_file))
    access.audit.record("quorate serve", "link.create", owner.id)
    return access.sessions.create_link(owner).url(url)


def write_secret(path: Path, text: str) -> None:
    """Writes one line that only the file's owner can read, and waits until it is on the disk. OSError."""
    write_private(path, f"{text}\n".encode())


@contextmanager
def noted(url: str, key_file: Path) -> Iterator[None]:
    """Lets commands of this user find the key while the block runs. Where that cannot be noted, the log says so."""
    try:
        note_key(url, key_file)
    except (OSError, RuntimeError) as error:
        log.warning("commands do not find the owner's key by themselves; give them --key-file", error=str(error))
    try:
        yield
    finally:
        with suppress(OSError, RuntimeError):
            forget_key(url)
