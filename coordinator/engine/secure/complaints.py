"""Decides which devices complaints exclude from the next attempt.

A complaint does not show who is at fault, the device that complains of a dealer's shares or that dealer. Each is an
edge between two devices, and devices are excluded until no edge remains, those with most edges first: a dealer of
whom several complain, or a device that complains of many. Where both ends have equally many, both are excluded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def excluded_by_complaints(complaints: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Device -> why it is excluded, from device -> dealers whose shares it could not open."""
    lines = {(device, dealer) for device, dealers in complaints.items() for dealer in dealers}
    found: dict[str, str] = {}
    while lines:
        degree = Counter(end for line in lines for end in line)
        most = max(degree.values())
        gone = {device for device, count in degree.items() if count == most}
        for device in gone:
            of_it = sum(dealer == device for _, dealer in lines)
            by_it = most - of_it
            reasons = [f"{of_it} could not open its shares"] if of_it else []
            reasons += [f"it could not open those of {by_it}"] if by_it else []
            found[device] = " and ".join(reasons)
        lines = {line for line in lines if not gone & set(line)}
    return found
