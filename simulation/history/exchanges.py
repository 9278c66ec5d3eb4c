"""The exchanges of secure rounds in a history: how many devices came, and how many it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coordinator.engine.state import RunState
from coordinator.runtime import views
from coordinator.store.port import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundExchange:
    """One exchange of the last attempt of a secure round."""

    round: int
    status: str
    """Of the round: open | committed | abandoned."""
    attempt: int
    """From 0."""
    exchange: str
    """advertise | share | mask | agree | unmask."""
    expected: int
    """Devices that could send this message."""
    came: int
    """Devices that have sent it."""
    needed: int
    """The fewest with which the round goes on. Of *advertise*, *share* and *mask* by the plan's quorum and the
    threshold, of *agree* the signatures that a device asks for, of *unmask* the threshold of the secret sharing."""
    bytes: int
    """Of these messages."""


def read_exchanges(reader: Reader, run: str, now: RunState) -> Iterator[RoundExchange]:
    """Those of all rounds, in order; none of rounds that are not secure, or never had a cohort."""
    after = 0
    while page := reader.rounds(run, after):
        for row in page:
            view = views.round_view(reader, row, now)
            if view.secure is None:
                continue
            for one in view.secure.exchanges:
                yield RoundExchange(
                    round=view.round,
                    status=view.status,
                    attempt=view.secure.attempts - 1,
                    exchange=one.exchange,
                    expected=one.expected,
                    came=one.came,
                    needed=one.needed,
                    bytes=one.bytes,
                )
        after = page[-1].round
