"""Follows the chains of links: each row continues the one before."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from coordinator.store import chain
from coordinator.store.flower_rows import FlowerMessageRow, FlowerReplyRow, FlowerRunRow
from coordinator.store.port import EventRow, Reader, RunRow, StoreError
from coordinator.verify.heads import Head, against_refusals_head
from coordinator.verify.violation import RunViolation


class EventChain:
    """The chain of a run's log. ``add`` takes the next event and says whether it continues the chain."""

    def __init__(self, row: RunRow) -> None:
        self.link = chain.log_beginning(row)
        """Of the last event."""
        self._known = True

    def add(self, event: EventRow) -> bool:
        try:
            found = chain.link_of_event(self.link, event)
        except (struct.error, TypeError, AttributeError, StoreError):
            found = ""
        continues = not self._known or found == event.link
        self.link, self._known = event.link, True
        return continues

    def skip(self) -> None:
        """An event could not be read: the next one cannot be held against it."""
        self._known = False


class RefusalChain:
    """The chain of a run's refusals."""

    def __init__(self, row: RunRow) -> None:
        self._row = row
        self.head: Head | None = None
        """Where it ends, once it has been read; None: there are no refusals."""

    def findings(self, reader: Reader, now: int, heads: Sequence[Head]) -> Iterator[RunViolation]:
        """What speaks against it. ``now``: the latest round; ``heads``: its links that were written down outside."""
        run = self._row.run
        link, before = chain.refusals_beginning(run), now
        rows = reader.refusals_in_order(run)
        for number, row in enumerate(rows, start=1):
            if row.link != chain.refusal_link(link, number, row):
                what = f"the refusal of {row.device} does not follow the one before: one of them was changed or removed"
                yield RunViolation("chain", row.round, what)
            link, before = row.link, row.round
        if len(rows) != self._row.refusals:
            yield RunViolation("chain", before, f"the run has {len(rows)} refusals, and recorded {self._row.refusals}")
        for head in heads:
            yield from against_refusals_head(head, rows[head.seq - 1 : head.seq], now, len(rows))
        if rows:
            self.head = Head(run, len(rows), link, refusals=True)


class FlowerChain:
    """The chain of a Flower run's messages and replies. A reply comes after its message, so the messages in their order
    give the chain. ``heads``: its links that were written down outside."""

    def __init__(self, row: FlowerRunRow, heads: Sequence[Head]) -> None:
        self._row = row
        self._seq, self._link = 0, chain.flower_beginning(row)
        self._heads = {head.seq: head for head in heads}
        self._replies: list[tuple[int, str, int, FlowerReplyRow]] = []
        """Those that come later, by number."""

    def add(self, message: FlowerMessageRow, reply: FlowerReplyRow | None) -> Iterator[RunViolation]:
        """What speaks against the next message, and against the replies before it."""
        while self._replies and self._replies[0][0] < message.seq:
            yield from self._next(*heappop(self._replies)[2:])
        yield from self._next(message.round, message)
        if reply is not None:
            heappush(self._replies, (reply.seq, reply.message, message.round, reply))

    def end(self) -> Iterator[RunViolation]:
        """What speaks against the replies that are left, and against the recorded end."""
        while self._replies:
            yield from self._next(*heappop(self._replies)[2:])
        if (self._seq, self._link) != (self._row.seq, self._row.link):
            what = f"its messages and replies end at link {self._seq}, and its row has another end, {self._row.seq}"
            yield RunViolation("chain", self._row.rounds, f"{what}: some were removed or added")
        for head in self._heads.values():
            what = f"its messages and replies end at link {self._seq}, before the link {head.link[:12]} of {head.seq}"
            yield RunViolation("chain", self._row.rounds, f"{what}, which was written down: they were cut")

    def _next(self, number: int, row: FlowerMessageRow | FlowerReplyRow) -> Iterator[RunViolation]:
        name = f"{'message' if isinstance(row, FlowerMessageRow) else 'the reply to message'} {row.message[:12]}"
        if row.seq != self._seq + 1:
            yield RunViolation(
                "chain", number, f"{name} has link {row.seq} after {self._seq}: some were removed or added"
            )
        elif row.link != chain.flower_link(self._link, row):
            what = f"{name} does not follow the one before: one of them was changed, exchanged or removed"
            yield RunViolation("chain", number, what)
        head = self._heads.pop(row.seq, None)
        if head is not None and head.link != row.link:
            what = f"{name} has another link than {head.link[:12]}, which was written down: it was rewritten"
            yield RunViolation("chain", number, what)
        self._seq, self._link = row.seq, row.link
