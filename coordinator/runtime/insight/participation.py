"""Who takes part in a run: each device's part in each round that has ended, from the log and the store's rows.

What was read of the log stays, so a run that is followed costs what is new in it. ``lateness`` tells whether chance
alone explains who is late.
"""

from __future__ import annotations

import math
import statistics
import threading
from bisect import bisect_right
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from client_sdk.protocol.insight import ClassParticipation, DeviceParticipation, RunParticipation
from client_sdk.protocol.names import Page, first_of
from coordinator.engine.rounds import KINDS
from coordinator.runtime.clock import CostlyValue
from coordinator.runtime.core import Core
from coordinator.runtime.insight.fleet_views import NO_CLASS, class_of, named
from coordinator.runtime.insight.lanes import before_round
from coordinator.runtime.views import first_refusals
from coordinator.store.paging import LOOKED_AT
from coordinator.store.port import ClassRow, EventRow, Reader

ROUNDS = 200
"""Rounds that a coordinator shows."""
_PAGE = 5000
_FLEET_PAGE = 1000
_KEPT = 8
"""Runs of which what was read is kept."""
_NEVER = "-"
"""Before the id of a device that was never selected, where a page ends with it."""
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
        missing = sorted(counts.keys() - known.keys())
        labels = reader.labels(missing)
        classes = {**known, **{device: class_of(labels.get(device, "")) for device in missing}}
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


@dataclass(frozen=True, slots=True)
class _Selected:
    """The devices that were selected, the least counted first, and what they say together."""

    devices: Sequence[DeviceParticipation]
    names: Container[str]
    uncounted: int
    """How many of them never counted: the first ones."""
    left: int
    """How many of them are not registered any more."""
    by_class: Sequence[ClassParticipation]
    """Of every class."""
    lateness: str
    from_round: int


class ParticipationViews:
    """What a coordinator shows of the last ``ROUNDS`` rounds. Safe from any thread.

    Who was selected is read from the log; who never was, a page at a time; and how many these are from the numbers of
    classes, so that the fleet is not read."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, tuple[ParticipationLog, CostlyValue[_Selected]]] = OrderedDict()

    def of_run(self, run: str, after: str, limit: int, *, fleet: bool) -> RunParticipation:
        """``after``: where an earlier page ended. ``fleet``: with registered devices that were never selected.
        ProblemError where there is no such run."""
        newest = self._core.log(run).state.round_number
        with self._core.store.reading() as reader:
            with self._lock:
                first = max(1, newest - ROUNDS + 1)
                kept = self._runs.get(run)
                if kept is None or kept[0].from_round < first - ROUNDS // 2:
                    kept = self._runs[run] = ParticipationLog(run, first), CostlyValue(self._core.clock)
                self._runs.move_to_end(run)
                while len(self._runs) > _KEPT:
                    self._runs.popitem(last=False)
                log, value = kept
                found = value.get(lambda: _selected(reader, log))[0]
            everybody = reader.all_classes().devices + found.left if fleet else len(found.devices)
            classes = _with_fleet(found, reader.device_classes(_CLASSES)) if fleet else found.by_class
            page = _page(reader, found, after, limit, fleet=fleet)
        return RunParticipation(
            from_round=found.from_round,
            devices=everybody,
            never_counted=everybody - len(found.devices) + found.uncounted,
            by_class=list(classes[:_CLASSES]),
            lateness=found.lateness,
            page=page,
            next=page.next,
        )


def _selected(reader: Reader, log: ParticipationLog) -> _Selected:
    devices = sorted(log.read(reader, {}), key=_order)
    return _Selected(
        devices=devices,
        names={one.device for one in devices},
        uncounted=sum(not one.counted for one in devices),
        left=len(devices) - reader.registered_among([one.device for one in devices]),
        by_class=by_class(devices),
        lateness=lateness(devices),
        from_round=log.from_round,
    )


def _page(reader: Reader, found: _Selected, after: str, limit: int, *, fleet: bool) -> Page[DeviceParticipation]:
    """First those that were selected and never counted; with the fleet, those that never were, by id; then the others.
    ``after``: numbers and id of the last one, by which those after it are found wherever it is now; or its id with a
    dash before it, where it never was selected."""
    never, last = after.startswith(_NEVER), _read(after)
    place = bisect_right(found.devices, last, key=_order) if last else 0
    shown = [] if never else list(found.devices[place : found.uncounted][: limit + 1])
    if fleet and (never or not last or not last[0]) and len(shown) <= limit:
        more, end = _never_selected(reader, found.names, after.removeprefix(_NEVER) if never else "", limit)
        shown += more
        if end and len(shown) <= limit:
            return Page(shown, _NEVER + end)
    shown += found.devices[max(place, found.uncounted) :][: max(0, limit + 1 - len(shown))]
    return first_of(shown, limit, lambda one: _told(one) if one.device in found.names else _NEVER + one.device)


def _order(one: DeviceParticipation) -> tuple[int, int, str]:
    return one.counted, -one.selected, one.device


def _told(one: DeviceParticipation) -> str:
    return f"{one.counted}.{one.selected}.{one.device}"


def _read(after: str) -> tuple[int, int, str] | None:
    """What ``_told`` has written; None: something else."""
    counted, _, rest = after.partition(".")
    selected, _, device = rest.partition(".")
    return (int(counted), -int(selected), device) if counted.isdecimal() and selected.isdecimal() else None


def _never_selected(
    reader: Reader, selected: Container[str], after: str, limit: int
) -> tuple[list[DeviceParticipation], str]:
    """Registered devices above this id that were not selected, more than ``limit`` where there are; and up to which id
    was looked, where it was not to the end."""
    found, looked, size = list[DeviceParticipation](), 0, limit + 1
    while rows := reader.device_labels(after, size):
        after, looked = str(rows[-1][0]), looked + len(rows)
        found += [
            DeviceParticipation(device=device, device_class=class_of(label))
            for device, label, left_at in rows
            if left_at is None and device not in selected
        ]
        if len(rows) < size:
            break
        if len(found) > limit or looked >= LOOKED_AT:
            return found, after
    return found, ""


def _with_fleet(found: _Selected, largest: Sequence[ClassRow]) -> list[ClassParticipation]:
    """The classes with all of their devices, also those that were never selected."""
    sizes = Counter({row.device_class: row.devices for row in named(largest)})
    sizes[NO_CLASS] += found.left
    selected = {one.device_class: one for one in found.by_class}
    none = ClassParticipation(device_class="", devices=0, never_counted=0, selected=0, counted=0, missed=0)
    classes = [(name, size, selected.get(name, none)) for name, size in sizes.items() if size]
    return [
        one.changed(device_class=name, devices=size, never_counted=size - one.devices + one.never_counted)
        for name, size, one in sorted(classes, key=lambda of: (-of[1], of[0]))
    ]


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
        for name, members in _grouped(devices).items()
    ]
