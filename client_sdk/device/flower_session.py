"""The requests of a device that serves Flower runs, as generators of actions: repeated until they are answered.

A driver performs them one after another. Becoming known, renewing and registering again are those of every device
(``enrolling``); what is done with a message is decided by ``client_sdk.flower.serving``.
"""

from __future__ import annotations

from collections.abc import Generator

from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.device.actions import Action, Failed, Fetch, Reply, RequestRefused, Send
from client_sdk.device.enrolling import Enrolling, begun
from client_sdk.device.record import Record
from client_sdk.device.requests import NoAnswerInTime, Pacing
from client_sdk.identity import Entropy, Signer
from client_sdk.protocol.devices import CheckIn, CheckpointRef, Policy
from client_sdk.protocol.flower import (
    FLOWER_MEDIA_TYPE,
    FlowerError,
    FlowerPoll,
    FlowerTask,
    FlowerWait,
    ReplyReceipt,
)
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import Problem, problem

OTHER_WORK = (
    "This folder is that of a device in a round of {run}: let it finish without --flower, or give this one a folder of "
    "its own."
)
Asked = Generator[Action, Reply, Message | Problem]


class FlowerSession(Enrolling):
    """A device's requests to one coordinator, from its saved ``record`` (None: a new device). ``at``: the time at the
    start in Unix seconds."""

    def __init__(
        self,
        record: Record | None,
        *,
        coordinator: str,
        token: EnrolmentToken | None,
        label: str,
        secure_only: bool,
        signer: Signer | None,
        pacing: Pacing | None,
        entropy: Entropy,
        at: float,
    ) -> None:
        offer = CheckIn(examples=0, learners={}, policy=Policy(secure_only=secure_only))
        super().__init__(begun(record, signer, entropy), lambda: offer, token, label, pacing or Pacing(), at)
        self._coordinator = coordinator

    def start(self) -> Generator[Action, Reply, None]:
        """Be known to the coordinator. ProblemError where this device is refused, or is in a round."""
        if self.record.assignment is not None:
            raise problem("conflict", OTHER_WORK.format(run=self.record.assignment.run))
        yield from self.become_known(self._coordinator)

    def poll(self, poll: FlowerPoll) -> Asked:
        """FlowerTask or FlowerWait; Problem where the coordinator has no Flower runs."""
        yield from self.renew_in_time()
        send = Send(method="POST", route=Route.FLOWER_TASKS, answers=(FlowerTask, FlowerWait), message=poll)
        return (yield from self.ask(send))

    def reply(self, run: str, message: str, digest: str) -> Asked:
        """ReplyReceipt, for the stored reply of this digest."""
        send = Send(
            method="PUT",
            route=Route.FLOWER_REPLY,
            answers=(ReplyReceipt,),
            path={"run": run, "message": message},
            update=digest,
            media_type=FLOWER_MEDIA_TYPE,
        )
        return (yield from self.ask(send))

    def error(self, run: str, message: str, error: FlowerError) -> Asked:
        """ReplyReceipt, for an error in place of a reply."""
        path: dict[str, str | int] = {"run": run, "message": message}
        send = Send(method="POST", route=Route.FLOWER_ERROR, answers=(ReplyReceipt,), path=path, message=error)
        return (yield from self.ask(send))

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
