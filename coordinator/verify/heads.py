"""Links that somebody outside has written down, held against a log: a device's receipt, or where a backup ended.

A log that was cut, or rewritten with all links that follow, continues its own chain. It does not have the links that
were written down before. Refusals have a chain of their own: no event tells of those that came late.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.store.port import EventRow, RefusalRow
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
