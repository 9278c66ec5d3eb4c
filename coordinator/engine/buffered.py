"""The plan's section ``[buffered]``: asynchronous rounds (FedBuff: Nguyen et al. 2022, arXiv:2106.06639).

Up to ``concurrency`` devices train at any time, each on the version that was the newest when it was drawn. A round
ends with a commit of exactly ``cohort.goal`` reports, of whatever versions they are; who trains meanwhile trains on,
and reports to a later round. The *staleness* of a report is how many versions were committed since its own: it weighs
its weight times s(staleness), in whole 1/64, so that all stays an exact sum of integers::

    model(v + 1) = model(v) + sum_k w_k s_k (update_k - its base) / sum_k w_k s_k

The paper divides by K instead of the sum of weights: there a buffer of stale reports moves the model less, here only
stale reports beside fresh ones do.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from coordinator.engine.aggregation.section import MOST_WEIGHT, unit_of
from coordinator.engine.plan_section import Section

if TYPE_CHECKING:
    from coordinator.engine.aggregation.section import Aggregation
    from coordinator.engine.plan import Plan

WHOLE = 64
"""s(staleness) is counted in so many parts: this many weigh an update fully."""


class Buffered(Section):
    """Asynchronous rounds: devices train on the version that was newest when they were drawn, and each
    ``cohort.goal`` reports make the next one. ``cohort.collect_s`` is how long each device has, from its draw.

    A plan without this section has rounds that all devices of a cohort begin together."""

    concurrency: int = Field(ge=1, le=100_000)
    """How many devices train at once. As soon as a place is free, a waiting device is drawn for it.
    ``concurrency = 100``"""
    most_stale: int = Field(default=10, ge=0, le=1000)
    """The most versions that may be committed between a device's draw and its report. A device whose version is older
    loses its place, and its update is refused with that reason."""
    staleness: tuple[Annotated[int, Field(ge=1, le=WHOLE)], ...] | None = None
    """s(staleness) in whole 1/64, from 0 to ``most_stale``: never more than the one before, and never 0; the last one
    holds for all that are more stale. None: the paper's 1 / sqrt(1 + staleness), rounded; ``quorate plan check`` writes
    it out. ``staleness = [64, 45, 37]``"""

    @property
    def in_parts(self) -> tuple[int, ...]:
        """s in 1/64 for each staleness up to ``most_stale``."""
        if self.staleness is not None:
            return self.staleness + self.staleness[-1:] * (self.most_stale + 1 - len(self.staleness))
        return tuple((isqrt(4 * WHOLE * WHOLE // (1 + late)) + 1) // 2 for late in range(self.most_stale + 1))

    @model_validator(mode="after")
    def _consistent(self) -> Buffered:
        table = self.in_parts
        if not table:
            raise ValueError("staleness needs a value for reports that are not stale, for example [64]")
        if len(table) > self.most_stale + 1:
            raise ValueError(
                f"staleness has {len(table)} values, and most_stale = {self.most_stale} takes at most "
                f"{self.most_stale + 1}: one for each staleness from 0"
            )
        if list(table) != sorted(table, reverse=True):
            raise ValueError("staleness must never rise: a report that is more stale may not weigh more")
        return self

    def unit(self, aggregation: Aggregation, goal: int) -> int:
        """In how many parts of an example a run of such a plan counts."""
        return WHOLE * unit_of(aggregation, WHOLE * goal)

    def against(self, plan: Plan) -> Iterator[str]:
        cohort, aggregation, usual = plan.cohort, plan.aggregation, type(plan.cohort)()
        if plan.secure is not None:
            yield (
                "buffered with [secure]: devices of different versions would have to mask together, and their weights "
                "with the staleness that nobody knows before they report: leave one of the two out"
            )
        if plan.datacenter is not None:
            yield "buffered with [datacenter]: a buffered round never fails for want of devices: leave one of them out"
        if plan.half is not None:
            yield (
                f"buffered with [strategy] {plan.half[0]}, of which devices run a half: what they share and keep would "
                "be of different versions: leave one of the two out"
            )
        if (
            plan.strategy is not None
            and plan.schedule is not None
            and (plan.schedule.learning_rate or plan.schedule.mu)
        ):
            yield (
                "buffered with [strategy] and a schedule of devices' rates: the reports of one round would be of "
                "different rates: leave one of the three out"
            )
        if aggregation.inverse_participation is not None:
            yield "buffered with aggregation.inverse_participation: participation is not counted there: leave it out"
        if plan.task.score_held_out:
            yield "buffered with task.score_held_out: the scores of one round would be of different versions"
        if cohort.choose != "uniform":
            yield (
                f'buffered with cohort.choose = "{cohort.choose}": places are filled as they become free, so there is '
                'no cohort to compose; only "uniform" is possible'
            )
        for name in ("pool", "select_s", "quorum"):
            if getattr(cohort, name) != getattr(usual, name):
                yield f"cohort.{name} has no meaning in buffered rounds: leave it out; see buffered.concurrency"
        if cohort.select not in (usual.select, cohort.goal, self.concurrency):
            yield "cohort.select has no meaning in buffered rounds: leave it out; see buffered.concurrency"
        if plan.heaviest * cohort.goal > MOST_WEIGHT:
            yield (
                f"with [buffered] an update may weigh {plan.heaviest}, in 1/{WHOLE} of an example, and cohort.goal "
                f"({cohort.goal}) of them more than {MOST_WEIGHT}: lower aggregation.weight_cap or the goal"
            )
