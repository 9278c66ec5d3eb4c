"""A resident device that serves Flower runs: it gets one message after another, and its ClientApp works on each.

::

    start      an answer that was not acknowledged -> reply with the same bytes
    poll       wait -> sleep -> poll
               a task whose answer the journal has -> reply with the same bytes
               a task -> fetch its content -> the ClientApp works (its process; meanwhile: *busy*)
                      -> the answer: into the journal, durably -> reply -> acknowledged
                      -> an exception, a crash, no time left -> error; the state is as it was

``journal`` holds that a message changes the state once. This file has never heard of HTTP (``FlowerPort``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import SystemRandom
from threading import Event, Thread
from typing import Protocol, assert_never

from client_sdk.flower.answer_file import AnswerFile
from client_sdk.flower.journal import NodeJournal, RunKey
from client_sdk.flower.work import AppFailed, AppWork, ErrorCode, FlowerNotice, StoredState, Worked, error
from client_sdk.http.transport import Interrupted
from client_sdk.protocol.flower import (
    ConfigValue,
    FlowerApp,
    FlowerError,
    FlowerPoll,
    FlowerTask,
    FlowerWait,
    ReplyReceipt,
)
from client_sdk.protocol.names import copied, size_text
from client_sdk.protocol.problems import Problem, ProblemError

REST_S = (1.0, 3.0)
"""The window of a pause in seconds after a refusal, so that no answer makes a device spin."""
SPARE_S = 1.0
"""Before a message's time is over the ClientApp is stopped, so that the error still arrives; at most 5 % of it."""
SECURE_ONLY = "This device takes part only where updates are added under masks, and Flower runs are plain."


def no_reason() -> str:
    """The default of ``withheld``: the data may go in clear."""
    return ""


GONE = frozenset({"unknown-run"})
"""Refusals that say that the run is over: its journal is deleted."""


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
        """Send the reply."""

    def error(self, run: str, message: str, error: FlowerError) -> ReplyReceipt | Problem:
        """Send an error in place of a reply: the one that the ClientApp itself has replied, or why there is none."""


class FlowerDevice:
    """Serves the runs of one app.

    ``port`` reaches the coordinator; ``app`` says what the device has; ``process`` runs its ClientApp; ``journal`` is
    this node's. ``withheld`` says why the data may not go in clear, as they do in all runs of Flower; empty: they may.
    It is asked before each message. ``node_config``: what ``Context.node_config`` has. ``stop`` ends ``serve`` within a
    second. ``on_notice`` is called from the thread that serves.
    """

    def __init__(
        self,
        port: FlowerPort,
        app: FlowerApp,
        process: Runner,
        journal: NodeJournal,
        *,
        node_config: Mapping[str, ConfigValue] | None = None,
        withheld: Callable[[], str] = no_reason,
        hold_s: float = 25.0,
        presence: bool = True,
        stop: Event | None = None,
        on_notice: Callable[[FlowerNotice], None] | None = None,
    ) -> None:
        self._port = port
        self._process = process
        self._journal = journal
        self._node_config = dict(node_config or {})
        self._withheld = withheld
        self._poll = FlowerPoll(apps=(app,), hold_s=hold_s)
        self._presence = presence
        self._stop = stop if stop is not None else Event()
        self._on_notice = on_notice
        self._reason = ""
        self._chance = SystemRandom().random

    def serve(self, messages: int | None = None) -> int:
        """Serve until ``stop``, or so many messages. Returns how many were answered.

        ProblemError where the coordinator refuses this device for good, StorageError where its folder cannot be used.
        """
        answered = 0
        try:
            for answer in () if self._withheld() else self._journal.unsent():
                self._notify("sent-again", "Sends its last reply again.", answer.header.run)
                self._send(answer)
            while not self._stop.is_set() and (messages is None or answered < messages):
                task = self._port.poll(self._asking())
                match task:
                    case FlowerTask():
                        self._reason = ""
                        answered += self.answer(task)
                    case FlowerWait():
                        self._wait(task)
                    case Problem():
                        raise ProblemError(task)
                    case _:
                        assert_never(task)
        except Interrupted:
            pass
        return answered

    def answer(self, task: FlowerTask) -> bool:
        """Answer one message: with what the journal has, or by letting the ClientApp work. Whether the coordinator has
        the answer now."""
        received = time.monotonic()
        if withheld := self._withheld():
            return self._send_error(task, error(ErrorCode.MESSAGE_UNAVAILABLE, withheld))
        if task.app not in self._poll.apps:
            reason = f"This device has not got {task.app.name} {task.app.version} ({task.app.digest[:12]})."
            return self._send_error(task, error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, reason))
        key = RunKey(task.run, task.number)
        stored = self._journal.answer(key, task.message)
        if stored is not None:
            self._notify("sent-again", "Sends the reply to this message again.", task.run, task)
            return self._send(stored, task)
        if self._journal.is_over(key, task.message):
            reason = "This message was answered before, and its reply is not stored any more."
            return self._send_error(task, error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason))
        found = self._port.fetch(task)
        if isinstance(found, Problem):
            return self._refused(found, key, task)
        self._notify("message", f"Received {task.kind}, {size_text(task.bytes)}.", task.run, task)
        began = time.monotonic()
        work = self._work(task, key, str(found))
        over = Event()

        def busy() -> None:
            wait = self._port.here(self._asking(task))
            if wait is not None and task.run in wait.over:
                over.set()

        with present(busy) if self._presence else nullcontext():
            left_s = task.expires_in_s - (began - received) - min(SPARE_S, 0.05 * task.expires_in_s)
            said = self._process.run(work, left_s, over.is_set)
        if over.is_set():
            self._notify("stopped", "The run is over, and the ClientApp was stopped.", task.run, task)
            self._journal.forget(key)
            return False
        if isinstance(said, AppFailed):
            return self._send_error(task, said.error)
        return self._send(self._journal.keep(), task, time.monotonic() - began)

    def forget(self, run: str) -> None:
        """A run of this name is over: delete what is kept of it."""
        for key in self._journal.runs:
            if key.run == run:
                self._journal.forget(key)

    def _asking(self, busy: FlowerTask | None = None) -> FlowerPoll:
        """A poll that says what this device has, and ``busy`` with what it is."""
        runs = {key.run: key.number for key in self._journal.runs}
        said = self._poll.changed(secure_only=True) if self._withheld() else self._poll
        if busy is None:
            return said.changed(runs=runs) if runs else said
        return said.changed(runs={**runs, busy.run: busy.number}, busy=busy.message, hold_s=0.0)

    def _work(self, task: FlowerTask, key: RunKey, content: str) -> AppWork:
        state = self._journal.state(key)
        return copied(
            AppWork,
            task,
            node_config=self._node_config,
            run_config=task.config,
            type=task.kind,
            group=task.group if task.grouped else "",
            content=content,
            state=None
            if state is None
            else StoredState(path=str(state.path), start=state.state_at, bytes=state.header.state_bytes),
            answer=str(self._journal.draft),
        )

    # ------------------------------------------------------------ sending

    def _send(self, answer: AnswerFile, task: FlowerTask | None = None, worked_s: float | None = None) -> bool:
        header, run = answer.header, answer.header.run
        if header.reply is None:
            receipt = self._port.error(run, header.message, header.error or FlowerError(code=0))
        else:
            receipt = self._port.reply(answer)
        if isinstance(receipt, Problem):
            return self._refused(receipt, RunKey(run, header.number), task)
        self._journal.acknowledged(answer)
        if receipt.digest != header.reply:
            self._notify("refused", "Another answer to this message counts.", run, task)
            return True
        took = "" if worked_s is None else f" after {worked_s:.1f} s"
        self._notify("replied", f"Replied{took}, {size_text(header.reply_bytes)}.", run, task)
        return True

    def _send_error(self, task: FlowerTask, found: FlowerError) -> bool:
        self._notify("error", f"Error {found.code}: {found.reason}", task.run, task)
        receipt = self._port.error(task.run, task.message, found)
        if isinstance(receipt, ReplyReceipt):
            return True
        return self._refused(receipt, RunKey(task.run, task.number), task)

    def _refused(self, refused: Problem, key: RunKey, task: FlowerTask | None) -> bool:
        self._notify("refused", f"{refused}", key.run, task)
        if refused.is_ours and refused.kind in GONE:
            self._journal.forget(key)
        self._pause(*REST_S)
        return False

    # ------------------------------------------------------------ waiting

    def _wait(self, wait: FlowerWait) -> None:
        runs = {key.run: key for key in self._journal.runs}
        for run in wait.over:
            if run in runs:
                self._journal.forget(runs[run])
        if wait.reason != self._reason:
            self._reason = wait.reason
            self._notify("waiting", wait.reason)
        self._pause(wait.again_min_s, max(wait.again_min_s, wait.again_max_s))

    def _pause(self, low: float, high: float) -> None:
        self._stop.wait(low + (high - low) * self._chance())

    def _notify(self, kind: str, text: str, run: str | None = None, task: FlowerTask | None = None) -> None:
        if self._on_notice is not None:
            group, message = (task.group, task.message) if task is not None else ("", None)
            notice = {"kind": kind, "text": text, "run": run, "group": group, "message": message}
            self._on_notice(FlowerNotice(**notice))  # type: ignore[arg-type]


# ------------------------------------------------------------ presence

PRESENCE_S = 15.0
"""Seconds between two such requests: a coordinator takes a device as gone after four times that. A ClientApp that is
done sooner costs none."""


@contextmanager
def present(say: Callable[[], None], every_s: float | None = None) -> Iterator[None]:
    """Say from a thread of its own that a device is there while its ClientApp works, which may take hours: call ``say``
    every ``every_s`` seconds (None: PRESENCE_S) while the block runs, first after that time. What it raises is
    dropped."""
    over = Event()

    def repeat() -> None:
        while not over.wait(PRESENCE_S if every_s is None else every_s):
            try:
                say()
            except Exception:  # noqa: BLE001, S112 - the next one may succeed, and nothing depends on it
                continue

    thread = Thread(target=repeat, name="presence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
