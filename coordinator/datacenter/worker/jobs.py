"""The job that a worker runs in a thread beside its heartbeats, and the folder that jobs read and write."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import BinaryIO

from client_sdk.device.actions import Failed
from client_sdk.device.checkpoint_cache import CheckpointCache, FileCheckpoints
from client_sdk.device.record import Record
from client_sdk.device.storage import read_record
from client_sdk.http.transport import Interrupted
from coordinator.datacenter.worker.actions import Going, WorkerReply


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """The progress of a training."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    """``loss``, ``samples_per_s``, ``communication_share``: finite."""


class RunningJob:
    """A job in a separate thread: ``done`` is set once ``reply`` is available; ``halted`` asks it to stop."""

    def __init__(self, do: Callable[[RunningJob], WorkerReply], now: Callable[[], float]) -> None:
        self.done = Event()
        self.halted = Event()
        self._do = do
        self._now = now
        self._lock = Lock()
        self._progress = TrainingProgress(step=0)
        self._reply: WorkerReply = None
        self._error: BaseException | None = None
        Thread(target=self._run, name="quorate-job", daemon=True).start()

    def note(self, progress: TrainingProgress) -> None:
        """Record progress. May be called from any thread."""
        with self._lock:
            self._progress = progress

    def going(self) -> Going:
        with self._lock:
            progress = self._progress
        return Going(progress.step, dict(progress.metrics), self._now())

    def reply(self) -> WorkerReply:
        """The job's reply, once it is done. Raises what the job raised."""
        if self._error is not None:
            raise self._error
        return self._reply

    def _run(self) -> None:
        try:
            self._reply = self._do(self)
        except Interrupted:
            self._reply = Failed("The job was stopped.", self._now())
        except BaseException as error:  # noqa: BLE001 - raised again by reply()
            self._error = error
        finally:
            self.done.set()


class WorkerFolder:
    """The worker's record with its key and certificate (``record.json``, mode 0600), the received checkpoints, and the
    result that awaits its receipt, at the trainer's path."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._checkpoints_folder = Path(folder) / "checkpoints"
        self._checkpoints = FileCheckpoints(self._checkpoints_folder)
        self._results: dict[str, Path] = {}
        self._installation = Path(folder) / "installation"

    def installation(self) -> str:
        """A random id of this folder, drawn on the first call."""
        with suppress(FileNotFoundError):
            if found := self._installation.read_text("ascii", "replace").strip()[:64]:
                return found
        drawn = os.urandom(8).hex()
        self._installation.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._installation.with_name(f".installation-{drawn}")
        fresh.write_text(drawn + "\n", "ascii")
        fresh.replace(self._installation)
        return drawn

    def load(self) -> Record | None:
        """The last record saved. StorageError where it cannot be read."""
        return read_record(self._folder)

    def save(self, record: Record) -> None:
        """Store the record; after this returns it survives a crash, and a crash in between leaves the old one."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._folder / "record.json.tmp"
        fresh.unlink(missing_ok=True)
        fresh.touch(0o600, exist_ok=False)
        with fresh.open("wb") as file:
            file.write(record.model_dump_json().encode())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._folder / "record.json")
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @property
    def checkpoints(self) -> CheckpointCache:
        return self._checkpoints

    def path(self, digest: str) -> Path:
        """The path of a received checkpoint."""
        return self._checkpoints_folder / f"{digest}.safetensors"

    def hold(self, path: Path) -> tuple[str, int]:
        """(digest, bytes) of a result, which ``update`` then opens. Only the last result is available."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        self._results = {digest: path}
        return digest, size

    def update(self, digest: str) -> BinaryIO:
        return self._results[digest].open("rb")
