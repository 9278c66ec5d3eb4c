"""Bugs in what is done with files that have damaged bits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from coordinator.blobs import Gone, blocks
from coordinator.blobs.blocks import CheckedFile
from coordinator.blobs.files import FileBlobs
from coordinator.blobs.port import damaged, is_digest
from coordinator.runtime import commits
from coordinator.runtime.commits import Commits
from tests.explorer.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]
_FILES: dict[str, Any] = {"blobs": "files", "replicas": 1, "lost_replicas": 0, "storm_s": 60.0}


@mutant("blocks-not-checked", "whole-blob", focus=("bit-flip", "collecting"), **_FILES)
def _blocks_not_checked() -> Patches:
    """A reader gives the bytes of a stored file as they are."""
    return [(CheckedFile, "_checked", lambda self, index: self._read(index))]


@mutant("first-block-checked", "whole-blob", focus=("bit-flip", "collecting"), **_FILES)
def _first_block_checked() -> Patches:
    """Of a file of several blocks only the first one is checked."""
    checked = CheckedFile._checked
    return [(CheckedFile, "_checked", lambda self, index: self._read(index) if index else checked(self, index))]


@mutant("repaired-stays-damaged", "whole-blob", focus=("bit-flip", "collecting"), **_FILES)
def _repaired_stays_damaged() -> Patches:
    """A blob whose right bytes are back is named as damaged until the process ends."""
    return [(FileBlobs, "damaged", lambda self: sorted(self._damaged))]


@mutant("damaged-not-named", "whole-blob", focus=("bit-flip", "collecting"), **_FILES)
def _damaged_not_named() -> Patches:
    """A damaged file is not read, and nobody is told which one it is."""

    def quiet(self: FileBlobs, digest: str, inode: int) -> None:
        name = Path(self._file(digest))
        name.replace(f"{name}.damaged")

    return [(FileBlobs, "_mark", quiet), (FileBlobs, "_gone", lambda self, digest: damaged(digest))]


@mutant("damaged-not-replaced", "whole-blob", focus=("bit-flip", "idle"), **_FILES)
def _damaged_not_replaced() -> Patches:
    """The right bytes are sent again, and the file under their digest stays as it is."""
    return [(FileBlobs, "is_whole", lambda self, digest: self.has(digest))]


@mutant("sums-condemn", "whole-blob", focus=("bit-flip", "collecting"), **_FILES)
def _sums_condemn() -> Patches:
    """Where a file of sums is damaged, the blob beside it is taken as damaged."""

    judge = FileBlobs._judge

    def believe(self: FileBlobs, digest: str, file: Any) -> blocks.BlockTags:
        path, found = Path(self._file(digest) + ".sums"), os.fstat(file.fileno())
        if path.exists() and blocks.read_sums(path, digest, found.st_size) is None:
            self._mark(digest, found.st_ino)
            raise damaged(digest)
        return judge(self, digest, file)

    return [(FileBlobs, "_judge", believe)]


@mutant("damaged-model-gives-up", "ack-durable", focus=("bit-flip", "committing"), **_FILES)
def _damaged_model_gives_up() -> Patches:
    """A commit whose parent is damaged fails, and its updates are lost, though the right bytes come back."""
    commit = Commits.commit

    def at_once(self: Commits, run: str, round: int, make: Any) -> bool:
        def made() -> Any:
            try:
                return make()
            except Gone as error:
                raise commits.CannotAggregate(str(error)) from None

        return commit(self, run, round, made)

    return [(Commits, "commit", at_once)]


@mutant("damaged-counts-as-there", "whole-blob", focus=("bit-flip", "collecting"), **_FILES)
def _damaged_counts_as_there() -> Patches:
    """A blob that is damaged is taken as stored, so rounds begin without their model."""

    def size(self: FileBlobs, digest: str) -> int:
        whole = Path(self._file(digest))
        return (whole if whole.exists() else Path(f"{whole}.damaged")).stat().st_size

    def has(self: FileBlobs, digest: str) -> bool:
        return is_digest(digest) and any(Path(self._file(digest) + tail).exists() for tail in ("", ".damaged"))

    def damaged(self: FileBlobs) -> list[str]:
        return sorted(digest for digest in self._damaged if not Path(self._file(digest)).exists())

    return [(FileBlobs, "size", size), (FileBlobs, "has", has), (FileBlobs, "damaged", damaged)]


@mutant("damaged-file-left", "retention", focus=("bit-flip", "collecting"), **_FILES)
def _damaged_file_left() -> Patches:
    """The deletion of a raw update leaves the file that was found damaged."""

    def delete(self: FileBlobs, digest: str) -> None:
        for tail in (".sums", ""):
            Path(self._file(digest) + tail).unlink(missing_ok=True)

    return [(FileBlobs, "delete", delete)]
