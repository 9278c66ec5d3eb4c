"""Follows the chains of links: each row continues the one before."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from coordinator.store import chain
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
