"""Who takes part in a run: each device's part in each round that has ended, from the log and the store's rows.

What was read of the log stays, so a run that is followed costs what is new in it. ``lateness`` tells whether chance
alone explains who is late.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from client_sdk.protocol.insight import ClassParticipation, DeviceParticipation, RunParticipation
from coordinator.engine.rounds import KINDS
from coordinator.runtime.core import Core
from coordinator.runtime.insight.fleet_views import class_of
from coordinator.runtime.insight.lanes import before_round
from coordinator.runtime.views import first_refusals
from coordinator.store.port import EventRow, Reader

ROUNDS = 200
"""Rounds that a coordinator shows."""
_PAGE = 5000
_FLEET_PAGE = 1000
_KEPT = 8
"""Runs of which what was read is kept."""
_TIMES = 21
"""Rounds of a device of which its speed is the median."""


@dataclass(slots=True)
class _Round:
    """What the log says of one round."""

    began: float
    ends: dict[str, str]
    """Device -> how its part ended: a count of ``DeviceParticipation``."""
    times: dict[str, float] = field(default_factory=dict)
    """Device -> seconds until its update came, in time."""
    drawn: dict[str, float] = field(default_factory=dict)
    """Device -> when it was drawn."""
    went_into: dict[str, int] = field(default_factory=dict)
    """Device -> the later round that has its update: of buffered rounds."""


class ParticipationLog:
    """The parts of all devices in the rounds of one run, ``from_round`` on."""

    def __init__(self, run: str, from_round: int = 1) -> None:
        self.from_round = from_round
        self._run = run
        self._seq: int | None = None if from_round > 1 else 0
        self._rounds: dict[int, _Round] = {}

    def read(self, reader: Reader, known: Mapping[str, str]) -> list[DeviceParticipation]:
        """Every device in ``known`` (id -> class), and every one that was selected, in order of id. Rounds that are
        under way are left out."""
        self._follow(reader)
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        times: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_TIMES))
        after = self.from_round - 1
        while page := reader.rounds(self._run, after):
            for row in page:
                found = self._rounds.get(row.round)
                if found is None or row.status == "open":
                    continue
                counted = {one.device for one in reader.contributions(self._run, row.round)}
                kind = KINDS[row.kind]
                refusals = first_refusals(reader.refusals(self._run, row.round)) if kind.single_updates else {}
                counted |= {
                    device
                    for device, number in found.went_into.items()
                    if reader.contribution(self._run, number, device) is not None
                }
                for device, ended in found.ends.items():
                    end, refusal = ended, refusals.get(device)
                    if row.kind == "buffered" and end == "dropped" and refusal is None and self._trains(reader, device):
                        continue
                    if kind.masked and row.status == "committed":
                        end = "reported" if device in counted else "dropped" if end == "reported" else end
                    if end == "dropped" and refusal is not None:
                        end = "late" if refusal.kind == "late" else "refused"
                        if end == "late":
                            times[device].append(refusal.at - found.began)
                    if device in found.times:
                        times[device].append(found.times[device])
                    counts[device].update(("selected", end, *(["counted"] if device in counted else [])))
            after = page[-1].round
        classes = dict(known)
        missing = sorted(counts.keys() - known.keys())
        classes |= {device: class_of(reader.labels([device]).get(device, "")) for device in missing}
        return [
            DeviceParticipation(
                device=device,
                device_class=classes[device],
                speed_s=statistics.median(times[device]) if device in times else None,
                **counts[device],
            )
            for device in sorted(classes)
        ]

    def _trains(self, reader: Reader, device: str) -> bool:
        claim = reader.claim(device)
        return claim is not None and claim.run == self._run

    def _follow(self, reader: Reader) -> None:
        if self._seq is None:
            self._seq = before_round(reader, self._run, self.from_round)
        while page := reader.events(self._run, self._seq, _PAGE):
            for row in page:
                self._add(row)
            self._seq = page[-1].seq

    def _add(self, row: EventRow) -> None:
        body = cast("dict[str, Any]", row.body)
        if row.kind == "Drawn":
            devices = [device for device, _ in body["cohort"]]
            drawn = self._rounds.setdefault(body["round"], _Round(row.at, {}))
            drawn.began = row.at
            drawn.ends |= dict.fromkeys(devices, "dropped")
            drawn.drawn |= dict.fromkeys(devices, row.at)
            return
        number, device = body.get("round", 0), body.get("device", "")
        found = self._rounds.get(number)
        if device and (found is None or device not in found.ends):  # it was drawn in an earlier buffered round
            found = self._rounds.get(body.get("attempt", 0))
            if found is not None and row.kind == "Reported":
                found.went_into[device] = number
        if found is None:
            return
        if row.kind == "Announced":
            # what was masked in the attempt before is in no sum
            found.ends = {one: "dropped" if end == "reported" else end for one, end in found.ends.items()}
        elif device in found.ends and row.kind == "UpdateLost":
            found.ends[device] = "dropped"
        elif device in found.ends and found.ends[device] == "dropped":
            end = {"Reported": "reported", "Masked": "reported", "Withdrew": "withdrawn", "UpdateRefused": "refused"}
            found.ends[device] = end.get(row.kind, "dropped")
            if row.kind == "Reported":
                found.times[device] = row.at - found.drawn[device]


class ParticipationViews:
    """What a coordinator shows of the last ``ROUNDS`` rounds. Safe from any thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, ParticipationLog] = OrderedDict()

    def of_run(self, run: str, skip: int, limit: int, *, fleet: bool) -> RunParticipation:
        """``fleet``: with registered devices that were never selected. ProblemError where there is no such run."""
        newest = self._core.log(run).state.round_number
        with self._core.store.reading() as reader:
            with self._lock:
                first = max(1, newest - ROUNDS + 1)
                kept = self._runs.get(run)
                if kept is None or kept.from_round < first - ROUNDS // 2:
                    kept = self._runs[run] = ParticipationLog(run, first)
                self._runs.move_to_end(run)
                while len(self._runs) > _KEPT:
                    self._runs.popitem(last=False)
                devices = kept.read(reader, registered(reader) if fleet else {})
        shown = sorted(devices, key=lambda one: (one.counted, -one.selected, one.device))
        return RunParticipation(
            from_round=kept.from_round,
            devices=len(devices),
            never_counted=sum(not one.counted for one in devices),
            by_class=by_class(devices),
            lateness=lateness(devices),
            page=shown[skip : skip + limit],
        )


def registered(reader: Reader) -> dict[str, str]:
    """Every registered device that has not left -> its class."""
    found, after = dict[str, str](), ""
    while page := reader.devices(_FLEET_PAGE, after):
        found |= {row.device: class_of(row.label) for row in page if row.left_at is None}
        after = page[-1].device
    return found


FEWEST = 2
CHANCE = 4.0
SHARE = 0.05
_CLASSES = 50
_NAMED = 4
"""Classes that the sentence names."""


def lateness(devices: Sequence[DeviceParticipation]) -> str:
    """In which devices lateness is concentrated, so that what they hold hardly reaches the model, in a sentence; empty
    where it is not. Selections after which a device withdrew, or had its update refused, say nothing about its speed.

    A device that is selected n_i times *misses* m_i of these rounds: its update came late, or it was silent. With p the
    share of all selections that were missed, and lateness due to chance alone, the dispersion

        D = sum_i (m_i - n_i p)^2 / (n_i p (1 - p))

    over N devices has the mean N - 1 and the variance sum_i (2 + (1 / (p (1 - p)) - 6) / n_i), as m_i is binomial
    (Pearson's chi-squared for homogeneity, with the exact variance of its terms). Lateness is concentrated where D is
    ``CHANCE`` standard deviations above its mean, and at least the part ``SHARE`` of the devices that were selected
    ``FEWEST`` times or more reported less than half as often as all do. Where devices were selected too seldom to tell,
    the same is asked of their classes, whose selections are many: a class with the part ``SHARE`` of the devices that
    reported less than half as often as all do.
    """
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
