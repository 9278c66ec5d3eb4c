"""The weight of an update: an integer, since the exact sum adds integers.

FedAvg weighs a device by its examples n_k (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1). Sizes are
self-reported, so they are capped. Only the ratios of weights matter: an equal-weight plan that counts partial work by
the fraction seen gives whole work ``UNIT`` and cut-short work less.
"""

from __future__ import annotations

from coordinator.engine.aggregation.section import Aggregation

UNIT = 1024
"""Weight of whole work in an equal-weight plan that counts partial work by the fraction done: resolution about 0.1 %.
"""


def heaviest(aggregation: Aggregation) -> int:
    """The most that one update can weigh under this plan."""
    if aggregation.weighting == "examples":
        return aggregation.weight_cap
    return UNIT if aggregation.partial == "examples_seen" else 1


def reason_against(
    aggregation: Aggregation, *, examples: int, steps: int, steps_planned: int, complete: bool
) -> str | None:
    """Why an update of this work has no weight under this plan; None where it has one."""
    if examples < 1:
        return "an update needs at least one training example behind it"
    if not complete and aggregation.partial == "refuse":
        return f"{steps} of {steps_planned} steps: this plan refuses partial work"
    return None


def weight_of(aggregation: Aggregation, *, examples: int, steps: int, steps_planned: int, complete: bool) -> int:
    """The integer weight of an update, at least 1.

    ``examples``: of the device, after the cap of its enrolment. ``steps`` of ``steps_planned``: how much of the task
    was done; used when ``complete`` is false and the plan weighs by the examples seen.
    """
    most = heaviest(aggregation)
    whole = min(examples, most) if aggregation.weighting == "examples" else most
    if complete or aggregation.partial != "examples_seen" or steps >= steps_planned:
        return max(1, whole)
    return max(1, whole * steps // steps_planned)
