"""The layout of a coordinator's data folder, and the lock that lets one process at a time write to it.

::

    quorate.sqlite3     the database
    blobs/              checkpoints, longer updates and lists of waiting devices, each under its digest
    authority/          the authority inside (``quorate serve --dev-authority``), with its tokens
    audit-key.pem       the key that signs the audit (made by ``quorate serve``, unless a setting names another file)
    owner-key           an owner's API key (made by ``quorate serve``); whoever can read it is an owner
    RUN.noted.json      one client's training of a simulated run, for the call that resumes it
    serve.lock          locked by the process that writes; contains its process id
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
AUDIT_KEY_FILE = "audit-key.pem"
AUTHORITY_FOLDER = "authority"


def make_folder(folder: Path) -> None:
    """Makes the folder and its missing parents with mode 0700, and waits until their names are on the disk. OSError.

    The name is synced also where the folder was there: who made it may have died before that."""
    folder = folder.absolute()
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Waits until the names in the folder are on the disk; not where the folder may not be read. OSError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(path: Path, data: bytes) -> None:
    """Writes a file of mode 0600 whole, or not at all, and waits until it is on the disk. OSError."""
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)
    sync_folder(path.parent)


class FolderError(Exception):
    """The folder cannot be used. The message is one sentence with the fix."""


_LOCKS: set[int] = set()
"""The descriptors of this process's locks. Its forks close their copies: a fork may outlive the process, and the lock
would with it."""


def _close_locks() -> None:
    while _LOCKS:
        os.close(_LOCKS.pop())


os.register_at_fork(after_in_child=_close_locks)


@contextmanager
def locked(folder: Path, by: str = "coordinator or simulation") -> Iterator[None]:
    """Makes the folder (mode 0700) if it is missing and locks it until the block or the process ends. FolderError.
    ``by``: what locks it, for the error."""
    try:
        make_folder(folder)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FolderError(
            f"The data folder {folder} cannot be used ({error.strerror}); give one that is writable."
        ) from error
    _LOCKS.add(lock)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
            raise FolderError(
                f"Another {by} (process {owner or 'unknown'}) uses the folder {folder}; "
                "stop it, or give another folder."
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        if lock in _LOCKS:  # not in a fork
            _LOCKS.remove(lock)
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def database_url(folder: Path) -> str:
    """The SQLAlchemy URL of the folder's database."""
    return f"sqlite:///{folder.resolve() / DATABASE_FILE}"
