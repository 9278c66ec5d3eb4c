"""A coordinator's data folder: what lies in it, and the lock by which one process at a time writes to it.

::

    quorate.sqlite3     the database
    blobs/              checkpoints, updates, lists of who waited, each under its digest
    enrolment-token     what devices show to enrol (made by ``quorate serve``)
    serve.lock          locked by whoever writes; holds its process id

Knows files; has never heard of servers, of runs, or of what is in the database.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DATABASE_FILE = "quorate.sqlite3"
BLOBS_FOLDER = "blobs"
LOCK_FILE = "serve.lock"


class FolderError(Exception):
    """The folder cannot be used; the message is one sentence with the fix."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder, made (mode 0700) and locked for this process. The lock ends with the block, or with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FolderError(
            f"The data folder {folder} cannot be used ({error.strerror}); give one that you may write to."
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
            raise FolderError(
                f"Another coordinator or simulation (process {owner or 'unknown'}) writes to the folder {folder}; "
                "stop it, or give another folder."
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def database_url(folder: Path) -> str:
    """The SQLAlchemy URL of the folder's database."""
    return f"sqlite:///{folder.resolve() / DATABASE_FILE}"
