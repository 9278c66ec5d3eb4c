"""The output of ``quorate datacenter join`` while it runs: lines of text, or JSON."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from client_sdk.commands.long_running import say_stopped
from client_sdk.http.client import Notice
from client_sdk.protocol.workers import Lease
from client_sdk.terminal import say, say_json
from coordinator.datacenter.preflight import PreflightReport
from coordinator.datacenter.progress import ProgressThrottle, plain_line


class AgentOutput:
    """Prints events as text or JSON; the progress of a training only after an interval."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._throttle = ProgressThrottle()

    def of_worker(self, notice: Notice) -> None:
        """Print an event of the worker. ``of_job`` prints the events of training."""
        if notice.kind not in ("training", "progress"):
            self._print(notice.kind, notice.text, notice.run, notice.round)

    def of_job(self, lease: Lease, message: dict[str, Any]) -> None:
        """Print a message of a training, in the thread that trains."""
        if message["event"] not in ("started", "progress", "saved", "restarted") or not self._throttle.allows(message):
            return
        about = {name: _finite(value) for name, value in message.items() if name not in ("event", "reason")}
        with suppress(BrokenPipeError):  # a closed output must not lose the round
            self._print(str(message["event"]), plain_line(message), lease.run, lease.round, about)

    def _print(
        self, kind: str, text: str, run: str | None, round: int | None, about: dict[str, Any] | None = None
    ) -> None:
        if self._as_json:
            say_json({"kind": kind, "run": run, "round": round, "text": text, **(about or {})})
        else:
            say(f"{run} round {round}: {text}" if about is not None else text[:1].upper() + text[1:])

    def ready(self, url: str, ready: PreflightReport, nproc: int) -> None:
        if self._as_json:
            say_json({"kind": "ready", "coordinator": url, "nproc": nproc, **ready.model_dump()})
            return
        held = ", ".join(f"{name} ({count:,} examples)" for name, count in ready.examples.items())
        on = f"{ready.gpus} GPU{'s' if ready.gpus > 1 else ''}" if ready.gpus else "CPUs"
        group = f"up to {nproc} processes" if nproc > 1 else "one process"
        say(f"This worker holds {held}, trains with {group} on {on}, and talks to {url}. Ctrl-C stops it.")

    def of_group(self, text: str) -> None:
        """Print that a machine of the group came, went, or is excluded."""
        self._print("group", text, None, None)

    def stopped(self, ended: int) -> None:
        say_stopped(ended, self._as_json)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
