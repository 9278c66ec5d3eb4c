"""The plan's section ``[privacy]``: how much of one device a run's models may tell.

The unit is a device, and adjacency is zero-out (Kairouz et al. 2021, arXiv:1912.04977): a device's updates are replaced
by zeros, and its places in rounds stay. Each update is scaled to an L2 norm of at most ``clip`` as it enters the exact
sum, in the sum's own integers; the sum of a round gets discrete Gaussian noise of deviation ``noise`` times ``clip``,
and is divided by ``cohort.goal``, however many reported. So one round is 1 / 2 noise^2-zCDP for each device that is in
it, and a run is so often as that for a device that counts in ``cohort.most_rounds`` of its rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from client_sdk.privacy.accounting import epsilon_of, noise_for, rho_of
from client_sdk.protocol.devices import PrivacyTerms
from client_sdk.protocol.names import NAME_PATTERN
from client_sdk.tensors.exact_sum import FRACTION_BITS, RANGE, TOTAL_LIMIT
from coordinator.engine.aggregation.registry import RULES
from coordinator.engine.plan_section import Section
from coordinator.engine.selection import SELECTIONS

if TYPE_CHECKING:
    from coordinator.engine.plan import Plan

_DEVIATIONS = 14
"""No value of noise is further out, but for a chance of 2^-140."""


def own_ledger(run: str) -> str:
    """The name of the ledger of a run whose plan names none."""
    return f"run:{run}"


class Privacy(Section):
    """Differential privacy: what a run's models tell of one device is bounded, whoever looks at them. Each round's sum
    gets discrete Gaussian noise (Canonne, Kamath, Steinke 2020, arXiv:2004.00010). The coordinator sees updates and
    sums without it, and is trusted with them.

    A plan gives ``noise``, or the ``epsilon`` that it computes ``noise`` from. See docs/privacy.md."""

    clip: float = Field(gt=0, le=RANGE, allow_inf_nan=False)
    """The most that one update counts, as an L2 norm: a longer one is scaled down. ``clip = 0.5``"""
    noise: float | None = Field(default=None, gt=0, le=10_000, allow_inf_nan=False)
    """The noise multiplier: the deviation of the noise in a round's sum, over ``clip``. None: what ``epsilon`` takes.
    ``noise = 4.0``"""
    epsilon: float | None = Field(default=None, gt=0, le=1000, allow_inf_nan=False)
    """The most that a device may lose over the whole run, at ``delta``. None: what ``noise`` gives.
    ``epsilon = 8.0``"""
    delta: float = Field(gt=0, lt=1, allow_inf_nan=False)
    """The chance that the bound on the loss does not hold: far below one over the number of devices.
    ``delta = 1e-6``"""
    ledger: str | None = Field(default=None, pattern=NAME_PATTERN, exclude_if=lambda name: name is None)
    """The ledger that adds up what each device loses, over all runs that name it: ``quorate privacy ledger create``
    makes one, with its budget. None: the run has one of its own. ``ledger = "phones"``"""

    @model_validator(mode="after")
    def _consistent(self) -> Privacy:
        if self.noise is None and self.epsilon is None:
            raise ValueError("it needs noise, or an epsilon to compute it from")
        return self

    def participations(self, plan: Plan) -> int:
        """In how many rounds of the run one device counts at most."""
        return min(plan.cohort.most_rounds or plan.finish.rounds, plan.finish.rounds)

    def multiplier(self, plan: Plan) -> float:
        """``noise``, also where the plan says ``epsilon`` instead."""
        if self.noise is not None:
            return self.noise
        return noise_for(self.epsilon or 0.0, self.delta, self.participations(plan))

    def terms(self, plan: Plan) -> PrivacyTerms:
        """What devices are told."""
        return PrivacyTerms(noise=self.multiplier(plan), most_rounds=self.participations(plan))

    def deviation(self, plan: Plan) -> int:
        """Of the noise in a round's sum, in the sum's units, rounded up."""
        exact: Fraction = Fraction(self.multiplier(plan)) * Fraction(self.clip) * (1 << FRACTION_BITS)
        return math.ceil(exact)

    def cost(self, plan: Plan) -> float:
        """The zCDP that one round costs each device that counts in it."""
        return rho_of(self.multiplier(plan), 1)

    def ledger_of(self, run: str) -> str:
        """The name of the run's ledger. That of a run's own is no name that a plan can give."""
        return self.ledger or own_ledger(run)

    def rho(self, plan: Plan) -> float:
        """The zCDP of a device that takes part as often as the plan allows."""
        return rho_of(self.multiplier(plan), self.participations(plan))

    def spent(self, plan: Plan) -> float:
        """The epsilon at ``delta`` of such a device."""
        return epsilon_of(self.rho(plan), self.delta)

    def said(self, plan: Plan, values: int | None) -> Iterator[str]:
        """What the noise is worth and what it costs, a sentence each. ``values``: of the model, where it is known."""
        times, noise = self.participations(plan), self.multiplier(plan)
        yield (
            f"epsilon {self.spent(plan):.4g} at delta {self.delta:g} (zCDP {self.rho(plan):.4g}) for a device that "
            f"counts in all of its {times} rounds; nothing is gained by chance in who takes part"
        )
        spread = noise / plan.cohort.goal
        how = f"noise {noise:.4g} x clip in a sum is {spread:.3g} x clip in each value of its mean"
        if values is None:
            yield how
            return
        length = spread * math.sqrt(values)
        yield f"{how}, and {length:.3g} x clip over {values:,} values, where the mean update is at most clip long"

    def against(self, plan: Plan) -> Iterator[str]:
        aggregation, cohort = plan.aggregation, plan.cohort
        if cohort.most_rounds is None:
            yield (
                "privacy needs cohort.most_rounds: in how many rounds one device may count decides how much noise "
                "a run takes"
            )
        elif self.noise is not None and self.epsilon is not None and self.spent(plan) > self.epsilon:
            takes = noise_for(self.epsilon, self.delta, self.participations(plan))
            yield (
                f"privacy.noise = {self.noise:g} gives epsilon {self.spent(plan):.3g} at delta {self.delta:g} for a "
                f"device that counts in {self.participations(plan)} rounds, more than privacy.epsilon = "
                f"{self.epsilon:g}: leave one of the two out, or set noise = {takes:.4g}"
            )
        if plan.weighting != "equal":
            yield (
                'privacy needs aggregation.weighting = "equal": under weights by examples a device adds as many times '
                "its update as it says"
            )
        if aggregation.partial == "examples_seen":
            yield 'privacy with aggregation.partial = "examples_seen": weights would tell how much data a device has'
        if aggregation.inverse_participation is not None:
            yield "privacy with aggregation.inverse_participation: an update would weigh more than 1: leave it out"
        if aggregation.clip_norm is not None:
            yield "privacy.clip bounds updates: leave aggregation.clip_norm out"
        if aggregation.statistics_range is not None:
            yield "privacy with aggregation.statistics_range: no statistic is averaged in a private run: leave it out"
        rule = RULES.get(aggregation.rule)
        if rule is None or rule.needs != "sum":
            yield f'privacy with aggregation.rule = "{aggregation.rule}": only the sum is bounded, so the rule is mean'
        for name in ("secure", "buffered", "strategy", "datacenter"):
            if getattr(plan, name) is not None:
                yield f"privacy with [{name}] is not accounted for: leave one of the two out"
        if plan.task.score_held_out:
            yield "privacy with task.score_held_out: scores are computed from data, without noise: leave it out"
        if cohort.choose not in SELECTIONS or cohort.asks_size or SELECTIONS[cohort.choose].reads:
            yield (
                f'privacy with cohort.choose = "{cohort.choose}" and min_examples = {cohort.min_examples}: who is '
                "drawn would depend on devices' data"
            )
        if self.noise is not None or cohort.most_rounds is not None:
            most = cohort.goal * math.ceil(self.clip * 2**FRACTION_BITS) + _DEVIATIONS * self.deviation(plan)
            if most > TOTAL_LIMIT:
                yield (
                    f"privacy.clip ({self.clip:g}), its noise and cohort.goal ({cohort.goal}) give sums beyond 2^31: "
                    "lower clip"
                )
