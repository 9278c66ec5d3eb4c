"""The processes of a job: how they are started, listened to, and killed. Has no torch itself.

A start is torchrun with its ranks, or one plain process. All hold the reading end of a pipe as their standard input,
and end with whoever holds the other end.
"""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

from coordinator.datacenter.progress import Tell, read_line
from coordinator.datacenter.spec import SHUTDOWN_S, JobResult, JobSpec, JobStopped, Place

ENV_JOB = "QUORATE_JOB"
ENV_LIFELINE = "QUORATE_LIFELINE"
ENV_ATTEMPT = "QUORATE_ATTEMPT"
ENV_LAUNCH = "QUORATE_LAUNCH"
"""Another word for each start of processes: whoever has it in the environment belongs to that start."""
ENV_NODE = "QUORATE_NODE"
"""Number of the machine in its group; 0 leads."""
ENV_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
MEET_S = 120
"""Seconds that the launchers of several machines wait for each other."""
AGAIN_S = 60
"""Seconds that torchrun has to start a broken group again, or to give up."""


class Watch:
    """Reads what the processes of one job say, over all their starts, and kills them where they must not go on."""

    def __init__(self, heard: Tell, stop: threading.Event) -> None:
        self._heard, self._stop = heard, stop
        self._starts = 0
        self._silent_after = math.inf
        self._silence = ""
        self.result: JobResult | None = None
        self.failed: str | None = None
        self.reason = ""

    def follow(self, start: Start) -> int:
        """Until all processes of a start are gone. Returns the exit code of the first of them; JobStopped where they
        were told to stop."""
        processes, gone = start.processes, threading.Event()
        self._silent_after = math.inf

        def kill_when_told() -> None:
            while not gone.wait(0.05):
                if self._stop.is_set():
                    kill_all(processes.pid)
                if time.monotonic() > self._silent_after:
                    self.reason, self._silent_after = self.reason or self._silence, math.inf
                    kill_all(processes.pid)
                if processes.poll() is None:
                    continue
                if processes.stdin is not None:
                    processes.stdin.close()  # a killed torchrun leaves its ranks behind: they end with this pipe,
                if not gone.wait(SHUTDOWN_S):
                    kill_marked(start.mark)  # but for those that are stopped or stuck, which would be heard for ever
                return

        watcher = threading.Thread(target=kill_when_told, daemon=True)
        watcher.start()
        try:
            for line in processes.stdout or ():
                message = read_line(line)
                if message is not None:
                    self._hear(message)
                    self._expect_more(message["event"], start.hang_s)
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
            kill_marked(start.mark)
            for pipe in (processes.stdin, processes.stdout):
                if pipe is not None:
                    pipe.close()
        if self._stop.is_set() and self.result is None:
            raise JobStopped("The training was told to stop.")
        return code

    def _expect_more(self, event: str, hang_s: float) -> None:
        """How long the processes may be silent after these words.

        A rank that waits for another breaks the group itself, after ``hang_s``. Where all of them stand still, or the
        only one, nobody is left to notice but the launcher; it gives them twice as long. How long they load before they
        train is not known.
        """
        training = event not in ("lost", "failed", "done")
        self._silence = f"no process did anything for {2 * hang_s:g} s"
        self._silent_after = time.monotonic() + 2 * hang_s if training else math.inf

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


def kill_marked(mark: str) -> None:
    """SIGKILL for all processes of one start."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid() and process.environ().get(ENV_LAUNCH) == mark:
                process.kill()


def _clear_away(pid: int, attempt: str) -> None:
    """SIGKILL for all processes of a broken group that have not ended after SHUTDOWN_S. torchrun asks a hung one
    politely, and would wait for half a minute. One that has not started the next group after AGAIN_S is killed too.

    ``attempt``: torchrun's count of restarts when the group broke. It may have started the next group already.
    """
    try:
        launcher = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    group = [rank for rank, restarts in _ranks(launcher) if restarts == attempt]

    def kill_what_is_left() -> None:
        for process in group:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def kill_a_launcher_that_stands_still() -> None:
        if launcher.is_running() and all(restarts == attempt for _, restarts in _ranks(launcher)):
            kill_all(pid)

    for after_s, what in ((SHUTDOWN_S, kill_what_is_left), (AGAIN_S, kill_a_launcher_that_stands_still)):
        timer = threading.Timer(after_s, what)
        timer.daemon = True
        timer.start()


def _ranks(launcher: psutil.Process) -> list[tuple[psutil.Process, str | None]]:
    """The processes that a torchrun has started, each with torchrun's count of restarts then."""
    found = []
    with suppress(psutil.Error):
        for process in launcher.children(recursive=True):
            with suppress(psutil.Error):
                found.append((process, process.environ().get(ENV_RESTARTS)))
    return found


class Start:
    """Processes of one start of a job: torchrun and its ranks, or one plain process. ``log`` takes what they complain
    of."""

    def __init__(self, spec: JobSpec, attempt: int, log: IO[str], scratch: str, place: Place | None = None) -> None:
        self.mark, self.hang_s = os.urandom(8).hex(), spec.hang_s
        program = ["-m", "coordinator.datacenter.rank"]
        command = [sys.executable, *program]
        if spec.nproc > 1 or place is not None:
            command = [*torchrun(spec, place), "--log-dir", scratch, *program]
        self.processes = subprocess.Popen(
            command,
            env=_environment(spec, attempt, place, self.mark),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("QUORATE_DEBUG") else log,
            text=True,
            errors="replace",
            start_new_session=True,
        )


def torchrun(spec: JobSpec, place: Place | None = None) -> list[str]:
    """The command that starts the processes of a job on this machine, up to the program itself.

    On one machine torchrun starts them again itself. On several a lost process ends torchrun on every machine, and
    whoever leads has all of them started again.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(spec.nproc)]
    command += ["--monitor-interval", "0.1", "--shutdown-timeout", str(SHUTDOWN_S)]
    if place is None:
        return [*command, "--standalone", "--local-addr", "127.0.0.1", "--max-restarts", str(spec.max_restarts)]
    command += ["--nnodes", str(place.nnodes), "--node-rank", str(place.node), "--max-restarts", "0"]
    command += ["--rdzv-backend", "static", "--rdzv-endpoint", place.endpoint, "--rdzv-id", place.meeting]
    return [*command, "--rdzv-conf", f"timeout={MEET_S}"]


def _environment(spec: JobSpec, attempt: int, place: Place | None, mark: str) -> dict[str, str]:
    env = {**os.environ, ENV_JOB: spec.model_dump_json(), ENV_LIFELINE: "1", ENV_ATTEMPT: str(attempt)}
    env |= {ENV_LAUNCH: mark, ENV_NODE: str(place.node if place is not None else 0)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        env.pop(name, None)
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // spec.nproc)))
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


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"a process ended with code {code}"
    try:
        return f"a process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"a process was killed by signal {-code}"


def broke_off(spec: JobSpec, code: int, log: str, cause: str = "") -> str:
    """What to say where the processes died too often. ``cause``: where it is known; else torchrun's log may tell."""
    times = spec.max_restarts
    again = f", also after {times} restart{'s' if times > 1 else ''}" if times else ""
    kept = f" What was saved is in {spec.checkpoints}." if spec.checkpoints is not None else ""
    return f"The training broke off: {cause or _cause(code, log)}{again}.{kept}"


def _cause(code: int, log: str) -> str:
    root = re.search(r"Root Cause.*?rank\s*: (\d+).*?exitcode\s*: (-?\d+)", log, re.DOTALL)
    if root is not None:
        return how_it_ended(int(root[2])).replace("a process", f"process {root[1]}")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"{how_it_ended(code)}: {lines[-1][:200]}" if code >= 0 and lines else how_it_ended(code)
