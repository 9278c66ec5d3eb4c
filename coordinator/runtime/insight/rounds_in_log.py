"""Where a round lies in its run's log, found without reading the log.

Events of rounds are logged in the order of the rounds, so the first event of a round is found by halving: some twenty
small reads in a log of a million events. Times are of no use here, since clocks may fall.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.store.port import EventRow, Reader

_LATER = frozenset({"Discarded"})
"""Kinds of events that name a round which ended before."""
_PAGE = 1000
_PROBE = 8


def round_of(row: EventRow) -> int | None:
    """The round under way when the event was logged, where the event says it."""
    found = row.body.get("round")
    return found if isinstance(found, int) and row.kind not in _LATER else None


def events_of_round(reader: Reader, run: str, round: int, after: int | None = None) -> Iterator[EventRow]:
    """The events that name this round, in order. ``after``: only those with a higher sequence number; None: all."""
    seq = before_round(reader, run, round) if after is None else after
    while page := reader.events(run, seq, _PAGE):
        for row in page:
            number = round_of(row)
            if number == round:
                yield row
            elif number is not None and number > round:
                return
        seq = page[-1].seq


def before_round(reader: Reader, run: str, round: int) -> int:
    """A sequence number such that no event of this round or a later one is at or before it, and none of an earlier
    round after it."""
    low, high = 0, reader.head(run)
    while low < high:
        middle = (low + high) // 2
        found = _first_after(reader, run, middle, high)
        if found is None or found[1] >= round:
            high = middle
        else:
            low = found[0]
    return low


def _first_after(reader: Reader, run: str, seq: int, until: int) -> tuple[int, int] | None:
    """(sequence number, round) of the first event after ``seq``, and not after ``until``, that names its round."""
    limit = _PROBE
    while seq < until and (page := reader.events(run, seq, limit)):
        for row in page:
            number = round_of(row)
            if number is not None:
                return (row.seq, number) if row.seq <= until else None
        seq, limit = page[-1].seq, _PAGE
    return None
