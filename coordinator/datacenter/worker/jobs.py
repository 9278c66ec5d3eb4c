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
from client_sdk.device.storage import FileStorage
from client_sdk.http.transport import Interrupted
from coordinator.datacenter.worker.actions import JobProgress, WorkerReply


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

    def progress(self) -> JobProgress:
        with self._lock:
            progress = self._progress
        return JobProgress(progress.step, dict(progress.metrics), self._now())

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


class WorkerFolder(FileStorage):
    """A device's folder, for a worker: it has an id of its own besides, and the result that awaits its receipt lies
    where the trainer wrote it. StorageError as ``FileStorage``."""

    def __init__(self, folder: Path | str) -> None:
        super().__init__(folder)
        self._results: dict[str, Path] = {}

    def installation(self) -> str:
        """A random id of this folder, drawn on the first call."""
        path = self.folder / "installation"
        with suppress(FileNotFoundError):
            if found := path.read_text("ascii", "replace").strip()[:64]:
                return found
        drawn = os.urandom(8).hex()
        fresh = path.with_name(f".installation-{drawn}")
        fresh.write_text(drawn + "\n", "ascii")
        fresh.replace(path)
        return drawn

    def checkpoint(self, digest: str) -> Path:
        """The path of a received checkpoint."""
        return self.folder / "checkpoints" / f"{digest}.safetensors"

    def hold(self, path: Path) -> tuple[str, int]:
        """(digest, bytes) of a result, which ``update`` then opens. Only the last result is available."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        self._results = {digest: path}
        return digest, size

    def update(self, digest: str) -> BinaryIO:
        return self._results[digest].open("rb")
