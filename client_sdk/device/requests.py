"""A session's requests, of devices and workers: repeated until they are answered, no faster than allowed.

======================================== =====================================================================
the answer                               what happens
======================================== =====================================================================
a good one                               returned
none at all                              Sleep (backoff), the same request again
a connection that broke after HELD_S     the backoff begins anew, since the coordinator was there: Sleep (a wide
                                         window, since every device's connection broke), the same request again
a problem whose advice is *retry*        Sleep (its Retry-After, or backoff), the same request again
*register*, *renew*                      registers again, with a newer certificate where that is asked for, then the
                                         same request; some times at most (``enrolling``)
*drop*                                   returned: the caller gives up this round's work
*stop*                                   ProblemError: the session ends
an error page of something in between    Sleep, again; while a plain round is under way until its deadline, then
                                         returned. So is that of a first registration: the address is not a
                                         coordinator's
none of these before ``expires_at``      NoAnswerInTime: of a checkpoint, or the messages of a secure round
a checkpoint with a wrong digest         fetched again; the second time returned, as *digest-mismatch*
======================================== =====================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, assert_never

from client_sdk.device.actions import (
    Answered,
    Failed,
    Fetch,
    Fetched,
    Reply,
    RequestRefused,
    Save,
    Send,
    SharedAction,
    Sleep,
    Unreachable,
    Unreadable,
)
from client_sdk.device.record import Record
from client_sdk.protocol.devices import Assignment, Noted, Withdrawal
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import Problem, ProblemError
from client_sdk.tensors import Tensors

HELD_S = 1.0
"""A connection that was open for so long reached a coordinator that works. A balancer in front of one that is down
closes at once."""
REASON_LIMIT = 500
"""Characters of a withdrawal's reason: as the protocol has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How long a device or a worker waits where the coordinator gives no time. Seconds; the driver draws from each
    window."""

    retry_s: float = 1.0
    """After a failure: between half of this and all of it; doubled at each further one."""
    retry_most_s: float = 60.0
    """The limit of doubling."""
    restart_s: float = 120.0
    """A coordinator that was there less than this ago is thought to restart: the limit is ``restart_most_s``."""
    restart_most_s: float = 8.0
    """The limit of doubling meanwhile. A connection that broke is made again within half of it: this spreads devices
    whose connections broke all at once."""
    withdrawn_s: tuple[float, float] = (30.0, 90.0)
    """After a withdrawal, so that a device that cannot train does not disturb round after round."""
    failed_s: float = 60.0
    """Where training failed again on one model of a run: so long the device takes no part with this model; doubled at
    each further failure."""
    failed_most_s: float = 6 * 3600.0
    """The limit of doubling."""
    again_s: tuple[float, float] = (2.0, 5.0)
    """Between two looks for a newer attempt of a secure round that goes on without this device."""
    soon_s: tuple[float, float] = (0.2, 0.5)
    """The least window after a *wait* that came at once, so that no answer makes a device spin."""

    @property
    def after_break_s(self) -> tuple[float, float]:
        """The window after a connection that had been open broke."""
        return self.retry_s / 2, max(self.retry_s, min(self.restart_most_s, self.retry_most_s) / 2)

    def backoff(
        self, failures: int, at_least_s: float | None = None, *, silent_s: float = float("inf")
    ) -> tuple[float, float]:
        """The window after so many failures in a row (1, 2, ...); never before ``at_least_s``, a Retry-After.

        ``silent_s``: seconds since the coordinator was there."""
        limit = min(self.retry_most_s, self.restart_most_s) if silent_s < self.restart_s else self.retry_most_s
        most = min(limit, self.retry_s * 2.0 ** min(failures - 1, 30))
        if at_least_s is None:
            return most / 2, most
        return at_least_s, at_least_s + most


class NoAnswerInTime(Exception):
    """There was no answer in the time in which one has a use."""


class Timed(Protocol):
    """A reply with its time, ``at``: Unix seconds by the driver's clock."""

    @property
    def at(self) -> float: ...


A = TypeVar("A")
R = TypeVar("R", bound=Timed | None)
Once = Callable[[], Generator[A, Any, Timed | None]]
"""Perform a request once."""
Rest = Callable[[Timed | None, int], Generator[A, Any, None]]
"""Wait after this reply, the failure of this number (1, 2, ...)."""


class Asking(ABC):
    """The record of a session, the time of its last reply, and requests that are repeated until they are answered."""

    def __init__(self, record: Record, pacing: Pacing, at: float) -> None:
        self.record = record
        self.pacing = pacing
        self.now = at
        """Unix seconds by the driver's clock, when the last reply came."""
        self._there_at = float("-inf")

    @abstractmethod
    def regain(self, reply: RequestRefused, times: int) -> Generator[SharedAction, Reply, None]:
        """Become known again, after a refusal whose advice is *register* or *renew*; for one request it was done
        ``times`` times before. ProblemError where that is impossible, or was tried too often."""

    def save(
        self, update: bytes | None = None, state: Tensors | None = None, **changes: Any
    ) -> Generator[SharedAction, Reply, None]:
        """Change the record and save it."""
        self.record = self.record.changed(**changes)
        yield Save(record=self.record, update=update, state=state)

    def observe(self, reply: R) -> R:
        """Note the reply's time, and whether the coordinator was there, and return the reply."""
        if reply is not None:
            self.now = reply.at
            if is_from_coordinator(reply):
                self._there_at = reply.at
        return reply

    @property
    def due_at(self) -> float:
        """When the deadline of the round under way passes."""
        assignment = self.record.assignment
        return self.record.assigned_at + assignment.report_within_s if assignment is not None else float("inf")

    @property
    def _gives_up_at(self) -> float:
        """When an error page of something in between becomes final. A secure round goes on after its deadline to
        report, and no error of the network ends it."""
        assignment = self.record.assignment
        return self.due_at if assignment is None or assignment.secure is None else float("inf")

    def of_round(
        self, method: str, route: Route, assignment: Assignment, answer: type[Message], message: Message | None = None
    ) -> Send:
        """A request about one round."""
        path: dict[str, str | int] = {"run": assignment.run, "round": assignment.round}
        return Send(method=method, route=route, answers=(answer,), path=path, message=message)

    def ask(
        self,
        send: Send,
        *,
        registering: bool = False,
        checking_in: bool = False,
        expires_at: float = float("inf"),
    ) -> Generator[SharedAction, Reply, Message | Problem]:
        """The good answer to ``send``, or the problem that is final for it. See the table above. ``registering``: the
        problem is returned also where its advice is *register* or *renew*. ``expires_at``: Unix seconds."""
        found = yield from self.repeat(
            send, lambda: _once(send), registering=registering, checking_in=checking_in, expires_at=expires_at
        )
        if isinstance(found, Answered):
            return found.message
        if isinstance(found, RequestRefused):
            return found.problem
        raise TypeError(f"the driver answered {send.method} {send.url} with {found!r}")

    def fetch_bytes(
        self, fetch: Fetch, expires_at: float
    ) -> Generator[SharedAction | Fetch, Reply, Fetched | Failed | RequestRefused]:
        """The reply that is final for ``fetch``; NoAnswerInTime where there was none by ``expires_at``."""
        found = yield from self.repeat(fetch, lambda: _once(fetch), expires_at=expires_at)
        if isinstance(found, Answered):
            raise TypeError(f"the driver answered {fetch!r} with {found!r}")
        return found

    def repeat(
        self,
        request: Send | Fetch,
        once: Once[A],
        rest: Rest[A] | None = None,
        *,
        registering: bool = False,
        checking_in: bool = False,
        expires_at: float = float("inf"),
    ) -> Generator[SharedAction | A, Reply, Answered | Fetched | Failed | RequestRefused]:
        """The reply that is final for ``request``, which ``once`` performs; see the table above. ``rest``: in place of
        the usual sleep between two tries."""
        failures = regained = wrong = 0
        while True:
            reply = self.observe((yield from once()))
            if isinstance(reply, Answered | Fetched | Failed):
                return reply
            if isinstance(reply, Unreadable):
                yield from self._decline(reply)
            elif isinstance(reply, RequestRefused):
                refused = reply.problem
                advice = refused.advice
                if is_about_credentials(refused):
                    if registering:
                        return reply
                    yield from self.regain(reply, regained)
                    regained += 1
                    if self._same_device():
                        continue
                    return reply
                if isinstance(request, Fetch) and refused.kind == "digest-mismatch":
                    wrong += 1
                    if wrong == 2:
                        return reply
                    if rest is None:
                        continue
                if advice == "stop":
                    raise ProblemError(refused)
                stranger = registering and self._there_at == float("-inf")
                final = refused.is_ours or stranger or self.now >= self._gives_up_at
                passing = checking_in and refused.status in (404, 409)
                if advice == "drop" and final and not passing:
                    return reply
            elif isinstance(reply, Unreachable):
                if is_from_coordinator(reply):
                    failures = 0
            else:
                raise TypeError(f"the driver answered {request!r} with {reply!r}")
            if self.now > expires_at:
                raise NoAnswerInTime
            failures += 1
            if rest is None:
                yield self.wait_after(reply, failures)
            else:
                yield from rest(reply, failures)

    def wait_after(self, reply: Timed | None, failures: int) -> Sleep:
        """The sleep before the next try. A coordinator that itself asks for patience gets all of it."""
        silent_s = self.now - self._there_at
        match reply:
            case RequestRefused(problem=refused) if refused.is_ours:
                low, high = self.pacing.backoff(failures, refused.retry_after_s)
                reason = str(refused)
            case RequestRefused(problem=refused):
                low, high = self.pacing.backoff(failures, refused.retry_after_s, silent_s=silent_s)
                reason = str(refused)
            case Unreachable(reason=reason) if is_from_coordinator(reply):
                low, high = self.pacing.after_break_s
            case Unreachable(reason=reason):
                low, high = self.pacing.backoff(failures, silent_s=silent_s)
            case Unreadable(reason=reason):
                low, high = self.pacing.withdrawn_s
            case _:
                raise TypeError(f"nothing to wait for after {reply!r}")
        return Sleep(min_s=low, max_s=high, reason=reason, trouble=True)

    def _decline(self, unreadable: Unreadable) -> Generator[SharedAction, Reply, None]:
        """Withdraw, once, from a round whose assignment this SDK cannot read: it cannot agree to what it does not
        know."""
        yield Send(
            method="POST",
            route=Route.WITHDRAWN,
            answers=(Noted,),
            path={"run": unreadable.run, "round": unreadable.round},
            message=Withdrawal(attempt=unreadable.attempt, reason=short(unreadable.reason)),
        )

    def _same_device(self) -> bool:
        """Whether the round under way, if any, was given to the id that this device has now."""
        assignment, registered = self.record.assignment, self.record.registered
        return assignment is None or (registered is not None and registered.device == assignment.device)


def _once(action: A) -> Generator[A, Any, Any]:
    return (yield action)


def why_not(found: Fetched | Failed | RequestRefused) -> str | None:
    """Why a checkpoint cannot be fetched, in a sentence; None where it is there."""
    match found:
        case Fetched():
            return None
        case Failed(reason=reason):
            return reason
        case RequestRefused(problem=refused) if refused.kind == "digest-mismatch":
            return f"Twice the checkpoint was not what had been announced. {refused}"
        case RequestRefused(problem=refused):
            return f"The checkpoint cannot be fetched. {refused}"
        case _:
            assert_never(found)


def is_about_credentials(refused: Problem) -> bool:
    """Whether a coordinator, and not something in between, asks to register again or for a newer certificate."""
    return refused.is_ours and refused.advice in ("register", "renew")


def is_from_coordinator(reply: object) -> bool:
    """Whether a reply shows that the coordinator was there. A digest that differs was found here, by the driver."""
    match reply:
        case Answered() | Unreadable():
            return True
        case RequestRefused(problem=refused):
            return refused.is_ours and refused.kind != "digest-mismatch"
        case Unreachable(held_s=held_s):
            return held_s >= HELD_S
        case _:
            return False


def short(reason: str) -> str:
    """At most REASON_LIMIT characters, on one line."""
    line = " ".join(reason.split())
    return line if len(line) <= REASON_LIMIT else line[: REASON_LIMIT - 1] + "…"
