"""Computes from their habits what the devices of a cohort will do in a round, and until when, before any begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from client_sdk.protocol.devices import Task
from client_sdk.protocol.secure import FIVE_EXCHANGES, Stage
from coordinator.engine.plan import Plan
from coordinator.engine.state import RunState
from coordinator.store.port import EventRow, Reader
from simulation.clients import Clients
from simulation.engines.port import CannotTrain, Job
from simulation.virtual.behaviour import Conduct, Habits, work_done

OUT_OF_TIME = CannotTrain(reason="The time ran out before one step of training could be done.")
TaskOf = Callable[[RunState, str], Task]
"""The task of a device in the round under way."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of one device."""

    at: float
    """When its training ends, in virtual time."""
    order: float
    """Its order among devices whose training ends at the same time."""
    job: Job | None
    """Its training; None where it will have nothing to report: it withdraws, or the time ends before its first step, or
    before its last where the plan refuses partial work."""
    exchange_s: float = 0.0
    """Virtual seconds of an exchange in a secure round."""
    vanishes_before: Stage | None = None
    """The exchange of a secure round before which it vanishes; None: it stays."""

    @property
    def place(self) -> tuple[float, float]:
        """Parts in this order end one after another."""
        return self.at, self.order


def parts_of(
    state: RunState, now: float, clients: Clients, habits: Habits, task_of: TaskOf
) -> tuple[dict[str, Part], set[str]]:
    """Returns (the parts of a cohort that begins now, by device, those that vanish before they have begun to train).
    Devices that vanish before they have trained have no part."""
    plan = state.plan
    found: dict[str, Part] = {}
    gone: set[str] = set()
    due_s, secure = due_in_s(now, state), plan.secure is not None
    for name, conduct in habits.conducts(state.current.members, state.round_number, now).items():
        if conduct.trains(secure=secure):
            order = habits.unit("order", name, state.round_number)
            task = task_of(state, name)
            part = part_of(
                state, name, conduct, state.round_number, task, began=now, due_s=due_s, clients=clients, order=order
            )
            if part is not None:
                found[name] = part
        elif conduct.phase == "fetch" and not secure:
            gone.add(name)
    return found, gone


def part_of(
    state: RunState,
    name: str,
    conduct: Conduct,
    round: int,
    task: Task,
    *,
    began: float,
    due_s: float,
    clients: Clients,
    order: float,
) -> Part | None:
    """Returns the part of one device that does not vanish by chance, which began then and has so many seconds. None: it
    vanishes, as it is not available for so long, or its battery does not last."""
    plan = state.plan
    whole = task.planned_steps(clients.examples(name))
    steps, train_s = work_done(conduct, whole, due_s, task.time_budget_s)
    if not conduct.stays(train_s):
        return None
    job = Job(
        run=state.run,
        round=round,
        attempt=state.current.attempt,
        device=name,
        changes=changes(plan.task, task),
        cost=steps,
        times=state.times(name),
        steps=None if steps == whole else steps,
        fetch_s=conduct.fetch_s,
        train_s=train_s,
        clip=0.0 if plan.privacy is None else plan.privacy.clip_after(state.small),
    )
    refused = steps < whole and plan.aggregation.partial == "refuse"
    return Part(
        at=began + conduct.network_s + train_s,
        order=order,
        job=None if refused or not steps or conduct.withdraws else job,
        exchange_s=conduct.exchange_s,
        vanishes_before=FIVE_EXCHANGES[conduct.exchange] if conduct.vanishes else None,
    )


def changes(planned: Task, task: Task) -> dict[str, float]:
    """What of ``task`` is other than in the plan."""
    if task is planned:
        return {}
    both = (one.model_dump(exclude={"strategy"}) for one in (planned, task))
    before, now = both
    return {name: value for name, value in now.items() if value != before[name]}


def due_in_s(now: float, state: RunState) -> float:
    """Returns the seconds until reports are due, as a device computes them that gets its assignment now: by its own
    clock, in floats."""
    left = state.plan.cohort.collect_s if state.deadline is None else state.deadline - now
    return (now + max(0.0, min(left, state.plan.cohort.collect_s))) - now


# ------------------------------------------------------------ devices of earlier rounds
# The devices that were still training when a round closed, from the log of a run. A resumed world needs them to
# continue as if the simulation had not been interrupted.
#
# A device of a closed round that neither reported nor withdrew has vanished, or comes too late: which of these, and
# when, is a function of the seed, the device and the round.


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
    store: Reader, run: str, plan: Plan, clients: Clients, habits: Habits, task_of: Callable[[int, str], Task]
) -> list[Unfinished]:
    """Returns all unfinished devices. ``task_of``: round, device -> the task that it had."""
    row = store.run(run)
    events = [] if row is None else _lately(store, run, row.seq, plan.cohort.collect_s)
    left: dict[int, dict[str, float]] = {}
    """Round of the draw -> device -> when it was drawn."""
    places = {claim.device for claim in store.claims(run)} if plan.buffered is not None else set()
    cohorts: dict[int, list[str]] = {}
    for event in events:
        body: dict[str, Any] = event.body
        if event.kind == "Drawn":
            cohorts.setdefault(body["round"], []).extend(device for device, _ in body["cohort"])
            left.setdefault(body["round"], {}).update({device: event.at for device, _ in body["cohort"]})
        elif event.kind in ("Reported", "Advertised", "Withdrew"):
            left.get(body["round" if plan.buffered is None else "attempt"], {}).pop(body["device"], None)
    open_rounds = {item.round for item in store.rounds(run, max(left, default=1) - 1) if item.status == "open"}
    found: list[Unfinished] = []
    for number, devices in left.items():
        late = {item.device for item in store.refusals(run, number)}
        if number in open_rounds and plan.buffered is None:
            continue
        known = [device for device in cohorts[number] if device in clients]
        conducts = habits.conducts(known, number, min(devices.values(), default=0.0))
        for device in devices.keys() & conducts.keys() - late - places:
            conduct, began = conducts[device], devices[device]
            if conduct.trains(secure=plan.secure is not None):
                due_s = (began + plan.cohort.collect_s) - began
                task = task_of(number, device)
                steps = task.planned_steps(clients.examples(device))
                _, train_s = work_done(conduct, steps, due_s, task.time_budget_s)
                if not conduct.stays(train_s):
                    continue
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
