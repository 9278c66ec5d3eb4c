"""Blobs as files in a folder. A blob is on the disk when ``FileSpool.commit`` returns, by this order of steps::

    write spool/<random>  ->  fsync it  ->  rename to <dd>/<digest>  ->  fsync folder <dd>
                                            (a new <dd> is made, and its parent fsynced, before the rename)

A crash at any point leaves either no file under the digest's name or the complete one, because the rename follows the
fsync. Files that a crash leaves in ``spool/`` are removed at the next start. Spool files of living processes are
locked and stay, so a second process may open the folder.

Beside a blob's file may lie two others, ``<digest>.sums`` and ``<digest>.damaged``:

- The sums of its blocks (``blocks``), where it has several. They follow the blob's rename and are not synced: what is
  lost is computed again. They are deleted before it.
- A file whose bytes do not have the digest any more is renamed to ``.damaged``: one step, which no crash can leave half
  done, and which every process that shares the folder sees. The blob is then damaged, not there, until its bytes are
  stored again, or somebody copies a good file to its name.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self, cast

from coordinator.blobs.blocks import (
    BLOCK,
    BlobHash,
    BlockTags,
    CheckedFile,
    Ranges,
    hash_file,
    read_sums,
    sums_bytes,
)
from coordinator.blobs.port import (
    BlobError,
    Damaged,
    DiskFull,
    check_complete,
    check_digest,
    check_limit,
    damaged,
    is_digest,
    missing,
)
from coordinator.datafolder import make_folder

_SPOOL = "spool"
_SUMS, _DAMAGED = ".sums", ".damaged"
"""What the names of the files beside a blob's end with."""
_IN_MEMORY = 64 * 1024
"""Bytes up to which a spool has no file."""
_KNOWN = 1024
"""Blobs of which the sums stay in memory: those of one block have no file of sums."""


class FileSpool:
    """The Spool port: in memory up to 64 KiB, and beyond that a file in ``spool/``, locked by this process until it is
    renamed or discarded. Short messages of devices are thus no file until they are
    stored: to make and delete one costs more than all else of a short request."""

    def __init__(self, owner: FileBlobs, limit: int | None) -> None:
        self._owner = owner
        self._limit = limit
        self._hash = BlobHash()
        self._memory: io.BytesIO | None = io.BytesIO()
        """The bytes as long as there is no file."""
        self._fd = -1
        self._file = Path()
        self._reader: BinaryIO | None = None
        self._complete = True
        self._committed = False
        self.repaired = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._discard()

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        view = memoryview(chunk).cast("B")
        complete, self._complete = self._complete, False
        check_limit(self.size + len(view), self._limit)
        self._hash.update(view)
        if self._memory is not None and self.size > _IN_MEMORY:
            self._make_file(self._memory)
        if self._memory is not None:
            self._memory.seek(0, os.SEEK_END)
            self._memory.write(view)
        else:
            self._append(view)
        self._complete = complete

    @property
    def digest(self) -> str:
        return self._hash.digest

    @property
    def size(self) -> int:
        return self._hash.size

    @property
    def handle(self) -> BinaryIO:
        if self._reader is None:
            self._reader = self._file.open("rb") if self._memory is None else io.BytesIO(self._memory.getvalue())
        return self._reader

    def commit(self, expected: str | None = None) -> str:
        digest = self.digest
        check_digest(digest, expected)
        if self._committed:
            return digest
        check_complete(self._complete)
        target = self._owner.folder / digest[:2] / digest
        with _plain_errors("a blob"):
            self._owner.make_prefix(digest[:2])
            if self._owner.is_whole(digest):
                with suppress(FileNotFoundError):
                    os.utime(target)
            else:
                if self._memory is not None:
                    self._make_file(self._memory)
                self._owner.sync(self._fd)
                self._file.replace(target)
                self._owner.write_sums(digest, self._hash)
            # Also for equal content: who renamed it may not have synced the folder yet, and this call acknowledges it.
            self._owner.sync_folder(target.parent)
            self.repaired = self._owner.note_whole(digest)  # until now its mark may be all there is
        self._discard()
        self._file, self._committed = target, True
        return digest

    def _make_file(self, memory: io.BytesIO) -> None:
        """Moves the bytes from memory into a file."""
        with _plain_errors("the spool"):
            self._fd, self._file = _new_spool_file(self._owner.folder / _SPOOL)
        self._memory = None
        complete, self._complete = self._complete, False
        self._append(memory.getbuffer())
        self._complete = complete

    def _append(self, view: memoryview) -> None:
        with _plain_errors("the spool"):
            while view:
                view = view[os.write(self._fd, view) :]

    def _discard(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._memory = None
        if self._fd >= 0:
            with suppress(OSError):
                self._file.unlink()
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1


class BlobFolder:
    """Reads the blobs of a folder of ``FileBlobs``, and changes nothing: no folder is made, no file is swept or marked.
    What is read is checked."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def has(self, digest: str) -> bool:
        return is_digest(digest) and os.path.isfile(self._file(digest))  # noqa: PTH113 - see _file

    def open(self, digest: str) -> BinaryIO:
        name = self._file(digest)
        with _plain_errors("a blob"):
            try:
                file = open(name, "rb", buffering=0)  # noqa: PTH123, SIM115 - see _file; the reader closes it
            except FileNotFoundError:
                raise self._gone(digest) from None
            try:
                size = os.fstat(file.fileno()).st_size
                sums = self._sums_of(digest, size) if size else None

                def judge() -> BlockTags:
                    return self._judge(digest, file)

                return cast("BinaryIO", CheckedFile(Ranges.of_file(file), digest, sums or judge(), judge))
            except BaseException:
                file.close()
                raise

    def write_sums(self, digest: str, found: BlobHash) -> BlockTags:
        """The sums of a blob that was read as a whole."""
        return found.end()

    def _sums_of(self, digest: str, size: int) -> BlockTags | None:
        return read_sums(Path(self._file(digest) + _SUMS), digest, size)

    def _judge(self, digest: str, file: BinaryIO) -> BlockTags:
        """Reads the whole file. Returns the sums of its blocks where it has its digest. Damaged, BlobError."""
        with _plain_errors("a blob"), os.fdopen(os.dup(file.fileno()), "rb", buffering=0) as again:
            again.seek(0)
            found = hash_file(again)
            if found.digest == digest:
                return self.write_sums(digest, found)
            self._mark(digest, os.fstat(again.fileno()).st_ino)
        raise damaged(digest)

    def _mark(self, digest: str, inode: int) -> None:
        """The file of this blob was found damaged."""

    def _gone(self, digest: str) -> BlobError:
        """The error for a blob that is not there: damaged, or missing."""
        return damaged(digest) if Path(self._file(digest) + _DAMAGED).exists() else missing(digest)

    def _file(self, digest: str) -> str:
        """The path as text: every assignment looks it up, and building a ``Path`` costs more than the system call."""
        if not is_digest(digest):
            raise missing(digest)
        return f"{self.folder}/{digest[:2]}/{digest}"


class FileBlobs(BlobFolder):
    """The Blobs port over files ``<folder>/<first two digits>/<digest>``.

    Folders have mode 0700 and files 0600, because updates are private.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        durable: bool = True,
        notice: Callable[[str], object] = lambda text: None,
    ) -> None:
        """``durable``: False syncs nothing, for blobs that may be lost when the machine loses power. ``notice`` is told
        which blob was found damaged, and which is repaired."""
        super().__init__(folder)
        self._notice = notice
        self._durable = durable
        self._lock = threading.Lock()
        self._repaired: set[str] = set()
        self._sums: OrderedDict[str, BlockTags] = OrderedDict()
        with _plain_errors(f"the blob folder {self.folder}"):
            if durable:
                make_folder(self.folder)
            else:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.folder / _SPOOL).mkdir(exist_ok=True, mode=0o700)
            _sweep(self.folder / _SPOOL)
            self.sync_folder(self.folder)
            self._prefixes = {
                entry.name for entry in os.scandir(self.folder) if entry.is_dir() and len(entry.name) == 2
            }
            self._damaged = {
                file.name.removesuffix(_DAMAGED)
                for prefix in self._prefixes
                for file in os.scandir(self.folder / prefix)
                if file.name.endswith(_DAMAGED)
            }

    def sync(self, fd: int) -> None:
        """Waits until the written bytes are on the disk."""
        if self._durable:
            os.fsync(fd)

    def sync_folder(self, folder: Path) -> None:
        """Waits until the names in the folder are on the disk."""
        if self._durable:
            _fsync_folder(folder)

    def make_prefix(self, prefix: str) -> None:
        """Makes the folder of these two digits durably, if it is missing."""
        with self._lock:
            if prefix not in self._prefixes:
                (self.folder / prefix).mkdir(exist_ok=True, mode=0o700)
                self.sync_folder(self.folder)
                self._prefixes.add(prefix)

    def put(self, data: bytes) -> str:
        with self.spool() as spool:
            spool.write(data)
            return spool.commit()

    def spool(self, limit: int | None = None) -> FileSpool:
        return FileSpool(self, limit)

    def size(self, digest: str) -> int:
        with _plain_errors("a blob"):
            try:
                return os.stat(self._file(digest)).st_size  # noqa: PTH116 - see _file
            except FileNotFoundError:
                raise self._gone(digest) from None

    def damaged(self) -> list[str]:
        for digest in sorted(self._damaged):
            if self.has(digest):  # somebody has copied the right bytes back, or another process has stored them
                self.note_whole(digest)
        return sorted(self._damaged)

    def repaired(self) -> list[str]:
        return sorted(self._repaired)

    def is_whole(self, digest: str) -> bool:
        """Whether the blob is stored and its bytes have this digest: all are read. Otherwise it is marked damaged."""
        try:
            with open(self._file(digest), "rb", buffering=0) as file:  # noqa: PTH123 - see _file
                self._judge(digest, file)
        except (FileNotFoundError, BlobError):
            return False
        return True

    def note_whole(self, digest: str) -> bool:
        """The right bytes are stored now. Returns whether the blob was damaged before."""
        with self._lock:
            known = digest in self._damaged
            self._damaged.discard(digest)
        with _plain_errors("a blob"):
            marked = Path(self._file(digest) + _DAMAGED)
            was = known or marked.exists()
            marked.unlink(missing_ok=True)
        if was:
            self._repaired.add(digest)
            self._notice(f"blob {digest} was damaged and is repaired: the right bytes are stored again")
        return was

    def write_sums(self, digest: str, found: BlobHash) -> BlockTags:
        """Remembers the sums of the blocks of a blob, and stores them beside it where it has several. They are computed
        again where that fails."""
        sums = found.end()
        with self._lock:
            self._sums[digest] = sums
            if len(self._sums) > _KNOWN:
                self._sums.popitem(last=False)
        if found.size > BLOCK:
            with suppress(OSError):
                fd, path = _new_spool_file(self.folder / _SPOOL)
                try:
                    os.write(fd, sums_bytes(digest, sums))
                    path.replace(self._file(digest) + _SUMS)
                finally:
                    os.close(fd)
        return sums

    def _sums_of(self, digest: str, size: int) -> BlockTags | None:
        known = self._sums.get(digest)
        return known if known is not None and known.covers(size) else super()._sums_of(digest, size)

    def _mark(self, digest: str, inode: int) -> None:
        """Renames the file that was found damaged, unless another one has its name by now."""
        name = self._file(digest)
        with self._lock:
            new = digest not in self._damaged
            with suppress(FileNotFoundError):
                if os.stat(name).st_ino != inode:  # noqa: PTH116 - see _file
                    return
                Path(name).replace(name + _DAMAGED)
                if os.stat(name + _DAMAGED).st_ino != inode:  # noqa: PTH116 - another process has just repaired it
                    Path(name + _DAMAGED).replace(name)
                    return
                new = True  # also where it was damaged before, and another process has repaired it
                self.sync_folder(Path(name).parent)
            self._damaged.add(digest)
            self._repaired.discard(digest)
        if new:
            kept = name + _DAMAGED
            self._notice(f"blob {digest} is damaged: what is stored has another SHA-256; it is kept as {kept}")

    def _gone(self, digest: str) -> BlobError:
        error = super()._gone(digest)
        if isinstance(error, Damaged):
            with self._lock:
                self._damaged.add(digest)
        return error

    def delete(self, digest: str) -> None:
        if is_digest(digest):
            with _plain_errors("a blob"):
                for tail in (_SUMS, "", _DAMAGED):
                    with suppress(FileNotFoundError):
                        os.unlink(self._file(digest) + tail)  # noqa: PTH108 - see _file
            with self._lock:
                self._damaged.discard(digest)
                self._sums.pop(digest, None)
                self._repaired.discard(digest)

    def digests(self) -> Iterator[str]:
        for prefix in sorted(self.folder.iterdir()):
            if len(prefix.name) == 2:
                yield from sorted(file.name for file in prefix.iterdir() if is_digest(file.name))

    def stored_before(self, at: float) -> Iterator[str]:
        for digest in self.digests():
            with suppress(FileNotFoundError):
                if os.stat(self._file(digest)).st_mtime < at:  # noqa: PTH116 - see _file
                    yield digest


@contextmanager
def _plain_errors(what: str) -> Iterator[None]:
    """Translates OSError: a full disk is DiskFull, the rest BlobError."""
    try:
        yield
    except FileNotFoundError as error:
        raise BlobError(f"Could not write {what}: {error.strerror}.") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"Could not write {what}: the disk is full.") from error
        raise BlobError(f"Could not use {what}: {error.strerror or error}.") from error


def _new_spool_file(folder: Path) -> tuple[int, Path]:
    """A new file, locked by this process. A sweep may remove it before it is locked; then another one is made."""
    while True:
        path = folder / secrets.token_hex(16)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd, path
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        os.close(fd)


def _sweep(folder: Path) -> None:
    """Removes the spool files that no process has locked."""
    for file in folder.iterdir():
        try:
            fd = os.open(file, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
        except (BlockingIOError, FileNotFoundError):
            pass
        finally:
            os.close(fd)


def _fsync_folder(folder: Path) -> None:
    """By the ``os`` of this module: the fault explorer stands in for it."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
