"""The port of one simulated node: its requests in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from client_sdk.flower.answer_file import AnswerFile
from client_sdk.protocol.flower import FlowerError, FlowerPoll, FlowerTask, FlowerWait, ReplyReceipt
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem, ProblemError
from simulation.flower.requests import InProcess

PART_BYTES = 1 << 20


class NodePort:
    """A ``FlowerPort`` to the coordinator in this process."""

    def __init__(self, requests: InProcess, device: str, folder: Path) -> None:
        """``folder``: holds the content of a message until it is answered."""
        self._requests = requests
        self._device = device
        self._fetching, self._fetched = folder / "content.part", folder / "content"

    def poll(self, poll: FlowerPoll) -> FlowerTask | FlowerWait | Problem:
        found: FlowerTask | FlowerWait = self._requests.ask("POST", Route.FLOWER_TASKS, poll)
        return found

    def here(self, poll: FlowerPoll) -> FlowerWait | None:
        found = self.poll(poll)
        return found if isinstance(found, FlowerWait) else None

    def fetch(self, task: FlowerTask) -> Path | Problem:
        coordinator = self._requests.coordinator
        try:
            coordinator.flower.contents.require(task.run, task.content, self._device)
        except ProblemError as error:
            return error.problem
        with coordinator.core.blobs.open(task.content) as file, self._fetching.open("wb") as copy:
            shutil.copyfileobj(file, copy, PART_BYTES)
        return self._fetching.replace(self._fetched)

    def reply(self, answer: AnswerFile) -> ReplyReceipt | Problem:
        header = answer.header
        if header.error is not None or header.reply is None:
            return self.error(header.run, header.message, header.error or FlowerError(code=0))
        path = {"run": header.run, "message": header.message}
        try:
            with answer.open_reply() as file:
                found: ReplyReceipt = self._requests.send("PUT", Route.FLOWER_REPLY, _parts(file), header.reply, **path)
        except ProblemError as error:
            return error.problem
        self._fetched.unlink(missing_ok=True)
        return found

    def error(self, run: str, message: str, error: FlowerError) -> ReplyReceipt | Problem:
        try:
            found: ReplyReceipt = self._requests.ask("POST", Route.FLOWER_ERROR, error, run=run, message=message)
        except ProblemError as refused:
            return refused.problem
        self._fetched.unlink(missing_ok=True)
        return found


def _parts(file: BinaryIO) -> Iterator[bytes]:
    while part := file.read(PART_BYTES):
        yield part
