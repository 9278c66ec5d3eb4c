"""The blobs of a simulation: files that are deleted only after the rows of the folder do not name them any more.

The coordinator has its rows in memory and deletes what they no longer need. The folder is updated after each round, so
a simulation that is interrupted in between resumes from older rows.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from coordinator.blobs import FileBlobs


class PatientBlobs(FileBlobs):
    """``delete`` only marks a blob; ``delete_marked`` deletes the marked blobs."""

    def __init__(self, folder: Path | str, *, durable: bool = True) -> None:
        super().__init__(folder, durable=durable)
        self._going: set[str] = set()

    def delete(self, digest: str) -> None:
        self._going.add(digest)

    def delete_marked(self) -> None:
        """Deletes the marked blobs."""
        for digest in sorted(self._going):
            super().delete(digest)
        self._going.clear()


class TemporaryBlobs(PatientBlobs):
    """Blobs in a folder that is deleted with its last reader."""

    def __init__(self) -> None:
        self._temporary = TemporaryDirectory(prefix="quorate-simulation-", ignore_cleanup_errors=True)
        super().__init__(self._temporary.name, durable=False)

    def has(self, digest: str) -> bool:
        """No other process writes here, so the disk is asked only about folders that this one has made: a round's
        updates, which were never written, are deleted at its end."""
        return digest[:2] in self._prefixes and super().has(digest)
