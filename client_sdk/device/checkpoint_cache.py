"""A cache of the last checkpoints that a device received, by digest: in a folder or in memory.

A download comes in pieces and can be resumed; it becomes a checkpoint only when its length and its digest are right, so
a reader never sees a partial or wrong one. Files are checked again when they are read, since a disk may corrupt them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from typing import Protocol

from client_sdk.protocol.devices import CheckpointRef

KEEP = 2
"""How many checkpoints are stored: the one in training and the one before it, from which the next may be a delta."""


class WrongBytes(Exception):
    """The received bytes are not the checkpoint: their length or digest is another. They have been deleted."""


class Download(Protocol):
    """A checkpoint on its way in."""

    received: int
    """Bytes received so far, those of an earlier try included."""

    def write(self, chunk: bytes) -> None:
        """Take the next bytes. WrongBytes as soon as there are more than the reference says."""

    def restart(self) -> None:
        """Drop the bytes received so far: the sender starts from the first byte."""


class CheckpointCache(Protocol):
    """The port."""

    def get(self, digest: str) -> bytes | None:
        """The whole checkpoint, checked against its digest; None where it is not stored."""

    def has(self, digest: str) -> bool:
        """Whether ``get`` would return it."""

    def held(self) -> list[str]:
        """Digests of what is stored, newest first."""

    def download(self, ref: CheckpointRef) -> AbstractContextManager[Download]:
        """A context with a Download. Where the block ends without an error and the digest is right, the checkpoint is
        stored.

        WrongBytes at the block's end, where the digest is another.
        """


class MemoryCheckpoints:
    """Checkpoints in memory. May be shared by the threads of one process: a fleet then downloads each checkpoint
    once."""

    def __init__(self, keep: int = KEEP) -> None:
        self._keep = keep
        self._bodies: dict[str, bytes] = {}
        self._lock = Lock()

    def get(self, digest: str) -> bytes | None:
        return self._bodies.get(digest)

    def has(self, digest: str) -> bool:
        return digest in self._bodies

    def held(self) -> list[str]:
        return list(self._bodies)[::-1]

    @contextmanager
    def download(self, ref: CheckpointRef) -> Iterator[_MemoryDownload]:
        download = _MemoryDownload(ref)
        yield download
        body = bytes(download.content)
        _check(ref, len(body), hashlib.sha256(body).hexdigest())
        with self._lock:
            self._bodies[ref.digest] = body
            for old in list(self._bodies)[: -self._keep]:
                del self._bodies[old]


class FileCheckpoints:
    """Checkpoints in a folder, made when the first one comes. Written to ``<digest>.part`` and renamed when whole.
    ``suffix``: the end of their names; other files that are fetched may be kept in another such folder."""

    def __init__(self, folder: Path | str, keep: int = KEEP, suffix: str = ".safetensors") -> None:
        self._suffix = suffix
        self._folder = Path(folder)
        self._keep = keep

    def get(self, digest: str) -> bytes | None:
        path = self._path(digest)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        if hashlib.sha256(content).hexdigest() != digest:
            path.unlink(missing_ok=True)
            return None
        os.utime(path)
        return content

    def has(self, digest: str) -> bool:
        return self.path(digest) is not None

    def path(self, digest: str) -> Path | None:
        """The file of a checkpoint, checked against its digest without having it in memory; None where it is not
        stored."""
        path = self._path(digest)
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return None
        if found != digest:
            path.unlink(missing_ok=True)
            return None
        os.utime(path)
        return path

    def held(self) -> list[str]:
        return [path.name.removesuffix(self._suffix) for path in self._present()[::-1]]

    @contextmanager
    def download(self, ref: CheckpointRef) -> Iterator[_FileDownload]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self._folder / f"{ref.digest}.part"
        try:
            download = _FileDownload(ref, part)
            try:
                yield download
            finally:
                download.close()
            _check(ref, download.received, download.hexdigest())
        except WrongBytes:
            part.unlink(missing_ok=True)
            raise
        part.replace(self._path(ref.digest))
        self._forget_old()

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}{self._suffix}"

    def _present(self) -> list[Path]:
        return sorted(self._folder.glob(f"*{self._suffix}"), key=lambda path: path.stat().st_mtime_ns)

    def _forget_old(self) -> None:
        for old in [*self._present()[: -self._keep], *self._folder.glob("*.part")]:
            old.unlink(missing_ok=True)


class _MemoryDownload:
    def __init__(self, ref: CheckpointRef) -> None:
        self._ref = ref
        self.content = bytearray()
        self.received = 0

    def write(self, chunk: bytes) -> None:
        self.content += chunk
        self.received += len(chunk)
        _check_length(self._ref, self.received)

    def restart(self) -> None:
        self.content.clear()
        self.received = 0


class _FileDownload:
    def __init__(self, ref: CheckpointRef, part: Path) -> None:
        self._ref = ref
        self._sha256 = hashlib.sha256()
        part.touch(0o600)
        self._file = part.open("r+b")
        self.received = 0
        while chunk := self._file.read(1 << 20):
            self._sha256.update(chunk)
            self.received += len(chunk)
        if self.received >= ref.bytes:
            self.restart()

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._sha256.update(chunk)
        self.received += len(chunk)
        _check_length(self._ref, self.received)

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._sha256 = hashlib.sha256()
        self.received = 0

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()

    def close(self) -> None:
        self._file.close()


def _check_length(ref: CheckpointRef, received: int) -> None:
    if received > ref.bytes:
        raise WrongBytes(f"The checkpoint {ref.digest[:12]} has {ref.bytes} bytes; more were sent.")


def _check(ref: CheckpointRef, received: int, digest: str) -> None:
    if received != ref.bytes:
        raise WrongBytes(f"The checkpoint {ref.digest[:12]} has {ref.bytes} bytes; {received} were received.")
    if digest != ref.digest:
        raise WrongBytes(f"The checkpoint received has digest {digest[:12]}, not {ref.digest[:12]}.")
