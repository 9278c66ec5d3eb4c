"""How a worker becomes known: certified by the authority, registered at the coordinator, as devices do it
(``client_sdk.device.enrolling``). Its record is of the same kind; it has no rounds in it.
"""

from __future__ import annotations

from collections.abc import Generator

from client_sdk.credentials.certificate import HolderClass
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.device.actions import (
    Action,
    Answered,
    Certified,
    Certify,
    Failed,
    Reply,
    RequestRefused,
    Save,
    Send,
    Sleep,
    Unreachable,
)
from client_sdk.device.enrolling import Enrolling
from client_sdk.device.record import Record
from client_sdk.device.requests import Pacing
from client_sdk.protocol.devices import CheckIn, Registered
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import Problem, problem
from client_sdk.protocol.workers import WorkerRegistered, WorkerRegistration
from coordinator.datacenter.worker.actions import WorkerAction, WorkerReply

NEW = "This worker has no certificate; start it with --token-file FILE ('quorate authority token --worker' makes one)."


class WorkerEnrolling(Enrolling):
    """A worker's certificate and registration."""

    holder: HolderClass = "worker"

    def __init__(self, record: Record, token: EnrolmentToken | None, label: str, pacing: Pacing, at: float) -> None:
        super().__init__(record, CheckIn, token, label, pacing, at)
        if token is None and record.registered is None and not record.certificate:
            raise problem("enrolment-refused", NEW)

    def registration(self) -> Send:
        message = WorkerRegistration(certificate=self.record.certificate, label=self.label)
        return Send(method="POST", route=Route.REGISTER_WORKER, answers=(WorkerRegistered,), message=message)

    def registered(self, answer: Message | Problem) -> Registered | None:
        return Registered(device=answer.worker, examples_cap=0) if isinstance(answer, WorkerRegistered) else None


def as_worker(steps: Generator[Action, Reply, None]) -> Generator[WorkerAction, WorkerReply, None]:
    """The same steps among a worker's actions."""
    reply: Reply = None
    while True:
        try:
            action = steps.send(reply)
        except StopIteration:
            return
        if not isinstance(action, Save | Certify | Send | Sleep):
            raise TypeError(f"a worker does not {action!r}")
        answer = yield action
        if not isinstance(answer, Answered | Certified | RequestRefused | Unreachable | Failed | None):
            raise TypeError(f"the driver answered {action!r} with {answer!r}")
        reply = answer
