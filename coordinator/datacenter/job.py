"""A training job as whoever orders it sees it: what to train, and how far it is. Starts processes; has no torch itself.

``launch`` starts torchrun with one process for each GPU or CPU, passes on what they tell, and comes back with the
result. It is for a process that must outlive what happens in training: the processes may be killed, and are started
again from the last whole step that was saved; the launcher may be killed, and the processes end with it, since each
holds the reading end of a pipe (its standard input) that closes then. Launched again with the same folder, the job
goes on. With ``nproc`` 1 there is one plain process and no torchrun.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import psutil
from pydantic import BaseModel, ConfigDict, Field

from coordinator.datacenter.progress import Tell, read_line
from coordinator.datacenter.recipe import Recipe

ENV_JOB = "QUORATE_JOB"
ENV_LIFELINE = "QUORATE_LIFELINE"
ENV_ATTEMPT = "QUORATE_ATTEMPT"
ENV_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
STEP_FOLDER = re.compile(r"step-([0-9]{9})")
SHUTDOWN_S = 2
"""Seconds that the other processes of a group have to end, once one has died or hangs."""


class JobSpec(BaseModel):
    """A job: a learner, its data, a recipe, and where it comes from and goes to. Paths are those of this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learner: str
    """``package:name`` of an installed learner, or ``module:attribute``."""
    data: str
    """An installed data set, or a file ending in .npz. Every process reads all of it."""
    recipe: Recipe
    init: Path | None = None
    """The checkpoint to begin with, safetensors. None: the learner's own, drawn by the recipe's seed."""
    out: Path | None = None
    """Where the trained model is written, safetensors, whole or not at all."""
    checkpoints: Path | None = None
    """Folder for saved steps. None: a job that breaks off begins anew."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between two that are saved; the last is saved too."""
    resume: bool = True
    """Whether to go on from what the folder holds; else a folder with steps is refused."""
    nproc: int = Field(default=1, ge=1, le=1024)
    """Processes on this machine."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    hang_s: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """A process that is silent for so long counts as hung; the group is started again within SHUTDOWN_S more."""
    max_restarts: int = Field(default=3, ge=0, le=1000)
    """How often the processes are started again before the job fails."""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """A job that reached its end."""

    report: dict[str, Any]
    """``training.Report`` of the processes that ended it."""
    out: Path | None
    digest: str
    """SHA-256 of the model's safetensors bytes."""
    restarts: int


class JobFailed(Exception):
    """The job cannot be done: one sentence says why. What was saved is still there."""


class JobStopped(Exception):
    """It was told to stop. Launched again with the same folder it goes on from the last whole step."""


def launch(spec: JobSpec, on_progress: Tell | None = None, stop: threading.Event | None = None) -> JobResult:
    """Do the job in processes of its own, and wait for its end.

    ``on_progress`` hears each message (``progress`` lists them) from this thread. ``stop`` kills all processes at once.
    Raises JobFailed and JobStopped.
    """
    heard = on_progress or (lambda message: None)
    watch = _Watch(heard, stop or threading.Event())
    with (
        tempfile.TemporaryDirectory(prefix="quorate-job-", ignore_cleanup_errors=True) as scratch,
        tempfile.TemporaryFile("w+", errors="replace") as log,
    ):
        for attempt in range(spec.max_restarts + 1):
            code = watch.follow(_start(spec, attempt, log, scratch))
            if watch.result is not None:
                return watch.result
            if watch.failed is not None:
                raise JobFailed(watch.failed)
            watch.reason = watch.reason or _ended(code)
            if spec.nproc > 1 and code >= 0:  # torchrun was not killed: it has used up the restarts itself
                break
        log.seek(0)
        raise JobFailed(_broke_off(spec, code, log.read()))


class _Watch:
    """Reads what the processes of one job say, and kills them where they must not go on."""

    def __init__(self, heard: Tell, stop: threading.Event) -> None:
        self._heard, self._stop = heard, stop
        self._starts = 0
        self.result: JobResult | None = None
        self.failed: str | None = None
        self.reason = ""

    def follow(self, processes: subprocess.Popen[str]) -> int:
        """Until the processes are gone. Returns their exit code; JobStopped where they were told to stop."""
        gone = threading.Event()

        def kill_when_told() -> None:
            while not gone.wait(0.05):
                if self._stop.is_set():
                    kill_all(processes.pid)
                    return
                if processes.poll() is not None:
                    if processes.stdin is not None:
                        processes.stdin.close()  # a killed torchrun leaves its ranks behind: they end with this pipe
                    return

        watcher = threading.Thread(target=kill_when_told, daemon=True)
        watcher.start()
        try:
            for line in processes.stdout or ():
                message = read_line(line)
                if message is not None:
                    self._hear(message)
                    if message["event"] == "lost":
                        _clear_away(processes.pid, str(message.get("attempt")))
                    if self.failed is not None or self.result is not None:
                        break  # nothing comes after these words; how the processes end takes seconds, and no matter
                else:
                    sys.stderr.write(line)
            if self.failed is not None or self.result is not None:
                kill_all(processes.pid)
            code = processes.wait()
        finally:
            gone.set()
            watcher.join()
            if processes.poll() is None:
                kill_all(processes.pid)
                processes.wait()
            for pipe in (processes.stdin, processes.stdout):
                if pipe is not None:
                    pipe.close()
        if self._stop.is_set() and self.result is None:
            raise JobStopped("The training was told to stop.")
        return code

    def _hear(self, message: dict[str, Any]) -> None:
        match message["event"]:
            case "failed":
                self.failed = str(message["reason"])
                return
            case "lost":
                self.reason = self.reason or str(message["reason"])
                return
            case "started":
                if self._starts:
                    reason = self.reason or "a process died"
                    self._heard({"event": "restarted", "attempt": self._starts, "reason": reason})
                self._starts += 1
                self.reason = ""
            case "done":
                out = message.get("out")
                self.result = JobResult(
                    report=message["report"],
                    out=None if out is None else Path(out),
                    digest=message["digest"],
                    restarts=self._starts - 1,
                )
        self._heard(message)


def whole_steps(folder: Path) -> list[int]:
    """The steps saved in a job's folder that were written to their end, in rising order."""
    found = (STEP_FOLDER.fullmatch(path.parent.name) for path in folder.glob("step-*/.metadata"))
    return sorted(int(match[1]) for match in found if match is not None)


def kill_all(pid: int) -> None:
    """SIGKILL for a process and all that it started, those first that could start others. Does nothing where it is
    gone."""
    try:
        first = psutil.Process(pid)
        family = [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _clear_away(pid: int, attempt: str) -> None:
    """SIGKILL for all processes of a broken group that have not ended after SHUTDOWN_S. torchrun asks a hung one
    politely, and would wait for half a minute.

    ``attempt``: torchrun's count of restarts when the group broke. It may have started the next group already.
    """
    group = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if process.environ().get(ENV_RESTARTS) == attempt:
                    group.append(process)

    def kill() -> None:
        for process in group:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    timer = threading.Timer(SHUTDOWN_S, kill)
    timer.daemon = True
    timer.start()


def torchrun(spec: JobSpec) -> list[str]:
    """The command that starts the processes of a job on this machine, up to the program itself."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
        *("--nproc-per-node", str(spec.nproc), "--max-restarts", str(spec.max_restarts)),
        *("--monitor-interval", "0.1", "--shutdown-timeout", str(SHUTDOWN_S)),
    ]


def _start(spec: JobSpec, attempt: int, log: IO[str], scratch: str) -> subprocess.Popen[str]:
    program = ["-m", "coordinator.datacenter.worker"]
    command = [*torchrun(spec), "--log-dir", scratch, *program] if spec.nproc > 1 else [sys.executable, *program]
    env = {**os.environ, ENV_JOB: spec.model_dump_json(), ENV_LIFELINE: "1", ENV_ATTEMPT: str(attempt)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        env.pop(name, None)
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // spec.nproc)))
    if (loopback := _loopback()) is not None:
        env.setdefault("GLOO_SOCKET_IFNAME", loopback)
    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("QUORATE_DEBUG") else log,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _loopback() -> str | None:
    """The interface of 127.0.0.1."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    return None


def _ended(code: int) -> str:
    if code >= 0:
        return f"a process ended with code {code}"
    try:
        return f"a process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"a process was killed by signal {-code}"


def _broke_off(spec: JobSpec, code: int, log: str) -> str:
    """What to say where the processes died too often."""
    cause = _ended(code)
    root = re.search(r"Root Cause.*?rank\s*: (\d+).*?exitcode\s*: (-?\d+)", log, re.DOTALL)
    if root is not None:
        cause = _ended(int(root[2])).replace("a process", f"process {root[1]}")
    elif code >= 0 and (lines := [line.strip() for line in log.splitlines() if line.strip()]):
        cause = f"{cause}: {lines[-1][:200]}"
    again = (
        f", also after {spec.max_restarts} restart{'s' if spec.max_restarts > 1 else ''}" if spec.max_restarts else ""
    )
    kept = f" What was saved is in {spec.checkpoints}." if spec.checkpoints is not None else ""
    return f"The training broke off: {cause}{again}.{kept}"
