"""Who holds shares of whose secrets, in counts: whether enough holders are there, and who may still be waited for.

On a ring the holders of a device are its ``neighbours`` nearest, itself not counted; in a complete graph they are all
devices, itself included (see ``client_sdk.secagg.graph``). Holding is symmetric, so the same count says whether a
device holds enough of others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import accumulate

from coordinator.engine.secure.state import SecureRound


def lacking(secure: SecureRound, present: Collection[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of ``wanted`` of whose share holders fewer than the threshold are among ``present``, sorted.

    One pass around the ring, whatever the number of neighbours.
    """
    if not secure.ring:
        return () if len(present) >= secure.threshold else tuple(sorted(wanted))
    there = set(present)
    here = [secure.order[place] in there for place in secure.ring]
    half, n = secure.neighbours // 2, len(here)
    # Behind the first and before the last place the ring goes on.
    counted = [0, *accumulate([*here[n - half :], *here, *here[:half]])]
    short = {
        secure.order[place]
        for at, place in enumerate(secure.ring)
        if counted[at + 2 * half + 1] - counted[at] - here[at] < secure.threshold
    }
    return tuple(sorted(short & set(wanted)))


def needed(quorum: int, secure: SecureRound) -> int:
    """How many sharers, and how many survivors, an attempt takes: the plan's quorum, the threshold, and the shortest
    list that a device signs."""
    return max(quorum, secure.threshold, secure.fewest)


def enough(quorum: int, secure: SecureRound, present: Collection[str], sharers: Iterable[str]) -> bool:
    """Whether an attempt can go on with those ``present`` alone, every secret of the ``sharers`` to be rebuilt."""
    return len(present) >= needed(quorum, secure) and not lacking(secure, present, sharers)
