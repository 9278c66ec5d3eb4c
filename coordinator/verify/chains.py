"""Follows the chains of links: each row continues the one before."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from coordinator.store import chain
from coordinator.store.port import EventRow, Reader, RunRow, StoreError
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


def against_chains(reader: Reader, row: RunRow, now: int) -> Iterator[RunViolation]:
    """The chains of refusals and of the audit. ``now``: the latest round."""
    link, before = chain.refusals_beginning(row.run), now
    refusals = reader.refusals_in_order(row.run)
    for number, refusal in enumerate(refusals, start=1):
        if refusal.link != chain.refusal_link(link, number, refusal):
            what = f"the refusal of {refusal.device} does not follow the one before: one of them was changed or removed"
            yield RunViolation("chain", refusal.round, what)
        link, before = refusal.link, refusal.round
    if len(refusals) != row.refusals:
        yield RunViolation("chain", before, f"the run has {len(refusals)} refusals, and recorded {row.refusals}")
    link = chain.audit_beginning(row.run)
    audit = reader.audit(row.run)
    for number, action in enumerate(audit, start=1):
        if action.link != chain.audit_link(link, number, action):
            yield RunViolation("chain", now, f"the audit's {action.action} does not follow the action before")
        link = action.link
    if len(audit) != row.audits:
        yield RunViolation("chain", now, f"the audit has {len(audit)} actions, and recorded {row.audits}")
