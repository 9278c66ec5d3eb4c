"""The port through which a device serves Flower runs: over HTTP, or in one process with the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from client_sdk.flower.answer_file import AnswerFile
from client_sdk.flower.work import AppFailed, AppWork, Worked
from client_sdk.protocol.flower import FlowerError, FlowerPoll, FlowerTask, FlowerWait, ReplyReceipt
from client_sdk.protocol.problems import Problem


class Runner(Protocol):
    """Runs a ClientApp: ``app_process.AppProcess``, or one of several."""

    def run(self, work: AppWork, within_s: float, over: Callable[[], bool] | None = None) -> Worked | AppFailed:
        """Let the ClientApp work on one message, for at most ``within_s`` seconds, and no longer than until ``over``.
        Interrupted."""


class FlowerPort(Protocol):
    """The requests of a device. Each is repeated until it is answered; Problem: a refusal that is final for it.

    Each raises ProblemError where the device is refused for good, and Interrupted where it is to stop.
    """

    def poll(self, poll: FlowerPoll) -> FlowerTask | FlowerWait | Problem:
        """Ask for a message."""

    def here(self, poll: FlowerPoll) -> FlowerWait | None:
        """Say once that the device is there, from another thread while the ClientApp works. None: it was not heard."""

    def fetch(self, task: FlowerTask) -> Path | Problem:
        """A file with the content of a task's message, checked against its digest."""

    def reply(self, answer: AnswerFile) -> ReplyReceipt | Problem:
        """Send the reply, or the error that the ClientApp itself has replied."""

    def error(self, run: str, message: str, error: FlowerError) -> ReplyReceipt | Problem:
        """Say that there is no reply, and why."""
