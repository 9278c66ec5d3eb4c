"""The folder of one agent: saved work from which a restarted agent continues.

::

    lock, checkpoints/            as of a device (client_sdk.device.storage)
    record.json                   the worker's key and certificate, for its owner only (the same)
    installation                  a random id of this folder
    jobs/RUN-DIGESTS/             one for each run, checkpoint that training started from, and plan
        steps/                    saved steps: private to this machine, see datacenter.checkpoints
        result.safetensors        the trained model
    machines/                     status files of a group of machines (datacenter.machines)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import psutil

from client_sdk.device.storage import FileStorage
from coordinator.child_processes import with_environment
from coordinator.datacenter.job import ENV_JOB, ENV_NODE

KEEP_JOBS = 4
"""How many runs' jobs are stored: a worker with rounds of several runs may return to any of them."""
END_S = 10.0
"""Seconds that a killed process has to end."""


class AgentFolder(FileStorage):
    """A device's folder, for a worker: it has an id of its own besides, and the result that awaits its receipt lies
    where the trainer wrote it. It is made with mode 0700 where it is missing, and this process's until ``close``.

    StorageError where another agent has it, or it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.resolve())
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

    def job(self, run: str, checkpoint: str, plan: str) -> Path:
        """The folder of the training of ``run`` from this ``checkpoint`` by this ``plan`` (digests), created where it
        is missing. A run of the same name with another plan (of another coordinator, for example) has another folder.

        Removes jobs of the same run from other checkpoints, since the run has moved on, and the oldest of other runs
        beyond KEEP_JOBS.
        """
        jobs = self.folder / "jobs"
        mine = jobs / f"{run}-{checkpoint[:16]}{plan[:16]}"
        mine.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(mine)
        present = sorted((path for path in jobs.iterdir() if path != mine), key=lambda path: path.stat().st_mtime_ns)
        older = [path for path in present if path.name.rpartition("-")[0] == run]
        others = [path for path in present if path not in older]
        for path in [*older, *others[: max(0, len(others) - (KEEP_JOBS - 1))]]:
            shutil.rmtree(path, ignore_errors=True)
        return mine


def end_leftovers(folder: Path, node: int = 0) -> int:
    """Kill training processes that an earlier agent started on this machine as ``node`` of the group that works in
    ``folder``, and wait for their end. Returns their number.

    They end by themselves when their agent ends, unless they are stopped or stuck.
    """
    root = folder.resolve()

    def trains_here(environment: Mapping[str, str]) -> bool:
        try:
            saved = json.loads(environment.get(ENV_JOB, "{}")).get("checkpoints")
        except (ValueError, AttributeError):
            return False
        own = environment.get(ENV_NODE, "0") == str(node)
        return own and isinstance(saved, str) and root in Path(saved).parents

    left = list(with_environment(trains_here))
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=END_S)
    return len(left)
