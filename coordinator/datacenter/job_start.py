"""Starts a job's processes on this machine: torchrun with its ranks, or one plain process. Needs no torch."""

from __future__ import annotations

import os
import socket
import sys
from typing import IO

import psutil

from client_sdk.commands.long_running import thread_variables
from coordinator.child_processes import SupervisedChild
from coordinator.datacenter.spec import SHUTDOWN_S, JobSpec, Place

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
