"""Whether lateness is concentrated in some devices, so that what they hold hardly reaches the model.

A device that is selected n_i times *misses* m_i of these rounds: its update came late, or it was silent. With p the
share of all selections that were missed, and lateness due to chance alone, the dispersion

    D = sum_i (m_i - n_i p)^2 / (n_i p (1 - p))

over N devices has the mean N - 1 and the variance sum_i (2 + (1 / (p (1 - p)) - 6) / n_i), as m_i is binomial
(Pearson's chi-squared for homogeneity, with the exact variance of its terms). Lateness is concentrated where D is
``CHANCE`` standard deviations above its mean, and at least the part ``SHARE`` of the devices that were selected
``FEWEST`` times or more reported less than half as often as all do. Where devices were selected too seldom to tell, the
same is asked of their classes, whose selections are many: a class with the part ``SHARE`` of the devices that reported
less than half as often as all do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from client_sdk.protocol.insight import ClassParticipation, DeviceParticipation

FEWEST = 2
CHANCE = 4.0
SHARE = 0.05
_CLASSES = 50
_NAMED = 4
"""Classes that the sentence names."""


def lateness(devices: Sequence[DeviceParticipation]) -> str:
    """In which devices lateness is concentrated, in a sentence; empty where it is not. Selections after which a device
    withdrew, or had its update refused, say nothing about its speed."""
    asked = [one for one in devices if _asked(one)]
    missed, total = _sums(asked)
    if not missed:
        return ""
    p = missed / total
    classes = _grouped(asked)
    sums = {name: _sums(members) for name, members in classes.items()}
    often = [one for one in asked if _asked(one) >= FEWEST]
    rare = [one for one in often if one.reported < 0.5 * _asked(one) * (1 - p)]
    of = f"{len(rare)} of {len(often)} devices"
    if len(rare) < max(1, SHARE * len(often)) or _by_chance([(one.missed, _asked(one)) for one in asked], p):
        names = [
            name
            for name, (late, count) in sums.items()
            if count - late < 0.5 * count * (1 - p) and len(classes[name]) >= SHARE * len(asked)
        ]
        if not names or _by_chance(list(sums.values()), p):
            return ""
        rare = [one for name in names for one in classes[name]]
        of = f"the {len(rare)} devices of {' and '.join(sorted(names))}"
    theirs, count = _sums(rare)
    rates = sorted((1 - late / n, name) for name, (late, n) in list(sums.items())[:_CLASSES])[:_NAMED]
    named = "; by class: " + ", ".join(f"{name} {1 - heard:.0%}" for heard, name in rates) if len(rates) > 1 else ""
    return (
        f"Lateness is concentrated: {of} came too late or were silent in {theirs / count:.0%} of their {count:,} "
        f"selections, the others {(missed - theirs) / (total - count):.0%}{named}. What they hold hardly reaches the "
        "model"
    )


def _asked(one: DeviceParticipation) -> int:
    return one.reported + one.missed


def _sums(devices: Sequence[DeviceParticipation]) -> tuple[int, int]:
    """How many selections they missed, of how many."""
    return sum(one.missed for one in devices), sum(map(_asked, devices))


def _by_chance(counts: Sequence[tuple[int, int]], p: float) -> bool:
    """Whether chance explains that of each n selections m were missed. ``counts``: pairs (m, n)."""
    spread = p * (1 - p)
    dispersion = sum((m - n * p) ** 2 / (n * spread) for m, n in counts)
    variance = sum(2 + (1 / spread - 6) / n for _, n in counts)
    return variance <= 0 or dispersion - (len(counts) - 1) < CHANCE * math.sqrt(variance)


def _grouped(devices: Sequence[DeviceParticipation]) -> dict[str, list[DeviceParticipation]]:
    """The devices of each class, those with the most devices first."""
    classes: dict[str, list[DeviceParticipation]] = {}
    for one in devices:
        classes.setdefault(one.device_class, []).append(one)
    return dict(sorted(classes.items(), key=lambda item: (-len(item[1]), item[0])))


def by_class(devices: Sequence[DeviceParticipation]) -> list[ClassParticipation]:
    """The sums of each class, those with the most devices first."""
    return [
        ClassParticipation(
            device_class=name,
            devices=len(members),
            never_counted=sum(not one.counted for one in members),
            selected=sum(one.selected for one in members),
            counted=sum(one.counted for one in members),
            missed=sum(one.missed for one in members),
        )
        for name, members in list(_grouped(devices).items())[:_CLASSES]
    ]
