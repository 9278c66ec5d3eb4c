"""Opens a coordinator's data folder for reading (nothing is made, migrated or locked) or for writing.

SQLAlchemy is imported when a folder is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.blobs import BlobError, BlobFolder, FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE, FolderError, database_url, locked
from coordinator.store import Store, StoreError, open_store
from coordinator.store.port import Reader

if TYPE_CHECKING:
    from coordinator.store.sql import SqlStore


class HistoryError(LookupError):
    """Something is missing, or cannot be read or stored; the message is one sentence with the fix."""


def reading(folder: Path) -> tuple[SqlStore, BlobFolder]:
    """The folder's database and blobs, for reading. A coordinator may use the folder at the same time."""
    from coordinator.store.migrate import newest, revision
    from coordinator.store.sql import SqlStore

    if not folder.exists():
        raise HistoryError(f"There is no folder {folder}: give the data folder of a coordinator or a simulation.")
    if not (folder / DATABASE_FILE).is_file():
        raise HistoryError(
            f"The folder {folder} holds no {DATABASE_FILE}: it is not a data folder of a coordinator or a simulation."
        )
    try:
        store = SqlStore(database_url(folder))
    except StoreError as error:
        raise HistoryError(f"The database of {folder} cannot be read: {error}") from None
    try:
        found = revision(store.engine)
    except StoreError as error:
        store.close()
        raise HistoryError(f"The database of {folder} cannot be read: {error}") from None
    if found != newest():
        store.close()
        what = "is no database of Quorate" if found is None else f"has schema {found}; this version reads {newest()}"
        raise HistoryError(f"{folder / DATABASE_FILE} {what}: 'quorate serve' migrates an older one.")
    return store, BlobFolder(folder / BLOBS_FOLDER)


@contextmanager
def writing(folder: Path) -> Iterator[tuple[Store, FileBlobs]]:
    """The folder's database and blobs, made where they are missing, locked against servers and other simulations."""
    try:
        with locked(folder):
            store = open_store(database_url(folder))
            try:
                yield store, FileBlobs(folder / BLOBS_FOLDER)
            finally:
                store.close()
    except (FolderError, StoreError, BlobError) as error:
        raise HistoryError(str(error)) from error


def pick(reader: Reader, run: str | None, place: object) -> str:
    """The run of this name, or the only run where ``run`` is None."""
    names = reader.run_ids()
    if not names:
        raise HistoryError(f"There is no run in {place} yet.")
    if run is None and len(names) > 1:
        raise HistoryError(f"There are several runs in {place}: say which, run={' or '.join(map(repr, names))}.")
    if run is not None and run not in names:
        raise HistoryError(f"There is no run {run!r} in {place}; there is {', '.join(names)}.")
    return run or names[0]
