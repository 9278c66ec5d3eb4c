"""Follows the chains of links: each row continues the one before. Links that somebody outside has written down are held
against them: those of a device's receipts, or where a backup ended.

A log that was cut, or rewritten with all links that follow, continues its own chain. It does not have the links that
were written down before. Refusals have a chain of their own: no event tells of those that came late.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from coordinator.store import chain
from coordinator.store.flower_rows import FlowerMessageRow, FlowerRunRow
from coordinator.store.port import EventRow, Reader, RefusalRow, RunRow, StoreError
from coordinator.verify.violation import RunViolation

_SHOWN = 12
_REFUSALS = "refusals-"


class BadHead(Exception):
    """A text that names no link. One sentence."""


@dataclass(frozen=True, slots=True)
class Head:
    """The link of one event, or of one refusal."""

    run: str
    seq: int
    """Number of the event in the log; of a refusal its number among those of the run."""
    link: str
    update: tuple[int, str, str] | None = None
    """(round, device, digest) of the update whose receipt names this link."""
    refusals: bool = False
    """Whether it is a link of the chain of refusals."""

    def __str__(self) -> str:
        return f"{self.run}:{_REFUSALS if self.refusals else ''}{self.seq}:{self.link}"


def parsed(text: str) -> Head:
    """The head in ``RUN:SEQ:LINK``, or of refusals in ``RUN:refusals-SEQ:LINK``. BadHead."""
    run, _, rest = text.partition(":")
    named, _, link = rest.partition(":")
    seq = named.removeprefix(_REFUSALS)
    if not run or not _is_count(seq) or len(link) != 64 or not _is_hex(link):
        raise BadHead(f"{text[:200]!r} is not RUN:SEQ:LINK, as 'quorate verify' prints it.")
    return Head(run, int(seq), link.lower(), refusals=named != seq)


def of_history(lines: Iterable[str]) -> Iterator[Head]:
    """The heads that the receipts in a device's history name (JSON lines, as ``quorate device history --json`` prints
    them). BadHead."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry: dict[str, Any] = json.loads(line)
            counted = entry.get("logged")
            if counted is None:
                continue
            update = (int(entry["round"]), str(entry["device"]), str(entry["update_digest"]))
            yield Head(str(entry["run"]), int(counted["seq"]), str(counted["link"]), update)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadHead(f"Line {number} is not of 'quorate device history --json'.") from None


def against_head(head: Head, event: EventRow | None, number: int, last: int) -> Iterator[RunViolation]:
    """What speaks against a head. ``event``: the one of its number, of round ``number``; ``last``: where the log
    ends."""
    if head.update is not None:
        number = head.update[0]
    whose = f"the link {head.link[:_SHOWN]} of event {head.seq}" + (" in a receipt" if head.update else "")
    if event is None:
        yield RunViolation("chain", number, f"the log ends at event {last}, before {whose}: it was cut")
    elif event.link != head.link:
        yield RunViolation("chain", number, f"event {head.seq} has another link than {whose}: the log was rewritten")
    elif head.update is not None:
        body = event.body
        if event.kind != "Reported" or (body.get("round"), body.get("device"), body.get("digest")) != head.update:
            yield RunViolation("chain", number, f"event {head.seq} is not the report that {whose} acknowledges")


def against_refusals_head(head: Head, rows: Sequence[RefusalRow], number: int, count: int) -> Iterator[RunViolation]:
    """Compares the database with a head of the chain of refusals. ``rows``: the refusal of its number, or none;
    ``number``: the latest round; ``count``: how many refusals there are."""
    whose = f"the link {head.link[:_SHOWN]} of refusal {head.seq}"
    if not rows:
        yield RunViolation("chain", number, f"the refusals end with number {count}, before {whose}: they were cut")
    for row in rows:
        if row.link != head.link:
            what = f"refusal {head.seq} has another link than {whose}: the refusals were rewritten"
            yield RunViolation("chain", row.round, what)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19 and int(text) >= 1


def _is_hex(text: str) -> bool:
    return all(letter in "0123456789abcdefABCDEF" for letter in text)


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
