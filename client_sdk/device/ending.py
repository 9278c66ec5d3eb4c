"""How a device's part in a round ends: it withdraws, asks for its outcome, and moves the round to the history."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Literal, TypeVar

from client_sdk.device.actions import Action, MemoryKept, MemoryNotKept, Reply, Save
from client_sdk.device.enrolling import Enrolling
from client_sdk.device.record import Joined
from client_sdk.device.requests import short
from client_sdk.protocol.devices import Assignment, LoggedEvent, Noted, Outcome, Withdrawal
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem
from client_sdk.secagg.actions import Keep
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.memory import Memory

T = TypeVar("T")
Steps = Generator[Action, Reply, T]


class RoundEnds(Enrolling):
    """A session's part that ends rounds. A secure round has none of its secrets left then, however it ends."""

    def keep(self, change: Callable[[Memory], Memory]) -> Steps[Memory]:
        """The memory of secure rounds after ``change``, which is stored. Raises what ``change`` raises."""
        reply = self.observe((yield Keep(change)))
        if isinstance(reply, MemoryNotKept):
            raise reply.error
        if not isinstance(reply, MemoryKept):
            raise TypeError(f"the driver answered Keep with {reply!r}")
        return reply.memory

    def remembered(self) -> Steps[Memory]:
        """The memory of secure rounds as it is stored."""
        return (yield from self.keep(lambda newest: newest))

    def sweep(self) -> Steps[None]:
        """Delete the secrets of an attempt that has expired, also where no coordinator is there to go on with. There
        are none while no secure round is under way: its end deletes them."""
        assignment = self.record.assignment
        if assignment is None or assignment.secure is None:
            return
        if not self.now:
            yield from self.remembered()  # the reply tells the time
        yield from self.keep(lambda newest: newest.swept(self.now))

    def _withdraw(self, assignment: Assignment, reason: str) -> Steps[str | None]:
        reason = short(reason)
        yield from self.save(withdrawal=reason)
        yield from self._send_withdrawal(assignment, reason)
        return (yield from self._end("withdrawn", reason))

    def _send_withdrawal(self, assignment: Assignment, reason: str) -> Steps[None]:
        """The coordinator assigns this round no more: neither does the device train the same again. Its secrets of the
        round go first, since the coordinator may never answer."""
        yield from self._forget(assignment)
        message = Withdrawal(attempt=assignment.attempt, reason=reason)
        yield from self.ask(self.of_round("POST", Route.WITHDRAWN, assignment, Noted, message))

    def _outcome(self, assignment: Assignment) -> Steps[Outcome | Problem]:
        answer = yield from self.ask(self.of_round("GET", Route.OUTCOME, assignment, Outcome))
        if not isinstance(answer, Outcome | Problem):
            raise TypeError(f"the driver answered outcome with {answer!r}")
        return answer

    def _end(
        self,
        result: Literal["receipt", "refused", "withdrawn", "dropped"],
        reason: str,
        digest: str | None = None,
        weight: int | None = None,
        logged: LoggedEvent | None = None,
    ) -> Steps[str | None]:
        """Move the round to the history, in one save. Returns the reason to rest, after a withdrawal."""
        record = self.record
        assignment = record.assignment
        if assignment is None:
            raise RuntimeError("there is no round to end")
        yield from self._forget(assignment)
        joined = Joined(
            run=assignment.run,
            round=assignment.round,
            attempt=assignment.attempt,
            device=assignment.device,
            coordinator=record.coordinator,
            plan_digest=assignment.plan_digest,
            learner=assignment.task.learner,
            checkpoint=assignment.checkpoint.digest,
            result=result,
            reason=reason,
            update_digest=digest,
            weight=weight,
            logged=logged,
            authority_inside=record.registered is not None and record.registered.authority_inside,
            joined_at=record.assigned_at,
            ended_at=max(self.now, record.assigned_at),
        )
        self.record = record.changed(
            assignment=None, assigned_at=0.0, withdrawal=None, farewell=None, update_digest=None, work=None
        )
        yield Save(record=self.record, joined=joined)
        return reason if result == "withdrawn" else None

    def _forget(self, assignment: Assignment) -> Steps[None]:
        """Delete the secrets of this round's attempt. What was signed and tried stays in the memory."""
        if assignment.secure is not None:
            yield from self.keep(lambda newest: without_round(newest, assignment))


def without_round(memory: Memory, assignment: Assignment) -> Memory:
    """``memory`` without any attempt of this round, of whichever header; the same object where there is none."""
    for live in list(memory.live.values()):
        header = AttemptHeader.parse(live.header)
        if (header.run, header.round) == (assignment.run, assignment.round):
            memory = memory.ended(live.header)
    return memory
