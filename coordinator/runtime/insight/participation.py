"""Who takes part in a run: each device's part in each round that has ended, from the log and the store's rows.

What was read of the log stays, so a run that is followed costs what is new in it.
"""

from __future__ import annotations

import statistics
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from client_sdk.protocol.insight import DeviceParticipation, RunParticipation
from coordinator.engine.rounds import KINDS
from coordinator.runtime.core import Core
from coordinator.runtime.insight.fleet_views import class_of
from coordinator.runtime.insight.lateness import by_class, lateness
from coordinator.runtime.insight.rounds_in_log import before_round
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
