"""Reasons for people, of many devices in one line. Part of a reason is text of a device: it is shortened, and what a
terminal would interpret is escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

STORED = 500
"""Characters of a reason in the log: as many as a withdrawal may have."""
_LONGEST = 240
"""Characters of a reason among others."""
_SHOWN = 3
"""Different reasons shown, the most common first."""


def printable(text: str, longest: int = STORED) -> str:
    """The text on one line, with control characters (also those that turn the direction of writing) as escapes, and at
    most ``longest`` characters and three dots."""
    line = " ".join(text.split())
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)
    return shown if len(shown) <= longest else f"{shown[:longest]}..."


def grouped(reasons: Iterable[str], one: str, many: str) -> str:
    """``2 devices withdrew: the loss is NaN. 1 device withdrew: ...``, the most common first; empty without reasons.

    ``one`` and ``many``: what precedes the reason, without the number: ``device withdrew``, ``devices withdrew``."""
    counts: Counter[str] = Counter()
    for reason, count in Counter(reasons).items():
        counts[printable(reason.strip().removesuffix("."), _LONGEST)] += count
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"{count} {one if count == 1 else many}: {reason}" for reason, count in common[:_SHOWN]]
    others = sum(count for _, count in common[_SHOWN:])
    if others:
        lines.append(f"{others} {one if others == 1 else many} for other reasons")
    return ". ".join(lines)
