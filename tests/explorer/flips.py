"""Bits that flip in stored files, and the right bytes that come back some time later.

A flip leaves the file's size and times as they were. It strikes at any time, right before a file is opened, and right
before a piece of it is read. Whatever the product reads is compared with the right bytes, and a file that it refuses as
damaged must be named at once.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self, cast

from coordinator.blobs import Blobs, Damaged, FileBlobs, Gone
from tests.explorer.faults import Broken
from tests.explorer.world import World

EACH_S = 2.0
"""Seconds between two looks for a file whose bit may flip."""
BACK_S = (0.6, 4.0, 20.0, 90.0)
"""After how many seconds at most the right bytes are stored again, in the storm: one of these."""
DIED = 0.7
"""How often one flips, in private rounds, when a process dies while it makes a model."""
READS = 4
"""How many reads of a blob a flip may precede."""
DAMAGED = ".damaged"


class ReadingProcess(Protocol):
    """The process that reads."""

    def strikes(self, fault: str, where: str) -> bool: ...


class Flips:
    """``right``: the right bytes of each blob that ever had a flip; ``wrong``: of which other ones are stored now."""

    def __init__(self, world: World, folder: Path, looked_at: Callable[[], AbstractContextManager[None]]) -> None:
        self._world = world
        self._looked_at = looked_at
        self._blobs = FileBlobs(folder)
        """As another process has the folder open, such as one that restores a backup."""
        self.right: dict[str, bytes] = {}
        self.wrong: set[str] = set()
        self._reads: Counter[str] = Counter()
        self._told: set[str] = set()
        """Of ``wrong``, those that the product's log has named as damaged since the flip."""
        self._crashes: dict[str, int] = {}
        """Of ``wrong``, how many processes had died before the flip."""
        self.put: Callable[[str, bytes], bool] = lambda digest, right: False
        """An operator stores the bytes of a checkpoint again; False where none does."""

    # ------------------------------------------------------------ the fault

    def plan_storm(self) -> None:
        """A bit of any file may flip at any time, also of one that has the sums of a blob's blocks."""
        for number in range(int(self._world.shape.storm_s / EACH_S)):
            self._world.agenda.after(number * EACH_S, self._strike_any)

    def _strike_any(self) -> None:
        if self._world.strikes("bit-flip", "disk"):
            files = sorted(file for file in self._blobs.folder.glob("??/*") if file.suffix != DAMAGED)
            if files:
                self._flip(self._world.chance.pick("flipped", files))

    def strike(self, digest: str, reader: ReadingProcess, where: str) -> None:
        """The process is about to read this blob. What is read often is struck no more often than what is read once."""
        self._reads[digest] += 1
        if self._reads[digest] <= READS and reader.strikes("bit-flip", where):
            self._flip(self._file(digest))

    def died(self, digests: Sequence[str]) -> None:
        """A process has died while it made a model of these updates: one of them may be damaged when it starts again,
        and the round has another list."""
        world = self._world
        if digests and world.shape.private and world.stormy and world.chance.strikes("bit-flip", "died", DIED):
            self._flip(self._file(self._world.chance.pick("flipped", digests)))

    def _flip(self, file: Path) -> None:
        if not file.is_file() or not (data := bytearray(file.read_bytes())):
            return
        world, digest = self._world, file.name
        if not file.suffix:
            if hashlib.sha256(data).hexdigest() != digest:
                return  # a loss of power has torn it, or it has flipped already
            self.right[digest] = bytes(data)
            self.wrong.add(digest)
            self._told.discard(digest)
            self._crashes[digest] = world.tally.crashes
            world.agenda.after(
                world.chance.between("back", 0.1, world.chance.pick("back", BACK_S)), self._put_back, digest
            )
        bit = world.chance.below("bit", 8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        _overwrite(file, data)
        world.log(f"bit {bit} of {digest} flips")

    def heal(self) -> None:
        """The storm is over: all right bytes are stored again."""
        for digest in sorted(self.wrong):
            self._put_back(digest, by_operator=False)

    def _put_back(self, digest: str, *, by_operator: bool = True) -> None:
        if self._look(digest) != "wrong":
            return
        file, right = self._file(digest), self.right[digest]
        how = self._world.chance.pick("put back", ("in place", "copied", "stored", "put"))
        self._world.log(f"the right bytes of {digest} come back: {how}")
        if how == "put" and by_operator and self.put(digest, right):
            return
        with self._looked_at():
            if how == "in place" and file.exists():
                _overwrite(file, right)
            elif how == "copied":
                self._copy(file, right)
            else:
                self._blobs.put(right)
        self.wrong.discard(digest)

    def _copy(self, file: Path, data: bytes) -> None:
        """Somebody copies a good file to its place, and leaves what is beside it."""
        copy = self._blobs.folder / "spool" / secrets.token_hex(16)
        with copy.open("wb") as opened:
            opened.write(data)
            opened.flush()
            self._blobs.sync(opened.fileno())
        copy.replace(file)
        self._blobs.sync_folder(file.parent)

    # ------------------------------------------------------------ what the checks read

    def bytes_of(self, digest: str) -> bytes | None:
        """The right bytes of a blob that has had a flip and is stored, rightly or not; else None."""
        return self.right[digest] if digest in self.right and self._look(digest) != "deleted" else None

    def has(self, digest: str) -> bool:
        """Whether a file of the blob is there, rightly or not."""
        file = self._file(digest)
        return file.exists() or file.with_name(digest + DAMAGED).exists()

    def is_marked(self, digest: str) -> bool:
        """Whether the product has found that its bytes are wrong, and they are not back."""
        return digest in self.wrong and not self._file(digest).exists()

    def digests(self) -> Iterator[str]:
        """Those of all files, also of damaged ones."""
        names = {file.name.removesuffix(DAMAGED) for file in self._blobs.folder.glob("??/*")}
        return iter(sorted(name for name in names if "." not in name))

    def _look(self, digest: str) -> str:
        file = self._file(digest)
        if digest in self.wrong and file.exists() and file.read_bytes() == self.right[digest]:
            self.wrong.discard(digest)  # the product has stored it again
        if not self.has(digest):
            self.wrong.discard(digest)
            return "deleted"
        return "wrong" if digest in self.wrong else "right"

    def _file(self, digest: str) -> Path:
        return self._blobs.folder / digest[:2] / digest

    # ------------------------------------------------------------ what the product does

    def told(self, line: str) -> None:
        """The product's log has this line about a blob."""
        self._world.log(line)
        self._told |= {digest for digest in self.wrong if f"{digest} is damaged" in line}

    def open(self, blobs: Blobs, digest: str, reader: ReadingProcess) -> BinaryIO:
        """The product's ``open``, watched."""
        self.strike(digest, reader, "open")
        was = self._look(digest)
        try:
            file = blobs.open(digest)
        except Gone as error:
            if was == "right":
                raise Broken("whole-blob", f"the file has its digest, and is not read: {error}") from None
            self.require_named(digest, blobs, error)
            raise
        self.strike(digest, reader, "read")
        return cast("BinaryIO", WatchedFile(self, blobs, digest, file))

    def require_named(self, digest: str, blobs: Blobs, error: Gone) -> None:
        """A damaged file that the product does not read is named where operators look."""
        if self._look(digest) != "wrong":
            return
        if not isinstance(error, Damaged) or digest not in blobs.damaged():
            raise Broken("whole-blob", f"the damaged file {digest} is not named: {error}, {blobs.damaged()}")
        if digest not in self._told and self._crashes[digest] == self._world.tally.crashes:
            raise Broken("whole-blob", f"the damaged file {digest} is not named in the log")

    def require_right(self, digest: str, at: int, data: bytes | memoryview) -> None:
        """The product has read these bytes."""
        right = self.right.get(digest)
        if right is not None and right[at : at + len(data)] != data:
            raise Broken("whole-blob", f"wrong bytes of the damaged file {digest} are used")

    def settled(self, blobs: Blobs) -> None:
        """At the end nothing is damaged, and a process names nothing any more."""
        left = [digest for digest in blobs.damaged() if digest in self.right and self._look(digest) == "right"]
        if left:
            raise Broken("whole-blob", f"{left} are repaired, and still named as damaged")


class WatchedFile:
    """A file that the product has opened: what it gives is compared with the right bytes."""

    def __init__(self, flips: Flips, blobs: Blobs, digest: str, file: BinaryIO) -> None:
        self._flips, self._blobs, self._digest, self._file = flips, blobs, digest, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        at = self._file.tell()
        return cast("bytes", self._watched(at, lambda: self._file.read(size)))

    def readinto(self, buffer: Any) -> int:
        at, view = self._file.tell(), memoryview(buffer).cast("B")
        return len(self._watched(at, lambda: view[: self._file.readinto(view)]))  # type: ignore[attr-defined]

    def _watched(self, at: int, read: Callable[[], Any]) -> Any:
        try:
            data = read()
        except Gone as error:
            self._flips.require_named(self._digest, self._blobs, error)
            raise
        self._flips.require_right(self._digest, at, data)
        return data


def _overwrite(file: Path, data: bytes | bytearray) -> None:
    """Changes bytes of the file; its times stay."""
    found = file.stat()
    with file.open("r+b") as opened:
        opened.write(data)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
