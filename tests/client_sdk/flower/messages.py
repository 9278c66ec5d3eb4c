"""Messages of a scripted coordinator for a device under test: a port without HTTP."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from client_sdk.flower import records
from client_sdk.flower.answer_file import AnswerFile
from client_sdk.protocol.flower import FlowerApp, FlowerError, FlowerPoll, FlowerTask, FlowerWait, ReplyReceipt
from client_sdk.protocol.problems import Problem, problem

APP = FlowerApp(name="tests/counting", version="1.0.0", digest="0" * 64)


def named(number: int) -> str:
    """A message id."""
    return hashlib.sha256(str(number).encode()).hexdigest()


class ScriptedPort:
    """Offers each message until it is answered, and remembers what it got."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tasks: deque[FlowerTask] = deque()
        self.replies: dict[str, list[bytes]] = {}
        self.errors: dict[str, FlowerError] = {}
        self.polls: list[FlowerPoll] = []
        self.refuse: Callable[[str], Problem | None] = lambda message: None
        """What is answered to the reply to a message, in place of a receipt."""
        self.over: tuple[str, ...] = ()
        """Runs that are over, as each wait says."""
        self.after: Callable[[], None] = lambda: None
        """Called when there is no task."""

    def add(self, number: int, kind: str = "train", **changes: object) -> str:
        """Push a message whose content is an array of four ones, and return its id."""
        content = records.encode(RecordDict({"arrays": ArrayRecord([np.ones(4)])}))
        path = self._folder / content.digest
        path.write_bytes(b"".join(content.parts()))
        task = FlowerTask(
            run="r",
            number=5,
            app=APP,
            config={"rate": 0.5},
            message=named(number),
            node=77,
            kind=kind,
            group="1",
            content=content.digest,
            bytes=content.length,
            created_at=1.0,
            ttl_s=3600.0,
            expires_in_s=60.0,
            max_reply=1 << 20,
        )
        self.tasks.append(task.changed(**changes))
        return task.message

    def poll(self, poll: FlowerPoll) -> FlowerTask | FlowerWait | Problem:
        self.polls.append(poll)
        if self.tasks:
            return self.tasks[0]
        self.after()
        return self._wait()

    def here(self, poll: FlowerPoll) -> FlowerWait | None:
        self.polls.append(poll)
        return self._wait()

    def fetch(self, task: FlowerTask) -> Path | Problem:
        return self._folder / task.content

    def reply(self, answer: AnswerFile) -> ReplyReceipt | Problem:
        message = answer.header.message
        refused = self.refuse(message)
        with answer.open_reply() as file:
            self.replies.setdefault(message, []).append(file.read())
        self._done(message)
        return refused or ReplyReceipt(message=message, digest=answer.header.reply)

    def error(self, run: str, message: str, error: FlowerError) -> ReplyReceipt | Problem:
        self.errors[message] = error
        self._done(message)
        return ReplyReceipt(message=message, digest=None)

    def content(self, message: str) -> RecordDict:
        """The records of the last reply to a message."""
        return records.decode(self.replies[message][-1])

    def _wait(self) -> FlowerWait:
        return FlowerWait(reason="There is no Flower run.", again_min_s=0.0, again_max_s=0.0, over=self.over)

    def _done(self, message: str) -> None:
        self.tasks = deque(task for task in self.tasks if task.message != message)


LATE = problem("late", "The message's time is over.").problem
