"""Counts share holders: which devices have too few of them present, and in which groups an attempt can continue.

On a ring the holders of a device are its ``neighbours`` nearest devices, itself not counted; in a complete graph they
are all devices of its group, itself included (see ``client_sdk.secagg.graph``). Holding is symmetric, so the same count
shows whether a device holds enough shares of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
from itertools import accumulate

from coordinator.engine.event_fields import Group
from coordinator.engine.secure.state import SecureRound


def lacking(secure: SecureRound, present: Collection[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of ``wanted``, of the groups that the round goes on with, that have fewer share holders among ``present``
    than the threshold, sorted. A device that lacks a dealer's pair, since that dealer did not answer its complaint, is
    no holder of that dealer."""
    there, asked = set(present), set(wanted)
    apart = _apart(secure, there)
    return tuple(sorted(one for group in secure.standing.values() for one in _lacking(group, there, asked, apart)))


def _apart(secure: SecureRound, present: Set[str]) -> Mapping[str, int]:
    """Dealer -> how many of those present lack its pair."""
    if not secure.complaints:
        return {}
    return Counter(dealer for holder, dealers in secure.lacks.items() if holder in present for dealer in dealers)


def _lacking(group: Group, present: Set[str], wanted: Set[str], apart: Mapping[str, int]) -> Set[str]:
    """One pass around the ring, whatever the number of neighbours."""
    mine = wanted & set(group.order)
    if not group.ring:
        there = len(present & set(group.order))
        return {dealer for dealer in mine if there - apart.get(dealer, 0) < group.threshold}
    here = [group.order[place] in present for place in group.ring]
    half, n = group.neighbours // 2, len(here)
    # The ring is closed: repeat half of the neighbours at each end.
    counted = [0, *accumulate([*here[n - half :], *here, *here[:half]])]
    return mine & {
        group.order[place]
        for at, place in enumerate(group.ring)
        if counted[at + 2 * half + 1] - counted[at] - here[at] - apart.get(group.order[place], 0) < group.threshold
    }


def needed(quorum: int, secure: SecureRound, *, listed: bool = False) -> int:
    """How many sharers, and how many survivors, an attempt needs: the plan's quorum, or the shortest lists that devices
    sign and the thresholds of the fewest groups, where these are more. ``listed``: with the margins of the lists."""
    least = sorted(_least(secure, number, listed=listed) for number in range(len(secure.groups)))
    return max(quorum, sum(least[: secure.fewest_groups]))


def _least(secure: SecureRound, number: int, *, listed: bool) -> int:
    """Of one group."""
    group = secure.groups[number]
    return max(group.threshold, group.fewest, group.signers + secure.margins[number] if listed else 0)


def complete(
    secure: SecureRound, present: Collection[str], sharers: Iterable[str], *, listed: bool = False
) -> frozenset[int]:
    """The groups in which an attempt can continue with ``present`` alone, so that every secret of the ``sharers`` can
    be rebuilt. ``listed``: with the margins of the lists."""
    there, dealt = set(present), set(sharers)
    apart = _apart(secure, there)
    return frozenset(
        number
        for number, group in secure.standing.items()
        if len(there.intersection(group.order)) >= _least(secure, number, listed=listed)
        and not _lacking(group, there, dealt, apart)
    )


def enough(quorum: int, secure: SecureRound, groups: Set[int], present: Collection[str]) -> bool:
    """Whether a round can go on with these groups alone: they are most of all, and have a quorum of those
    ``present``."""
    there = set(present)
    have = sum(len(there.intersection(secure.groups[number].order)) for number in groups)
    return len(groups) >= secure.fewest_groups and have >= quorum
