"""What is measured of a run in virtual time: hours, bytes, device-hours, and who was heard.

Device-hours are those of all selected devices, with those whose work was for nothing: a device that is too slow trains
to its end, since it does not know that its round has closed. One that vanishes has spent, on average, half of the phase
in which it vanishes. They follow from the log and the habits, as the devices' conduct is a function of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from simulation.clients import Clients
from simulation.history import History
from simulation.questions.setting import CLASSES
from simulation.virtual.behaviour import Conduct, Habits, work_done

HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class ClassHeard:
    """Who of one class was heard."""

    devices: int
    """That were selected at least once."""
    selected: int
    counted: int
    never: int
    """Of the devices: their update is in no model."""
    accuracy: float | None
    """Of the last model, on what devices of this class hold out; None where that was not scored."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run."""

    hours: tuple[float, ...]
    """Virtual hours from its begin until each version, from 0."""
    accuracy: tuple[float, ...]
    """Of each version on the test set."""
    reached: bool
    """Whether the last version has the target."""
    rounds: int
    abandoned: int
    round_s: float
    """Median seconds of a round."""
    counted: float
    """Mean updates in a committed round."""
    device_hours: float
    wasted: float
    """The share of these that is in no model."""
    down_mb: float
    up_mb: float
    classes: Mapping[str, ClassHeard]

    @property
    def points(self) -> float:
        """Percentage points of accuracy that were won."""
        return max(1e-9, 100.0 * (max(self.accuracy) - self.accuracy[0]))


def spent_s(conduct: Conduct, train_s: float) -> float:
    """Seconds for which a device works in a round whose training would take ``train_s``."""
    whole = conduct.fetch_s + train_s + conduct.send_s
    if conduct.vanishes:
        before = {"fetch": 0.0, "train": conduct.fetch_s, "send": conduct.fetch_s + train_s}[conduct.phase]
        phase_s = {"fetch": conduct.fetch_s, "train": train_s, "send": conduct.send_s}[conduct.phase]
        return min(before + phase_s / 2.0, conduct.available_s)
    if train_s > conduct.charge_s:
        whole = conduct.fetch_s + conduct.charge_s
    return min(whole, conduct.available_s)


def device_hours(history: History, clients: Clients, habits: Habits) -> tuple[float, float]:
    """(hours of all selected devices, hours of those whose update is in a model). ``habits``: those of the run."""
    task, collect_s = history.plan.task, history.plan.cohort.collect_s
    spent: dict[tuple[int, str], float] = {}
    of_round: dict[int, list[str]] = {}
    used, committed = 0.0, {one.round for one in history.rounds if one.status == "committed"}
    for event in history.events:
        body = cast("dict[str, Any]", event.body)
        if event.kind == "Drawn":
            names = [device for device, _ in body["cohort"]]
            for name, conduct in habits.conducts(names, body["round"], event.at).items():
                planned = task.planned_steps(clients.examples(name))
                train_s = work_done(conduct, planned, collect_s, task.time_budget_s)[1]
                spent[body["round"], name] = spent_s(conduct, train_s)
        elif event.kind == "Reported":
            of_round.setdefault(body["round"], []).append(body["device"])
    for number in committed:
        used += sum(spent[number, name] for name in of_round.get(number, ()))
    return sum(spent.values()) / HOUR_S, used / HOUR_S


def measured(history: History, clients: Clients, habits: Habits, target: float | None) -> Measured:
    """What is measured of this run, whose scores are of every version."""
    versions, values = history.metric("accuracy")
    closed = {one.version: one.closed_at for one in history.rounds if one.version is not None and one.closed_at}
    hours = [(closed[int(version)] - history.created_at) / HOUR_S if version else 0.0 for version in versions]
    ended = [one for one in history.rounds if one.closed_at is not None]
    whole, used = device_hours(history, clients, habits)
    committed = [one for one in ended if one.status == "committed"]
    return Measured(
        hours=tuple(hours),
        accuracy=tuple(map(float, values)),
        reached=target is None or bool(values[-1] >= target),
        rounds=len(committed),
        abandoned=sum(one.status == "abandoned" for one in ended),
        round_s=float(np.median([one.seconds for one in ended if one.seconds is not None])),
        counted=float(np.mean([one.counted for one in committed])) if committed else 0.0,
        device_hours=whole,
        wasted=1.0 - used / whole if whole else 0.0,
        down_mb=sum(one.downloaded or 0 for one in ended) / 1e6,
        up_mb=sum(one.bytes for one in ended) / 1e6,
        classes=_heard(history),
    )


def _heard(history: History) -> dict[str, ClassHeard]:
    found: dict[str, ClassHeard] = {}
    everybody = history.participants
    for name in CLASSES:
        of = [one for one in everybody if one.device_class == name and one.selected]
        scored = ("class." + name, "accuracy") in history.curves
        found[name] = ClassHeard(
            devices=len(of),
            selected=sum(one.selected for one in of),
            counted=sum(one.counted for one in of),
            never=sum(not one.counted for one in of),
            accuracy=history.final("accuracy", "class." + name) if scored else None,
        )
    return found
