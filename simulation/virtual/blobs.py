"""The blobs of a simulation: files, of which none goes before the folder's rows have stopped naming it.

The coordinator has its rows in memory and deletes what they no longer need. The folder follows after each round,
so a simulation that is cut off in between goes on from older ones.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from coordinator.blobs import FileBlobs


class PatientBlobs(FileBlobs):
    """``delete`` only notes what is to go; ``let_go`` deletes it."""

    def __init__(self, folder: Path | str, *, durable: bool = True) -> None:
        super().__init__(folder, durable=durable)
        self._going: set[str] = set()

    def delete(self, digest: str) -> None:
        self._going.add(digest)

    def let_go(self) -> None:
        """Deletes what was to go."""
        for digest in sorted(self._going):
            super().delete(digest)
        self._going.clear()


class TemporaryBlobs(PatientBlobs):
    """Blobs in a folder that is deleted with the last who reads them."""

    def __init__(self) -> None:
        self._temporary = TemporaryDirectory(prefix="quorate-simulation-", ignore_cleanup_errors=True)
        super().__init__(self._temporary.name, durable=False)
