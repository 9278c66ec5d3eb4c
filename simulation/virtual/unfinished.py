"""The devices that were still training when a round closed, from the log of a run. A resumed world needs them to
continue as if the simulation had not been interrupted.

A device of a closed round that neither reported nor withdrew has vanished, or comes too late: which of these, and when,
is a function of the seed, the device and the round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.engine.plan import Plan
from coordinator.store.port import EventRow, Reader
from simulation.clients import Clients
from simulation.virtual.behaviour import Habits, work_done
from simulation.virtual.parts import Planned

_PAGE = 5000


@dataclass(frozen=True, slots=True, order=True)
class Unfinished:
    """A device of an earlier round that still trains. Sorted in the order of the assignments."""

    round: int
    at: float
    """When its training ends."""
    number: int
    """Number of the client."""
    device: str


def unfinished(
    store: Reader, run: str, plan: Plan, clients: Clients, habits: Habits, planned: Planned
) -> list[Unfinished]:
    """Returns all unfinished devices."""
    row = store.run(run)
    events = [] if row is None else _lately(store, run, row.seq, plan.cohort.collect_s)
    left: dict[int, tuple[float, dict[str, None]]] = {}
    cohorts: dict[int, list[str]] = {}
    for event in events:
        body: dict[str, Any] = event.body
        if event.kind == "Drawn":
            cohorts[body["round"]] = [device for device, _ in body["cohort"]]
            left[body["round"]] = event.at, dict.fromkeys(cohorts[body["round"]])
        elif event.kind in ("Reported", "Advertised", "Withdrew") and body["round"] in left:
            left[body["round"]][1].pop(body["device"], None)
    open_rounds = {item.round for item in store.rounds(run, max(left, default=1) - 1) if item.status == "open"}
    found: list[Unfinished] = []
    for number, (began, devices) in left.items():
        late = {item.device for item in store.refusals(run, number)}
        if number in open_rounds:
            continue
        conducts = habits.conducts([device for device in cohorts[number] if device in clients], number)
        for device in devices.keys() & conducts.keys() - late:
            conduct = conducts[device]
            if conduct.trains(secure=plan.secure is not None):
                due_s = (began + plan.cohort.collect_s) - began
                steps = planned(clients.examples(device))
                _, train_s = work_done(conduct, steps, due_s, plan.task.time_budget_s)
                at = began + conduct.network_s + train_s
                found.append(Unfinished(round=number, at=at, number=clients.number(device), device=device))
    return sorted(found)


def _lately(store: Reader, run: str, last: int, collect_s: float) -> list[EventRow]:
    """Returns the end of the log: all events of rounds whose devices may still be training."""
    found: list[EventRow] = []
    while last > 0:
        before = max(0, last - _PAGE)
        found[:0] = store.events(run, before, last - before)
        if found and found[0].at < found[-1].at - collect_s:
            break
        last = before
    return found
