"""Whom complaints leave out of a fresh attempt, when nobody can say who lied: the device that complains of a dealer's
shares, or that dealer.

Knows who complains of whom. Has never heard of shares. Each complaint of one dealer is a line between two devices, one
of which is at fault, so enough are left out that no line remains. Whoever has most lines goes first: a dealer of whom
several complain, or a device that complains of many. Where both ends have as many, both go: nobody can tell which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def blamed(complaints: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Device -> why it is left out, from device -> dealers whose shares it could not open."""
    lines = {(device, dealer) for device, dealers in complaints.items() for dealer in dealers}
    found: dict[str, str] = {}
    while lines:
        degree = Counter(end for line in lines for end in line)
        most = max(degree.values())
        gone = {device for device, count in degree.items() if count == most}
        for device in gone:
            of_it = sum(dealer == device for _, dealer in lines)
            by_it = most - of_it
            told = [f"{of_it} could not open its shares"] if of_it else []
            told += [f"it could not open those of {by_it}"] if by_it else []
            found[device] = " and ".join(told)
        lines = {line for line in lines if not gone & set(line)}
    return found
