"""Folders for temporary files that do not outlive their process for long.

A killed process deletes nothing. So each folder has a file ``lock``, which its process holds, and the next one that
makes such a folder deletes those that nobody holds any more: also of a process in another container with the same
folder for temporary files, whose numbers of processes mean nothing here. The lock has its name only once it is held.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

_LOCK = "lock"


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A new folder, which is deleted with this object."""

    def __init__(self, prefix: str) -> None:
        """``prefix``: of its name, the same for all whose left-over folders are deleted."""
        _sweep(prefix)
        super().__init__(prefix=prefix, ignore_cleanup_errors=True)
        self._held: IO[bytes] = (Path(self.name) / f"{_LOCK}.new").open("wb")
        fcntl.flock(self._held, fcntl.LOCK_EX)
        (Path(self.name) / f"{_LOCK}.new").rename(Path(self.name) / _LOCK)

    def cleanup(self) -> None:
        super().cleanup()
        self._held.close()


def _sweep(prefix: str) -> None:
    """Deletes this user's folders of that prefix that no process holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            with (path / _LOCK).open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # it has no lock, a process holds it, or another one deletes it
            continue
