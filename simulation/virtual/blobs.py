"""The blobs of a simulation: files that are deleted only after the rows of the folder do not name them any more.

The coordinator has its rows in memory and deletes what they no longer need. The folder is updated after each round, so
a simulation that is interrupted in between resumes from older rows.
"""

from __future__ import annotations

import os
from pathlib import Path

from coordinator.blobs import FileBlobs
from coordinator.blobs.files import FileSpool
from coordinator.datafolder import make_folder
from simulation.virtual.temporary import TemporaryFolder


class PatientBlobs(FileBlobs):
    """``delete`` only marks a blob; ``delete_marked`` deletes the marked blobs. ``keep`` waits until the others are on
    the disk: before that, a power loss may lose them."""

    def __init__(self, folder: Path | str) -> None:
        super().__init__(folder, durable=False)
        self._going: set[str] = set()
        self._new: set[str] = set()

    def spool(self, limit: int | None = None) -> FileSpool:
        return _NotedSpool(self, limit)

    def note(self, digest: str) -> None:
        """This blob has been stored."""
        self._new.add(digest)

    def delete(self, digest: str) -> None:
        self._going.add(digest)

    def keep(self) -> None:
        """Waits until the blobs are on the disk that were stored since the last call and are not marked."""
        make_folder(self.folder)
        files = [
            path for digest in sorted(self._new - self._going) if (path := self.folder / digest[:2] / digest).exists()
        ]
        for path in (*files, *sorted({file.parent for file in files}), self.folder):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self._new.clear()

    def delete_marked(self) -> None:
        """Deletes the marked blobs."""
        for digest in sorted(self._going):
            super().delete(digest)
        self._going.clear()


class _NotedSpool(FileSpool):
    def __init__(self, owner: PatientBlobs, limit: int | None) -> None:
        super().__init__(owner, limit)
        self._patient = owner

    def commit(self, expected: str | None = None) -> str:
        digest = super().commit(expected)
        self._patient.note(digest)
        return digest


class TemporaryBlobs(PatientBlobs):
    """Blobs in a folder that is deleted with its last reader."""

    def __init__(self) -> None:
        self._temporary = TemporaryFolder("quorate-simulation-")
        super().__init__(Path(self._temporary.name) / "blobs")

    def has(self, digest: str) -> bool:
        """No other process writes here, so the disk is asked only about folders that this one has made: a round's
        updates, which were never written, are deleted at its end."""
        return digest[:2] in self._prefixes and super().has(digest)

    def delete(self, digest: str) -> None:
        if digest[:2] in self._prefixes:
            super().delete(digest)
