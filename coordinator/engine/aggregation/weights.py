"""The weight of an update in plain rounds: an integer, since the exact sum adds integers. (In secure rounds devices
weigh, by ``SecureTask.weighting``.)

FedAvg weighs a device by its examples n_k (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1). Sizes are
self-reported, so they are capped. A plan that counts partial work by the examples seen weighs it by a fraction of an
example, so it counts in parts of an example: ``unit_of`` says how many parts there are. Only the ratios of weights
matter, so the unit is in no result.

The unit is a power of two up to 1,024 with which ``goal`` updates of the heaviest weight stay within 2^28 (64 for the
defaults), so such a plan takes smaller values. Flooring to whole examples cost up to half the weight of a device with
few examples. A common denominator of all steps is known only after the last report, and the fold adds updates as they
arrive. A run keeps its unit, in ``Created``, since its acknowledged weights are in it. No device sends a weight: it
could claim any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.engine.aggregation.section import Aggregation

UNIT = 1024
"""The most parts of a whole. Weight of whole work in an equal-weight plan that counts partial work by the fraction
done: resolution about 0.1 %."""
MOST_WEIGHT = 2**28
"""The most that a round may weigh in all. The exact sum holds sum_k w_k |x_k| < 2^31, so values up to 8 always fit."""


PARTS = 64
"""1/p is counted in so many parts, in plans with ``inverse_participation``."""


def unit_of(aggregation: Aggregation, goal: int) -> int:
    """In how many parts of an example this plan counts; 1 where weights have no fraction.

    Where partial work has one, the largest power of two up to ``UNIT`` with which ``goal`` devices of the heaviest
    weight stay within ``MOST_WEIGHT``: 64 for the default cap of 10,000 examples and a goal of 256. Times ``PARTS``
    where the plan weighs by 1/p.
    """
    parts = _parts(aggregation)
    if aggregation.weighs() != "examples" or aggregation.partial != "examples_seen":
        return parts
    unit = UNIT
    while unit > 1 and heaviest(aggregation, unit * parts) * goal > MOST_WEIGHT:
        unit //= 2
    return unit * parts


def heaviest(aggregation: Aggregation, unit: int) -> int:
    """The most that one update can weigh under this plan."""
    return _heaviest(aggregation, unit) * (aggregation.inverse_participation or 1)


def times_of(aggregation: Aggregation, selected: int, counted: int) -> int:
    """By how many ``PARTS`` an update is weighed by 1/p: its device was selected in so many rounds, and counted in so
    many of them. 1 where the plan does not weigh so."""
    most = aggregation.inverse_participation
    return 1 if most is None else min(most * PARTS, PARTS * (selected + 1) // (counted + 1))


def _parts(aggregation: Aggregation) -> int:
    return 1 if aggregation.inverse_participation is None else PARTS


def _heaviest(aggregation: Aggregation, unit: int) -> int:
    """Without 1/p, which is counted in the same unit."""
    if aggregation.weighs() == "examples":
        return aggregation.weight_cap * unit
    return (UNIT if aggregation.partial == "examples_seen" else 1) * _parts(aggregation)


def is_capped(aggregation: Aggregation, examples: int, by_registration: bool = False) -> bool:
    """Whether an update of so many examples weighs less than these. ``by_registration``: whether its device reports
    more than it may claim."""
    return aggregation.weighs() == "examples" and (by_registration or examples > aggregation.weight_cap)


def said_of_cap(weighting: str, cap: int, sizes: Sequence[int], *, field: str, whose: str = "clients") -> str:
    """A sentence about those that hold more examples than ``cap``, the value of ``field``; empty without any."""
    above = [size for size in sizes if size > cap]
    count = f"{len(above)} of {len(sizes)} {whose}"
    if weighting != "examples" or not above:
        return ""
    who = f"{count} hold more than {field} = {cap:,} examples, up to {max(above):,}, and weigh"
    if len(sizes) == 1:
        who = f"who holds {sizes[0]:,} examples has more than {field} = {cap:,}, and weighs"
    return f"{who} {cap:,}: the mean is that of capped sizes. Raise {field} where sizes can be trusted"


def reason_against(
    aggregation: Aggregation, *, examples: int, steps: int, steps_planned: int, complete: bool
) -> str | None:
    """Why an update of this work has no weight under this plan; None where it has one."""
    if examples < 1:
        return "an update needs at least one training example behind it"
    if not complete and aggregation.partial == "refuse":
        return f"{steps} of {steps_planned} steps: this plan refuses partial work"
    return None


def weight_of(
    aggregation: Aggregation,
    unit: int,
    *,
    examples: int,
    steps: int,
    steps_planned: int,
    complete: bool,
    times: int = PARTS,
) -> int:
    """The integer weight of an update, at least 1: min(examples, cap) * unit, times the fraction of the work, rounded
    down; times ``times`` / ``PARTS`` where the plan weighs by 1/p (``times_of``).

    ``unit``: the run's (``RunState.weight_unit``). ``examples``: of the device, after the cap of its registration.
    ``steps`` of ``steps_planned``: how much of the task was done; used when ``complete`` is false and the plan weighs
    by the examples seen.
    """
    parts = _parts(aggregation)
    most = _heaviest(aggregation, unit) // parts
    whole = min(examples * (unit // parts), most) if aggregation.weighs() == "examples" else most
    if not (complete or aggregation.partial != "examples_seen" or steps >= steps_planned):
        whole = whole * steps // steps_planned
    return max(1, whole) * (1 if parts == 1 else times)
