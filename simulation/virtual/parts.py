"""Computes from their habits what the devices of a cohort will do in a round, and until when, before any begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from client_sdk.protocol.secure import Stage
from coordinator.engine.state import RunState
from simulation.clients import Clients
from simulation.engines.port import CannotTrain, Job
from simulation.virtual.behaviour import Habits, work_done

_STAGES: tuple[Stage, ...] = get_args(Stage)
OUT_OF_TIME = CannotTrain(reason="The time ran out before one step of training could be done.")
Planned = Callable[[int], int]
"""Training examples -> optimizer steps of the whole task."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of one device."""

    at: float
    """When its training ends, in virtual time."""
    order: float
    """Its order among devices whose training ends at the same time."""
    job: Job | None
    """Its training; None where it will have nothing to report: the time ends before its first step, or before its last
    where the plan refuses partial work."""
    network_s: float = 0.0
    """Virtual seconds of an exchange in a secure round."""
    vanishes_before: Stage | None = None
    """The exchange of a secure round before which it vanishes; None: it stays."""

    @property
    def place(self) -> tuple[float, float]:
        """Parts in this order end one after another."""
        return self.at, self.order


def parts_of(state: RunState, now: float, clients: Clients, habits: Habits, planned: Planned) -> dict[str, Part]:
    """Returns the parts of a cohort that begins now, by device; devices that vanish before they have
    trained have none."""
    plan, found = state.plan, {}
    due_s = due_in_s(now, state)
    for name, conduct in habits.conducts(state.current.members, state.round_number).items():
        if not conduct.trains(secure=plan.secure is not None):
            continue
        whole = planned(clients.examples(name))
        steps, train_s = work_done(conduct, whole, due_s, plan.task.time_budget_s)
        job = Job(
            run=state.run,
            round=state.round_number,
            attempt=state.current.attempt,
            device=name,
            version=state.version,
            cost=steps,
            times=state.times(name),
            steps=None if steps == whole else steps,
            fetch_s=conduct.network_s / 2,
            train_s=train_s,
        )
        refused = steps < whole and plan.aggregation.partial == "refuse"
        found[name] = Part(
            at=now + conduct.network_s + train_s,
            order=habits.unit("order", name, state.round_number),
            job=None if refused or not steps else job,
            network_s=conduct.network_s,
            vanishes_before=_STAGES[conduct.exchange] if conduct.vanishes else None,
        )
    return found


def due_in_s(now: float, state: RunState) -> float:
    """Returns the seconds until reports are due, as a device computes them that gets its assignment now: by its own
    clock, in floats."""
    left = state.plan.cohort.collect_s if state.deadline is None else state.deadline - now
    return (now + max(0.0, min(left, state.plan.cohort.collect_s))) - now
