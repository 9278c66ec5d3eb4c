"""Links that somebody outside has written down, held against a log: a device's receipt, or where a backup ended.

A log that was cut, or rewritten with all links that follow, continues its own chain. It does not have the links that
were written down before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from coordinator.store.port import EventRow
from coordinator.verify.violation import RunViolation

_SHOWN = 12


class BadHead(Exception):
    """A text that names no link. One sentence."""


@dataclass(frozen=True, slots=True)
class Head:
    """The link of one event."""

    run: str
    seq: int
    link: str
    update: tuple[int, str, str] | None = None
    """(round, device, digest) of the update whose receipt names this link."""

    def __str__(self) -> str:
        return f"{self.run}:{self.seq}:{self.link}"


def parsed(text: str) -> Head:
    """The head in ``RUN:SEQ:LINK``. BadHead."""
    run, _, rest = text.partition(":")
    seq, _, link = rest.partition(":")
    if not run or not seq.isdecimal() or int(seq) < 1 or len(link) != 64 or not _is_hex(link):
        raise BadHead(f"{text!r} is not RUN:SEQ:LINK, as 'quorate verify' prints it.")
    return Head(run, int(seq), link.lower())


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


def _is_hex(text: str) -> bool:
    return all(letter in "0123456789abcdefABCDEF" for letter in text)
