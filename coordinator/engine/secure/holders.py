"""Counts share holders: which devices have too few of them present, and whether an attempt can continue.

On a ring the holders of a device are its ``neighbours`` nearest devices, itself not counted; in a complete graph they
are all devices, itself included (see ``client_sdk.secagg.graph``). Holding is symmetric, so the same count shows
whether a device holds enough shares of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import accumulate

from coordinator.engine.secure.state import SecureRound


def lacking(secure: SecureRound, present: Collection[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of ``wanted`` that have fewer share holders among ``present`` than the threshold, sorted. A device that
    lacks a dealer's pair, since that dealer did not answer its complaint, is no holder of that dealer.

    One pass around the ring, whatever the number of neighbours.
    """
    if not secure.ring and not secure.complaints:
        return () if len(present) >= secure.threshold else tuple(sorted(wanted))
    there = set(present)
    apart = Counter(dealer for holder, dealers in secure.lacks.items() if holder in there for dealer in dealers)
    if not secure.ring:
        return tuple(sorted(dealer for dealer in wanted if len(there) - apart[dealer] < secure.threshold))
    here = [secure.order[place] in there for place in secure.ring]
    half, n = secure.neighbours // 2, len(here)
    # The ring is closed: repeat half of the neighbours at each end.
    counted = [0, *accumulate([*here[n - half :], *here, *here[:half]])]
    short = {
        secure.order[place]
        for at, place in enumerate(secure.ring)
        if counted[at + 2 * half + 1] - counted[at] - here[at] - apart[secure.order[place]] < secure.threshold
    }
    return tuple(sorted(short & set(wanted)))


def needed(quorum: int, secure: SecureRound) -> int:
    """How many sharers, and how many survivors, an attempt needs: the largest of the plan's quorum, the threshold, and
    the shortest list that a device signs."""
    return max(quorum, secure.threshold, secure.fewest)


def enough(quorum: int, secure: SecureRound, present: Collection[str], sharers: Iterable[str]) -> bool:
    """Whether an attempt can continue with ``present`` alone, so that every secret of the ``sharers`` can be
    rebuilt."""
    return len(present) >= needed(quorum, secure) and not lacking(secure, present, sharers)
