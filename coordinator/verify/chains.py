"""Follows the chains of links: each row continues the one before."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from coordinator.store import chain
from coordinator.store.flower_rows import FlowerMessageRow, FlowerRunRow
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
    """The chain of a Flower run's messages, replies and end. A reply comes after its message, so the messages in their
    order give the chain. ``heads``: its links that were written down outside."""

    def __init__(self, row: FlowerRunRow, heads: Sequence[Head]) -> None:
        self._row = row
        self._seq, self._link = 0, chain.flower_beginning(row)
        self._heads = {head.seq: head for head in heads}
        self._replies: list[tuple[int, str, FlowerMessageRow]] = []
        """The messages whose replies come later, by the number of the reply."""
        self._unanswered: list[tuple[str, float, float | None]] = []

    def add(self, row: FlowerMessageRow) -> Iterator[RunViolation]:
        """What speaks against the next message, and against the replies before it."""
        yield from self._replies_before(row.seq)
        link = chain.flower_message_link(self._link, self._seq + 1, row)
        yield from self._next(f"message {row.message[:12]}", row.round, (row.seq, row.link), link)
        if row.answered:
            heappush(self._replies, (row.reply_seq, row.message, row))
        else:
            self._unanswered.append((row.message, row.expires_at, row.delivered_at))

    def end(self) -> Iterator[RunViolation]:
        """What speaks against the replies that are left, and against the recorded end."""
        row = self._row
        yield from self._replies_before(None)
        if row.over:
            link = chain.flower_end_link(self._link, self._seq + 1, row, self._unanswered)
            yield from self._next("its end", row.rounds, (row.seq, row.link), link)
        elif (self._seq, self._link) != (row.seq, row.link):
            what = f"its messages and replies end at link {self._seq}, and its row has another end, {row.seq}"
            yield RunViolation("chain", row.rounds, f"{what}: some were removed or added")
        for head in self._heads.values():
            what = f"its messages and replies end at link {self._seq}, before the link {head.link[:12]} of {head.seq}"
            yield RunViolation("chain", row.rounds, f"{what}, which was written down: they were cut")

    def _replies_before(self, seq: int | None) -> Iterator[RunViolation]:
        while self._replies and (seq is None or self._replies[0][0] < seq):
            _, message, row = heappop(self._replies)
            link = chain.flower_reply_link(self._link, self._seq + 1, row)
            name = f"the reply to message {message[:12]}"
            yield from self._next(name, row.round, (row.reply_seq, row.reply_link), link)

    def _next(self, name: str, number: int, stored: tuple[int, str], link: str) -> Iterator[RunViolation]:
        """``stored``: the number and the link of what comes next; ``link``: the one that it should have."""
        seq = stored[0]
        if seq != self._seq + 1:
            yield RunViolation("chain", number, f"{name} has link {seq} after {self._seq}: some were removed or added")
        elif stored[1] != link:
            what = f"{name} does not follow the one before: one of them was changed, exchanged or removed"
            yield RunViolation("chain", number, what)
        head = self._heads.pop(seq, None)
        if head is not None and head.link != stored[1]:
            what = f"{name} has another link than {head.link[:12]}, which was written down: it was rewritten"
            yield RunViolation("chain", number, what)
        self._seq, self._link = stored
