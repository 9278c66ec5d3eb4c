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

import httpx2

from client_sdk.device.actions import Action, Answered, Reply, Send
from client_sdk.device.checkpoint_cache import FileCheckpoints
from client_sdk.device.flower_session import FlowerSession
from client_sdk.device.record import Record, Storage, StorageError
from client_sdk.device.requests import Pacing
from client_sdk.flower.answer_file import AnswerFile
from client_sdk.http.certifying import Who
from client_sdk.http.driver import DeviceDriver
from client_sdk.http.notices import Notice
from client_sdk.http.transport import until
from client_sdk.identity import Signer
from client_sdk.protocol.flower import FlowerError, FlowerPoll, FlowerTask, FlowerWait, ReplyReceipt
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem

R = TypeVar("R")


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
        signer: Signer | None = None,
        http: httpx2.Client | None = None,
        pacing: Pacing | None = None,
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
            signer=signer,
            http=http,
            on_notice=on_notice,
        )
        if stop is not None:
            self._stop = stop
        record = storage.load()
        self._use(record if record is not None else Record())
        self._session = FlowerSession(
            record,
            coordinator=self.coordinator,
            token=self._token,
            label=label,
            secure_only=secure_only,
            signer=signer,
            pacing=pacing,
            entropy=os.urandom,
            at=self._now(),
        )

    def start(self) -> None:
        """Be certified and registered. ProblemError; Interrupted."""
        self._ask(self._session.start())

    @property
    def device(self) -> str | None:
        """The id of this device, once it is registered."""
        registered = self._record.registered
        return registered.device if registered is not None else None

    # ------------------------------------------------------------ the port

    def poll(self, poll: FlowerPoll) -> FlowerTask | FlowerWait | Problem:
        answer = self._ask(self._session.poll(poll))
        if not isinstance(answer, FlowerTask | FlowerWait | Problem):
            raise TypeError(f"a poll was answered with {answer!r}")
        return answer

    def here(self, poll: FlowerPoll) -> FlowerWait | None:
        send = Send(method="POST", route=Route.FLOWER_TASKS, answers=(FlowerTask, FlowerWait), message=poll)
        with until(self._stop.is_set):
            reply = self._exchange.send(send)
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
        if header.error is not None or header.reply is None:
            return self.error(header.run, header.message, header.error or FlowerError(code=0))
        self._files.sending = answer
        return _receipt(self._ask(self._session.reply(header.run, header.message, header.reply)))

    def error(self, run: str, message: str, error: FlowerError) -> ReplyReceipt | Problem:
        return _receipt(self._ask(self._session.error(run, message, error)))

    def _ask(self, asked: Generator[Action, Reply, R]) -> R:
        return self._drive(asked, self._perform)


def _receipt(answer: object) -> ReplyReceipt | Problem:
    if not isinstance(answer, ReplyReceipt | Problem):
        raise TypeError(f"a reply was answered with {answer!r}")
    return answer
