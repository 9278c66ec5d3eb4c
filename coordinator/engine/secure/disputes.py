"""Who has complained of whose shares, over rounds. A line between two devices says that one of them lies, and not
which: a device with lines to several others is the likely one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

Disputes = Mapping[str, Mapping[str, int]]
"""Device -> dealer of whose shares it has complained -> the last round in which it did."""
DISPUTE_ROUNDS = 20
"""For so many rounds a complaint is remembered."""
MOST_DISPUTES = 8
"""Of each device that complains, its newest."""


def with_disputes(disputes: Disputes, round: int, device: str, dealers: Collection[str]) -> Disputes:
    """With this round's complaints of the device."""
    others = {dealer: last for dealer, last in disputes.get(device, {}).items() if dealer not in dealers}
    newest = list({**others, **dict.fromkeys(dealers, round)}.items())[-MOST_DISPUTES:]
    return {**disputes, device: dict(newest)}


def still_in_dispute(disputes: Disputes, round: int) -> Disputes:
    """Without what is too long ago in this round."""
    recent = {
        device: {dealer: last for dealer, last in of.items() if last + DISPUTE_ROUNDS > round}
        for device, of in disputes.items()
    }
    return {device: of for device, of in recent.items() if of}


def degrees(disputes: Disputes) -> Mapping[str, int]:
    """Device -> with how many others it is in dispute."""
    return _degrees({frozenset((device, dealer)) for device, dealers in disputes.items() for dealer in dealers})


def _degrees(lines: Iterable[frozenset[str]]) -> Counter[str]:
    return Counter(end for line in lines for end in line)


def at_fault(complaints: Mapping[str, Iterable[str]], before: Disputes) -> dict[str, str]:
    """Device -> why a fresh attempt goes without it: of those that have to do with a complaint of this attempt, again
    and again whoever is in dispute with most others, and with two at least.

    ``complaints``: device -> dealers of whose shares it has complained in this attempt; ``before``: in the last rounds.
    One complaint alone is one word against another, and it was settled: nobody goes for it."""
    now = {frozenset((device, dealer)) for device, dealers in complaints.items() for dealer in dealers}
    lines = now | {frozenset((device, dealer)) for device, dealers in before.items() for dealer in dealers}
    found: dict[str, str] = {}
    while True:
        degree = _degrees(lines)
        suspects = {end: degree[end] for line in now for end in line if degree[end] > 1}
        if not suspects:
            return found
        most = max(suspects.values())
        gone = {device for device, count in suspects.items() if count == most}
        found |= dict.fromkeys(gone, f"it and {most} others could not open each other's shares, in the last rounds")
        now, lines = ({line for line in of if not gone & line} for of in (now, lines))
