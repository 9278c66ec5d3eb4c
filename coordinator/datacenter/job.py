"""Runs a training job on this machine and returns its result. Starts processes; imports no torch.

``launch`` starts torchrun with one process for each GPU or CPU, forwards their messages, and returns the result. Its
process survives failures of training: killed processes are started again from the last complete saved step. Where the
launcher is killed, the processes end with it. Launched again with the same folder, the job continues. With ``nproc`` 1
there is one plain process and no torchrun. ``multi_machine`` runs the jobs of several machines.

``coordinator.child_processes`` starts, follows and ends processes. This file adds what is specific to training: the
command and environment, which message is the last, how long a silence is allowed, and when to kill what torchrun would
wait for.
"""

from __future__ import annotations

import math
import os
import re
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

from client_sdk.commands.long_running import thread_variables
from coordinator.child_processes import SupervisedChild, how_it_ended
from coordinator.datacenter.progress import OnMessage, read_line
from coordinator.datacenter.spec import (
    SHUTDOWN_S,
    JobFailed,
    JobResult,
    JobSpec,
    JobStopped,
    Place,
    no_torch,
)

ENV_JOB = "QUORATE_JOB"
ENV_ATTEMPT = "QUORATE_ATTEMPT"
ENV_NODE = "QUORATE_NODE"
"""Number of the machine in its group; 0 is the leader."""
ENV_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
RENDEZVOUS_S = 120
"""Seconds for which the launchers of several machines wait for each other."""


def start_processes(
    spec: JobSpec, attempt: int, log: IO[str], scratch: str, place: Place | None = None
) -> SupervisedChild:
    """Start the processes of a job. ``attempt`` counts the starts from 0, ``log`` receives their standard error, and
    ``scratch`` is a folder for torchrun's own files. ``place``: this machine's, where several machines run the job.

    The ranks inherit torchrun's standard input, so all of them end with the caller's process.
    """
    program = ["-m", "coordinator.datacenter.rank"]
    command = [sys.executable, *program]
    if spec.nproc > 1 or place is not None:
        command = [*torchrun(spec, place), "--log-dir", scratch, *program]
    errors = None if os.environ.get("QUORATE_DEBUG") else log
    return SupervisedChild(command, environment=_environment(spec, attempt, place), threads=None, errors=errors)


def torchrun(spec: JobSpec, place: Place | None = None) -> list[str]:
    """The command that starts the processes of a job on this machine, up to the program itself.

    On one machine torchrun itself restarts them. On several machines a lost process ends torchrun on every machine,
    and the leader starts all of them again.
    """
    command = [sys.executable, "-m", "coordinator.datacenter.launcher", "--nproc-per-node", str(spec.nproc)]
    command += ["--monitor-interval", "0.1", "--shutdown-timeout", str(SHUTDOWN_S)]
    if place is None:
        return [*command, "--standalone", "--local-addr", "127.0.0.1", "--max-restarts", str(spec.max_restarts)]
    command += ["--nnodes", str(place.nnodes), "--node-rank", str(place.node), "--max-restarts", "0"]
    command += ["--rdzv-backend", "static", "--rdzv-endpoint", place.endpoint, "--rdzv-id", place.rendezvous_id]
    return [*command, "--rdzv-conf", f"timeout={RENDEZVOUS_S}"]


def _environment(spec: JobSpec, attempt: int, place: Place | None) -> dict[str, str]:
    env = {**os.environ, ENV_JOB: spec.model_dump_json(), ENV_ATTEMPT: str(attempt)}
    env[ENV_NODE] = str(place.node if place is not None else 0)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        env.pop(name, None)
    env.setdefault("PYTHONUNBUFFERED", "1")
    env |= thread_variables(spec.threads)
    if (interface := interface_towards(place.endpoint if place is not None else "127.0.0.1:1")) is not None:
        env.setdefault("GLOO_SOCKET_IFNAME", interface)
    return env


def interface_towards(endpoint: str) -> str | None:
    """The network interface by which this machine reaches HOST:PORT; None where it is not known. Sends nothing."""
    host, _, port = endpoint.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            mine = probe.getsockname()[0]
    except (OSError, ValueError):
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address.partition("%")[0] == mine for found in addresses):
            return name
    return None


AGAIN_S = 60
"""Seconds that torchrun has to start a failed group again, or to give up."""


class JobWatch:
    """Reads the messages of one job's processes, over all their starts. ``on_message`` gets them, and ``restarted``.
    ``stop`` kills the processes."""

    def __init__(self, on_message: OnMessage, stop: threading.Event) -> None:
        self._on_message, self._stop = on_message, stop
        self._starts = 0
        self._silent_after = math.inf
        self._silence = ""
        self.result: JobResult | None = None
        self.failed: str | None = None
        self.reason = ""

    def follow(self, child: SupervisedChild, hang_s: float) -> int:
        """Wait until all processes of a start have ended. Returns the exit code of the first of them; JobStopped where
        ``stop`` was set before there was a result."""
        self._silent_after = math.inf

        def on_line(line: str) -> bool:
            message = read_line(line)
            if message is None:
                sys.stderr.write(line)
                return False
            self._take(message)
            self._expect_more(message["event"], hang_s)
            if message["event"] == "lost":
                _clear_away(child, str(message.get("attempt")))
            return self.failed is not None or self.result is not None  # their own end takes seconds and does not matter

        code = child.follow(on_line, kill_when=self._must_not_go_on, linger_s=SHUTDOWN_S)
        if self._stop.is_set() and self.result is None:
            raise JobStopped("The training was asked to stop.")
        return code

    def _must_not_go_on(self) -> bool:
        silent = time.monotonic() > self._silent_after
        if silent:
            self.reason, self._silent_after = self.reason or self._silence, math.inf
        return silent or self._stop.is_set()

    def _expect_more(self, event: str, hang_s: float) -> None:
        """How long the processes may be silent after this message.

        A rank that waits for another breaks the group itself, after ``hang_s``. Where all of them hang, or the only
        one, only the launcher can notice; it allows twice as long. The time that they load before training is not
        known.
        """
        training = event not in ("lost", "failed", "done")
        self._silence = f"no process did anything for {2 * hang_s:g} s"
        self._silent_after = time.monotonic() + 2 * hang_s if training else math.inf

    def _take(self, message: dict[str, Any]) -> None:
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
                    self._on_message({"event": "restarted", "attempt": self._starts, "reason": reason})
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
            case _:  # progress and saved steps change nothing here: they are passed on
                pass
        self._on_message(message)


def _clear_away(child: SupervisedChild, attempt: str) -> None:
    """Send SIGKILL to all processes of a failed group that still run after SHUTDOWN_S: torchrun sends SIGTERM to a
    hung one, and would wait for half a minute. A torchrun that has not started the next group after AGAIN_S is killed
    too.

    ``attempt``: torchrun's count of restarts when the group failed. It may have started the next group already.
    """
    group = [rank for rank, restarts in _ranks(child.pid) if restarts == attempt]

    def kill_what_is_left() -> None:
        for process in group:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def kill_a_launcher_that_stands_still() -> None:
        if child.poll() is None and all(restarts == attempt for _, restarts in _ranks(child.pid)):
            child.kill()

    for after_s, what in ((SHUTDOWN_S, kill_what_is_left), (AGAIN_S, kill_a_launcher_that_stands_still)):
        timer = threading.Timer(after_s, what)
        timer.daemon = True
        timer.start()


def _ranks(launcher: int) -> list[tuple[psutil.Process, str | None]]:
    """The processes that a torchrun has started, each with torchrun's count of restarts at its start."""
    found = []
    with suppress(psutil.Error):
        for process in psutil.Process(launcher).children(recursive=True):
            with suppress(psutil.Error):
                found.append((process, process.environ().get(ENV_RESTARTS)))
    return found


def end_of_process(code: int) -> str:
    """How the first of the processes ended."""
    return f"a process {how_it_ended(code)}"


def broke_off(spec: JobSpec, code: int, log: str, cause: str = "") -> str:
    """The sentence for processes that died too often. ``cause``: empty where it must be found in torchrun's log."""
    times = spec.max_restarts
    again = f", also after {times} restart{'s' if times > 1 else ''}" if times else ""
    saved = f" What was saved is in {spec.checkpoints}." if spec.checkpoints is not None else ""
    return f"The training broke off: {cause or _cause(code, log)}{again}.{saved}"


def _cause(code: int, log: str) -> str:
    root = re.search(r"Root Cause.*?rank\s*: (\d+).*?exitcode\s*: (-?\d+)", log, re.DOTALL)
    if root is not None:
        return f"process {root[1]} {how_it_ended(int(root[2]))}"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"{end_of_process(code)}: {lines[-1][:200]}" if code >= 0 and lines else end_of_process(code)


def launch(spec: JobSpec, on_progress: OnMessage | None = None, stop: threading.Event | None = None) -> JobResult:
    """Run the job in separate processes, and wait for its end.

    ``on_progress`` gets each message (``progress`` lists them) in this thread. ``stop`` kills all processes at once.
    Raises JobFailed and JobStopped.
    """
    if (lacking := no_torch()) is not None:
        raise JobFailed(lacking)
    watch = JobWatch(on_progress or (lambda message: None), stop or threading.Event())
    with (
        tempfile.TemporaryDirectory(prefix="quorate-job-", ignore_cleanup_errors=True) as scratch,
        tempfile.TemporaryFile("w+", errors="replace") as log,
    ):
        for attempt in range(spec.max_restarts + 1):
            code = watch.follow(start_processes(spec, attempt, log, scratch), spec.hang_s)
            if watch.result is not None:
                return watch.result
            if watch.failed is not None:
                raise JobFailed(watch.failed)
            watch.reason = watch.reason or end_of_process(code)
            if spec.nproc > 1 and code >= 0:  # torchrun was not killed: it has used up the restarts
                break
        log.seek(0)
        raise JobFailed(broke_off(spec, code, log.read()))
