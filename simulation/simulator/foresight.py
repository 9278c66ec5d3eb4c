"""Says before round 1 what the plan will do to the clients' updates, as far as their sizes and speeds are known."""

from __future__ import annotations

from client_sdk.learning.budget import planned_steps
from coordinator.engine.plan import Plan
from coordinator.runtime.insight.plan_check import said_of_plan
from simulation.clients import Clients
from simulation.virtual.behaviour import Habits, work_done

_MOST = 10_000
"""Clients that are looked at."""


def foreseen(plan: Plan, clients: Clients, habits: Habits, *, stops_early: bool) -> list[str]:
    """A sentence for each thing: who weighs less than its examples, whose work a deadline cuts short. Empty where the
    data of clients is made when it is asked for, or where they are too many to look at. ``stops_early``: whether the
    learner can, which a function cannot."""
    if len(clients) > _MOST or not clients.holdings.at_hand:
        return []
    sizes = [int(size) for size in clients.sizes]
    said = [said_of_plan(plan, sizes)]
    cut, most = [], 0
    for name, conduct in {} if habits.by_share else habits.conducts(list(clients), 1).items():
        if conduct.share < 1.0:  # a straggler, as the user wants it
            continue
        whole = planned_steps(plan.task, clients.examples(name))
        steps, _ = work_done(conduct, whole, plan.cohort.collect_s, plan.task.time_budget_s)
        if steps < whole:
            cut.append(name)
            most = max(most, whole)
    if cut:
        becomes = {"full": "counts in full", "examples_seen": "counts by the part done", "refuse": "is refused"}
        what = becomes[plan.aggregation.partial] if stops_early else "does not count, as a function cannot stop early"
        said.append(
            f"{len(cut)} of {len(sizes)} clients ({', '.join(cut[:3])}{', ...' if len(cut) > 3 else ''}) have up to "
            f"{most:,} steps of work, more than fit in the time of a round: their work is cut short and "
            f"{what}. Raise cohort.collect_s ({plan.cohort.collect_s:g} virtual s) or "
            "task.time_budget_s, or lower Behaviour.step_s"
        )
    return [f"{sentence}." for sentence in said if sentence]
