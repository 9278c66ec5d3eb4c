"""What ``quorate datacenter join`` says while it runs: lines for people, or JSON. Knows words and decides nothing."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any

from client_sdk.commands.long_running import say_stopped
from client_sdk.http.client import Happening
from client_sdk.protocol.workers import Lease
from client_sdk.terminal import say, say_json
from coordinator.datacenter.preflight import Ready
from coordinator.datacenter.progress import Sparing, plain_line

REPEAT_NOTICE_S = 60.0
"""Seconds after which the same words are printed again."""


class AgentOutput:
    """Says what happens, as text or JSON; the same words again, and how far a training is, only after a while."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._last = ""
        self._said_at = 0.0
        self._sparing = Sparing()

    def of_worker(self, happening: Happening) -> None:
        """What the worker does. Of the training itself ``of_job`` tells."""
        now = time.monotonic()
        again = happening.text == self._last and now - self._said_at < REPEAT_NOTICE_S
        if again or happening.kind in ("training", "progress"):
            return
        self._last, self._said_at = happening.text, now
        self._say(happening.kind, happening.text, happening.run, happening.round)

    def of_job(self, lease: Lease, message: dict[str, Any]) -> None:
        """What a training tells, from the thread that trains."""
        if message["event"] not in ("started", "progress", "saved", "restarted") or not self._sparing.wants(message):
            return
        about = {name: _finite(value) for name, value in message.items() if name not in ("event", "reason")}
        with suppress(BrokenPipeError):  # nobody reads: that is no reason to lose the round
            self._say(str(message["event"]), plain_line(message), lease.run, lease.round, about)

    def _say(
        self, kind: str, text: str, run: str | None, round: int | None, about: dict[str, Any] | None = None
    ) -> None:
        if self._as_json:
            say_json({"kind": kind, "run": run, "round": round, "text": text, **(about or {})})
        else:
            say(f"{run} round {round}: {text}" if about is not None else text[:1].upper() + text[1:])

    def ready(self, url: str, ready: Ready, nproc: int) -> None:
        if self._as_json:
            say_json({"kind": "ready", "coordinator": url, "nproc": nproc, **ready.model_dump()})
            return
        held = ", ".join(f"{name} ({count:,} examples)" for name, count in ready.examples.items())
        on = f"{ready.gpus} GPU{'s' if ready.gpus > 1 else ''}" if ready.gpus else "CPUs"
        group = f"up to {nproc} processes" if nproc > 1 else "one process"
        say(f"This worker holds {held}, trains with {group} on {on}, and talks to {url}. Ctrl-C stops it.")

    def of_group(self, text: str) -> None:
        """A machine of the group came, went, or is left out."""
        self._say("group", text, None, None)

    def stopped(self, ended: int) -> None:
        say_stopped(ended, self._as_json)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
