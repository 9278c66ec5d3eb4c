"""Whether lateness is concentrated in some devices, so that what they hold hardly reaches the model.

A device that is selected n_i times *misses* m_i of these rounds: its update came late, or it was silent. With p the
share of all selections that were missed, and lateness due to chance alone, the dispersion

    D = sum_i (m_i - n_i p)^2 / (n_i p (1 - p))

over N devices has the mean N - 1 and the variance sum_i (2 + (1 / (p (1 - p)) - 6) / n_i), as m_i is binomial
(Pearson's chi-squared for homogeneity, with the exact variance of its terms). Lateness is concentrated where D is
``CHANCE`` standard deviations above its mean, and at least the part ``SHARE`` of the devices that were selected
``FEWEST`` times or more reported less than half as often as all do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from client_sdk.protocol.participation import ClassParticipation, DeviceParticipation

FEWEST = 3
CHANCE = 4.0
SHARE = 0.05
_CLASSES = 50
_NAMED = 4
"""Classes that the sentence names."""


def lateness(devices: Sequence[DeviceParticipation]) -> str:
    """In which devices lateness is concentrated, in a sentence; empty where it is not. Selections after which a device
    withdrew, or had its update refused, say nothing about its speed."""
    asked = [(one, one.reported + one.missed) for one in devices if one.reported + one.missed]
    total, missed = sum(count for _, count in asked), sum(one.missed for one, _ in asked)
    if not total or missed in (0, total):
        return ""
    p = missed / total
    spread = p * (1 - p)
    dispersion = sum((one.missed - count * p) ** 2 / (count * spread) for one, count in asked)
    variance = sum(2 + (1 / spread - 6) / count for _, count in asked)
    often = [(one, count) for one, count in asked if count >= FEWEST]
    rare = [(one, count) for one, count in often if one.reported < 0.5 * count * (1 - p)]
    by_chance = variance <= 0 or dispersion - (len(asked) - 1) < CHANCE * math.sqrt(variance)
    if by_chance or len(rare) < SHARE * len(often):
        return ""
    theirs, of = sum(one.missed for one, _ in rare), sum(count for _, count in rare)
    others = f", the others {(missed - theirs) / (total - of):.0%}" if total > of else ""
    rates = [(one.missed / (one.counted + one.missed), one) for one in by_class(devices) if one.counted + one.missed]
    named = sorted(rates, key=lambda item: (-item[0], item[1].device_class))[:_NAMED] if len(rates) > 1 else []
    classes = "; by class: " + ", ".join(f"{one.device_class} {rate:.0%}" for rate, one in named) if named else ""
    return (
        f"Lateness is concentrated: {len(rare)} of {len(often)} devices came too late or were silent in "
        f"{theirs / of:.0%} of their {of:,} selections{others}{classes}. What they hold hardly reaches the model"
    )


def by_class(devices: Sequence[DeviceParticipation]) -> list[ClassParticipation]:
    """The sums of each class, those with the most devices first."""
    classes: dict[str, list[DeviceParticipation]] = {}
    for one in devices:
        classes.setdefault(one.device_class, []).append(one)
    ordered = sorted(classes.items(), key=lambda item: (-len(item[1]), item[0]))[:_CLASSES]
    return [
        ClassParticipation(
            device_class=name,
            devices=len(members),
            never_counted=sum(not one.counted for one in members),
            selected=sum(one.selected for one in members),
            counted=sum(one.counted for one in members),
            missed=sum(one.missed for one in members),
        )
        for name, members in ordered
    ]
