"""The port of a device over HTTP: certified by its authority, registered, each request signed.

Contents and replies go through files: a download that broke goes on where it ended, and a reply is sent from the
journal's file. Neither is held in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from threading import Event
from typing import BinaryIO, TypeVar

from client_sdk.device.actions import Action, Answered, Failed, Fetch, Reply, RequestRefused, Send
from client_sdk.device.checkpoint_cache import FileCheckpoints
from client_sdk.device.enrolling import Enrolling, begun
from client_sdk.device.record import Record, Storage, StorageError
from client_sdk.device.requests import NoAnswerInTime, Pacing
from client_sdk.flower.answer_file import AnswerFile
from client_sdk.http.authority import Who
from client_sdk.http.driver import DeviceDriver, Notice
from client_sdk.http.transport import until
from client_sdk.protocol.devices import CheckIn, CheckpointRef, Policy
from client_sdk.protocol.flower import FLOWER_MEDIA_TYPE, FlowerError, FlowerPoll, FlowerTask, FlowerWait, ReplyReceipt
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import Problem, problem

OTHER_WORK = (
    "This folder is that of a device in a round of {run}: let it finish without --flower, or give this one a folder of "
    "its own."
)
R = TypeVar("R")
Asked = Generator[Action, Reply, Message | Problem]


class FlowerSession(Enrolling):
    """A device's requests to one coordinator, as generators of actions: repeated until they are answered. Becoming
    known, renewing and registering again are those of every device."""

    def start(self, coordinator: str) -> Generator[Action, Reply, None]:
        """Be known to the coordinator of this URL. ProblemError where this device is refused, or is in a round."""
        if self.record.assignment is not None:
            raise problem("conflict", OTHER_WORK.format(run=self.record.assignment.run))
        yield from self.become_known(coordinator)

    def poll(self, poll: FlowerPoll) -> Asked:
        """FlowerTask or FlowerWait; Problem where the coordinator has no Flower runs."""
        yield from self.renew_in_time()
        return (yield from self.ask(_polling(poll)))

    def fetch(self, task: FlowerTask) -> Generator[Action, Reply, Problem | None]:
        """Have the content of the task's message; the problem where it cannot be had."""
        content = CheckpointRef(version=0, digest=task.content, bytes=task.bytes)
        path = Route.FLOWER_CONTENT.format(run=task.run, digest=task.content)
        try:
            found = yield from self.fetch_bytes(Fetch(checkpoint=content, place=path), self.now + task.expires_in_s)
        except NoAnswerInTime:
            return problem("late", "The message's time was over before its content was here.").problem
        if isinstance(found, Failed):
            return problem("disk-full", found.reason).problem
        return found.problem if isinstance(found, RequestRefused) else None


class FlowerFiles:
    """The files of a device's requests: contents that it has fetched, and the one reply that it sends."""

    def __init__(self, folder: Path) -> None:
        self.checkpoints = FileCheckpoints(folder, keep=2, suffix=".content")
        self.sending: AnswerFile | None = None

    def update(self, digest: str) -> BinaryIO:
        if self.sending is None or self.sending.header.reply != digest:
            raise StorageError(f"The reply {digest[:12]} is not the one that is sent.")
        return self.sending.open_reply()


class HttpFlowerPort(DeviceDriver):
    """A ``FlowerPort`` to one coordinator. For the arguments see ``http.client.Client``; ``folder`` gets the contents
    of messages, ``stop`` ends every wait within a second by Interrupted."""

    def __init__(
        self,
        coordinator: str,
        storage: Storage,
        folder: Path,
        *,
        enrolment_token: str | None = None,
        who: Who | str = "",
        label: str = "",
        secure_only: bool = False,
        stop: Event | None = None,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> None:
        self._files = FlowerFiles(folder)
        super().__init__(
            coordinator,
            storage,
            files=self._files,
            enrolment_token=enrolment_token,
            who=who,
            on_notice=on_notice,
        )
        if stop is not None:
            self._stop = stop
        record = storage.load()
        self._use(record if record is not None else Record())
        offer = CheckIn(examples=0, learners={}, policy=Policy(secure_only=secure_only))
        self._session = FlowerSession(
            begun(record, None, os.urandom), lambda: offer, self._token, label, Pacing(), self._now()
        )

    def start(self) -> None:
        """Be certified and registered. ProblemError; Interrupted."""
        self._ask(self._session.start(self.coordinator))

    # ------------------------------------------------------------ the port

    def poll(self, poll: FlowerPoll) -> FlowerTask | FlowerWait | Problem:
        answer = self._ask(self._session.poll(poll))
        if not isinstance(answer, FlowerTask | FlowerWait | Problem):
            raise TypeError(f"a poll was answered with {answer!r}")
        return answer

    def here(self, poll: FlowerPoll) -> FlowerWait | None:
        with until(self._stop.is_set):
            reply = self._exchange.send(_polling(poll))
        return reply.message if isinstance(reply, Answered) and isinstance(reply.message, FlowerWait) else None

    def fetch(self, task: FlowerTask) -> Path | Problem:
        while True:
            refused = self._ask(self._session.fetch(task))
            if refused is not None:
                return refused
            found = self._files.checkpoints.path(task.content)
            if found is not None:
                return found

    def reply(self, answer: AnswerFile) -> ReplyReceipt | Problem:
        header = answer.header
        self._files.sending = answer
        send = Send(
            method="PUT",
            route=Route.FLOWER_REPLY,
            answers=(ReplyReceipt,),
            path={"run": header.run, "message": header.message},
            update=header.reply,
            media_type=FLOWER_MEDIA_TYPE,
        )
        return self._receipt(send)

    def error(self, run: str, message: str, error: FlowerError) -> ReplyReceipt | Problem:
        path: dict[str, str | int] = {"run": run, "message": message}
        return self._receipt(
            Send(method="POST", route=Route.FLOWER_ERROR, answers=(ReplyReceipt,), path=path, message=error)
        )

    def _receipt(self, send: Send) -> ReplyReceipt | Problem:
        answer = self._ask(self._session.ask(send))
        if not isinstance(answer, ReplyReceipt | Problem):
            raise TypeError(f"a reply was answered with {answer!r}")
        return answer

    def _ask(self, asked: Generator[Action, Reply, R]) -> R:
        return self._drive(asked, self._perform)


def _polling(poll: FlowerPoll) -> Send:
    return Send(method="POST", route=Route.FLOWER_TASKS, answers=(FlowerTask, FlowerWait), message=poll)
