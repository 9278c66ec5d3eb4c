"""Group commit: the items that many threads submit at the same time are committed in one transaction.

A durable transaction costs a disk sync, and a round has hundreds of reports at a time. So a thread puts its item in a
queue and waits for the lock; the thread that gets the lock first takes all queued items, commits them in one batch, and
stores each result for the thread that submitted it ("flat combining", Hendler et al. 2010, doi
10.1145/1810479.1810540). There is no thread of its own and no wait for a full batch: a single item is committed at
once.

Every write is in two steps: *enter* puts the item in the queue, and *settle* makes it durable. Who has many items
enters them all and then settles each: the first call commits them together.

Answers that acknowledge an item can be gathered, so that no thread waits for the lock::

    no transaction is under way     it begins at once, in the thread of the request
    one is, or other answers wait   the next one begins after it, with all that have come; of a run, after each of those
                                    nothing is begun for PAUSES times as long as it took, until one has a single answer

A round has hundreds of messages within seconds, and a transaction costs as much as several messages: so transactions
take the same part of the time however many messages come. One that has the coordinator for itself does not wait, nor do
check-ins, of which as many come as are answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

PAUSES, LONGEST_PAUSE_S = 3.0, 0.25
"""How long a run begins no transaction after another one in a crowd: so many times as long as that took, at most so
long."""

T = TypeVar("T")
R = TypeVar("R")


class _Ticket(Generic[T, R]):
    __slots__ = ("done", "error", "item", "result")

    def __init__(self, item: T) -> None:
        self.item = item
        self.done = False
        self.result: R | None = None
        self.error: BaseException | None = None


class GroupCommit(Generic[T, R]):
    """``commit(items)`` returns a result or an exception for each item, in order; if it raises, every item of the batch
    gets that error.
    """

    def __init__(
        self, commit: Callable[[Sequence[T]], Sequence[R | BaseException]], *, most: int = 256, pauses: float = PAUSES
    ) -> None:
        """``pauses``: as PAUSES, for this one."""
        self._commit, self._pauses = commit, pauses
        self._most = most
        self._queue: list[_Ticket[T, R]] = []
        self._queue_lock = threading.Lock()
        self._turn = threading.Lock()
        self._gathered: list[Any] | None = None
        """The answers that wait for the next transaction; None: nobody takes them."""
        self._met = False
        """Whether the first answer of the next transaction had to wait for another transaction."""

    def locked(self) -> bool:
        """Whether a thread commits a batch."""
        return self._turn.locked()

    def enter(self, item: T) -> Callable[[], R]:
        """Puts the item in the queue. The function that it returns settles the item: it commits the queue, unless
        another thread has committed this item meanwhile, and returns its result or raises its error, once it is
        durable. An item that nobody settles is committed with the next one that somebody settles."""
        ticket: _Ticket[T, R] = _Ticket(item)
        with self._queue_lock:
            self._queue.append(ticket)
        return partial(self._settle, ticket)

    def _settle(self, ticket: _Ticket[T, R]) -> R:
        if not ticket.done:
            with self._turn:
                while not ticket.done:
                    self._take_turn()
        if ticket.error is not None:
            raise ticket.error
        return ticket.result  # type: ignore[return-value]

    def _take_turn(self) -> None:
        with self._queue_lock:
            batch, self._queue = self._queue[: self._most], self._queue[self._most :]
        try:
            results = self._commit([ticket.item for ticket in batch])
        except BaseException as error:
            for ticket in batch:
                ticket.error, ticket.done = error, True
            if not isinstance(error, Exception):
                raise
            return
        for ticket, result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                ticket.error = result
            else:
                ticket.result = result
            ticket.done = True

    def idle(self) -> bool:
        """Whether an answer is settled at once, in the thread that has it; else it is gathered."""
        return self._gathered is None and not self.locked()

    def gather(self, answer: Any) -> bool:
        """Has an answer wait for the next transaction. True: the caller settles what ``take`` returns, until that is
        nothing. Both are called by the same thread."""
        if self._gathered is not None:
            self._gathered.append(answer)
            return False
        self._gathered, self._met = [answer], True
        return True

    def take(self) -> tuple[list[Any], bool]:
        """The answers of the next transaction, and whether others are gathered for a while after it."""
        batch = self._gathered or []
        self._gathered = [] if batch else None
        crowd, self._met = len(batch) > 1 or (self._met and bool(batch)), False
        return batch, crowd

    def pause_s(self, took_s: float) -> float:
        """Seconds for which answers are gathered after a transaction that took so long."""
        return min(LONGEST_PAUSE_S, self._pauses * took_s)


@dataclass(frozen=True, slots=True)
class PendingCommit(Generic[T]):
    """An answer that acknowledges what is queued for a transaction and not durable yet."""

    commits: GroupCommit[Any, Any]
    """In which it is queued, and which decides when its transaction begins."""
    settle: Callable[[], T]
    """Makes durable what is queued, unless that is done; returns the answer or raises ProblemError."""
