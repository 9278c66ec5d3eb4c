"""A cache of the last checkpoints that a device received, by digest: in a folder or in memory.

A download comes in pieces and can be resumed; it becomes a checkpoint only when its length and its digest are right, so
a reader never sees a partial or wrong one. Files are checked again when they are read, since a disk may corrupt them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import IO, Protocol

from client_sdk.protocol.devices import CheckpointRef

KEEP = 2
"""How many checkpoints are stored: the one in training and the one before it, from which the next may be a delta."""


class WrongBytes(Exception):
    """The received bytes are not the checkpoint: their length or digest is another. They have been deleted."""


class Download:
    """A checkpoint on its way into this file, which may hold the bytes of an earlier try."""

    def __init__(self, ref: CheckpointRef, file: IO[bytes]) -> None:
        self._ref = ref
        self._file = file
        self._sha256 = hashlib.sha256()
        self.received = 0
        """Bytes received so far, those of an earlier try included."""
        while chunk := file.read(1 << 20):
            self._sha256.update(chunk)
            self.received += len(chunk)
        if self.received >= ref.bytes:
            self.restart()

    def write(self, chunk: bytes) -> None:
        """Take the next bytes. WrongBytes as soon as there are more than the reference says."""
        self._file.write(chunk)
        self._sha256.update(chunk)
        self.received += len(chunk)
        if self.received > self._ref.bytes:
            raise WrongBytes(f"The checkpoint {self._ref.digest[:12]} has {self._ref.bytes} bytes; more were sent.")

    def restart(self) -> None:
        """Drop the bytes received so far: the sender starts from the first byte."""
        self._file.seek(0)
        self._file.truncate()
        self._sha256 = hashlib.sha256()
        self.received = 0

    def check(self) -> None:
        """WrongBytes unless the whole checkpoint has been received."""
        ref, digest = self._ref, self._sha256.hexdigest()
        if self.received != ref.bytes:
            raise WrongBytes(f"The checkpoint {ref.digest[:12]} has {ref.bytes} bytes; {self.received} were received.")
        if digest != ref.digest:
            raise WrongBytes(f"The checkpoint received has digest {digest[:12]}, not {ref.digest[:12]}.")


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
    def download(self, ref: CheckpointRef) -> Iterator[Download]:
        file = BytesIO()
        download = Download(ref, file)
        yield download
        download.check()
        with self._lock:
            self._bodies[ref.digest] = file.getvalue()
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
    def download(self, ref: CheckpointRef) -> Iterator[Download]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self._folder / f"{ref.digest}.part"
        try:
            part.touch(0o600)
            with part.open("r+b") as file:
                download = Download(ref, file)
                yield download
            download.check()
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
