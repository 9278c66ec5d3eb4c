"""The messages of a training job while it runs, one a line.

::

    started     world, device, parameters, examples, steps, step (where it begins: above 0 when resumed)
    progress    step, loss, learning_rate, samples_per_s, communication_share
    saved       step
    worker_lost reason                                a process without which the others go on
    restarted   attempt, reason                       from the launcher: the processes died and were started again
    done        report, out, digest                   the last line of a job that reached its end
    lost        reason, attempt                       from a process to the launcher: its group failed
    failed      reason                                one sentence; the last line of a job that cannot be done

Messages go to standard output after a mark, which separates them from what a learner prints.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

MARK = "@quorate "
LOG_EVERY_S = 10.0
"""Seconds between two progress messages in logs and of agents."""

OnMessage = Callable[[dict[str, Any]], None]
"""Receives the messages of a job; each has its kind under ``event``."""


def write_line(message: dict[str, Any]) -> None:
    """Write a message for the launcher to standard output."""
    sys.stdout.write(MARK + json.dumps(message) + "\n")
    sys.stdout.flush()


def read_line(line: str) -> dict[str, Any] | None:
    """The message in a line; None where the line is not a message."""
    if not line.startswith(MARK):
        return None
    try:
        message = json.loads(line[len(MARK) :])
    except ValueError:
        return None
    return message if isinstance(message, dict) and isinstance(message.get("event"), str) else None


def plain_line(message: dict[str, Any]) -> str:
    """A message as a line of text."""
    match message["event"]:
        case "started":
            where = f"{message['world']} process{'es' if message['world'] > 1 else ''} on {message['device']}"
            begin = f" from step {message['step']}" if message["step"] else ""
            return (
                f"Training {message['parameters']:,} parameters on {message['examples']:,} examples, {where}{begin} "
                f"to step {message['steps']}."
            )
        case "progress":
            share = message["communication_share"]
            communicating = "" if share is None else f", {share:.0%} of the time communicating"
            return (
                f"Step {message['step']} of {message['steps']}: loss {message['loss']:.4g}, "
                f"{message['samples_per_s']:,.0f} samples/s{communicating}"
            )
        case "saved":
            return f"Saved step {message['step']}."
        case "restarted":
            return f"Started again ({message['reason']}), attempt {message['attempt'] + 1}."
        case "done":
            report = message["report"]
            out = f" The model is in {message['out']} ({message['digest'][:12]})." if message.get("out") else ""
            loss = "" if report["loss"] is None else f", loss {report['loss']:.4g}"
            return f"Done: {report['steps']} steps{loss}, in {report['seconds']:.1f} s{_memory(report)}.{out}"
        case _:
            return str(message.get("reason", message["event"]))


def _memory(report: dict[str, Any]) -> str:
    """What a training needed of memory, where it took a step."""
    if report.get("peak_bytes"):
        return f", with {report['peak_bytes'] / 1e6:,.0f} MB of the GPU at most"
    saved = report.get("saved_bytes")
    return f", with {saved / 1e6:,.1f} MB kept for the backward pass" if saved else ""


class ProgressThrottle:
    """Selects the messages to show in logs: all, but ``progress`` only every LOG_EVERY_S and at the last step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown_at: float | None = None

    def allows(self, message: dict[str, Any]) -> bool:
        """Whether to show this one, which then counts as shown."""
        if message["event"] != "progress":
            return True
        now = self._clock()
        if self._shown_at is not None and now - self._shown_at < LOG_EVERY_S and message["step"] != message["steps"]:
            return False
        self._shown_at = now
        return True


class Meter:
    """Measures samples per second and the share of communication since the last ``progress`` message."""

    def __init__(self, on_message: OnMessage) -> None:
        self._on_message = on_message
        self._since = self.began = time.monotonic()
        self._samples = self._steps = 0

    def step(self, fields: dict[str, Any], samples: int, communication_s: Callable[[], float | None]) -> None:
        """One step of ``samples`` examples is done. Sends a message when a second has passed, and at the last step.

        ``communication_s``: mean seconds of a step that are communication only.
        """
        self._samples += samples
        self._steps += 1
        passed = time.monotonic() - self._since
        if passed < 1.0 and fields["step"] != fields["steps"]:
            return
        waited = communication_s()
        self._on_message(
            {
                "event": "progress",
                **fields,
                "samples_per_s": round(self._samples / max(passed, 1e-9), 1),
                "communication_share": None
                if waited is None
                else round(min(1.0, waited * self._steps / max(passed, 1e-9)), 4),
            }
        )
        self._since = time.monotonic()
        self._samples = self._steps = 0
