"""The plan's section ``[privacy]``: how much of one device a run's models may tell.

The unit is a device, and adjacency is zero-out (Kairouz et al. 2021, arXiv:1912.04977): a device's updates are replaced
by zeros, and its places in rounds stay. Each update is scaled to an L2 norm of at most ``clip`` as it enters the exact
sum, in the sum's own integers; the sum of a round gets discrete Gaussian noise of deviation ``noise`` times ``clip``,
and is divided by ``cohort.goal``, however many reported. A device that counts in some of the rounds has lost
weight / 2 noise^2 of zCDP for each: the weight is 1 where the noise of rounds is independent, and else what
``client_sdk.privacy.correlated`` gives for ``cohort.most_rounds`` and ``cohort.apart``.

*distributed*, in secure rounds: each device adds a share of the noise before it masks, so large that every sum that can
be opened has it all, of each group (``client_sdk.secagg.header.share_of``). There a device's round counts when its list
is shown: from then on its sum may be opened, whatever becomes of the round.

Where the clip adapts (``client_sdk.secagg.clip_bit``), ``clip`` is that of the first round, and the unit of all sums:
updates are added in units in which the round's clip is ``clip``. What an update counts, the noise, the lanes of masked
vectors and what a round costs are the same in all rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from client_sdk.privacy.accounting import epsilon_of, estimate_of, noise_for, rho_of
from client_sdk.privacy.correlated import (
    MOST_PLACES,
    MOST_STEPS,
    ROUNDING,
    Buffers,
    Independent,
    Pattern,
    Strategy,
    Tree,
    buffers_for,
    cost_of_a_step,
)
from client_sdk.protocol.devices import PrivacyTerms
from client_sdk.protocol.names import NAME_PATTERN
from client_sdk.secagg.clip_bit import beta_of, kappa_of, next_clip
from client_sdk.secagg.errors import BadParameters
from client_sdk.secagg.header import hidden_among, share_of
from client_sdk.tensors.exact_sum import FRACTION_BITS, RANGE, TOTAL_LIMIT
from coordinator.engine.aggregation.registry import RULES
from coordinator.engine.named_tensors import CLIP, WITHIN, Small
from coordinator.engine.plan_section import Section
from coordinator.engine.selection import SELECTIONS

if TYPE_CHECKING:
    from coordinator.engine.plan import Plan

_DEVIATIONS = 14
"""No value of noise is further out, but for a chance of 2^-140."""


def own_ledger(run: str) -> str:
    """The name of the ledger of a run whose plan names none."""
    return f"run:{run}"


class Target(Section):
    """The clip follows a quantile of the norms of updates (Andrew et al. 2021, arXiv:1905.03871). Of each device one
    bit more is in the sum, with the same noise: whether its update was within the clip."""

    quantile: float = Field(default=0.5, gt=0, lt=1, allow_inf_nan=False)
    """The part of updates that shall be within the clip. ``quantile = 0.5``"""
    rate: float = Field(default=0.2, gt=0, le=10, allow_inf_nan=False)
    """How fast: where all updates are within the clip, it shrinks by a factor of exp(rate (1 - quantile)) a round.
    ``rate = 0.2``"""
    lowest: float = Field(ge=1e-6, le=RANGE, allow_inf_nan=False)
    """The least that it may be. ``lowest = 0.01``"""
    highest: float = Field(ge=1e-6, le=RANGE, allow_inf_nan=False)
    """The most. ``highest = 10.0``"""

    @model_validator(mode="before")
    @classmethod
    def _has_bounds(cls, data: Any) -> Any:
        if isinstance(data, dict) and not {"lowest", "highest"} <= data.keys():
            raise ValueError("a clip that adapts needs lowest and highest")
        return data


class Privacy(Section):
    """Differential privacy: what a run's models tell of one device is bounded, whoever looks at them. Each round's sum
    gets discrete Gaussian noise (Canonne, Kamath, Steinke 2020, arXiv:2004.00010).

    A plan gives ``noise``, or the ``epsilon`` that it computes ``noise`` from. See docs/privacy.md."""

    mechanism: Literal["gaussian", "tree", "blt", "distributed"] = Field(
        default="gaussian", exclude_if=lambda name: name == "gaussian"
    )
    """*gaussian*: the noise of each round is independent. *tree* and *blt* (DP-FTRL): it is correlated over rounds, so
    that models have less of it where each device counts in few rounds that are far apart: see ``cohort.apart``. *tree*
    (Kairouz et al. 2021, arXiv:2103.00039) is simpler, *blt* (McMahan, Xu, Zhang 2024, arXiv:2408.08868) has the least
    noise. In these three the coordinator adds it; it sees updates and sums without, and is trusted with them.
    *distributed*, in secure rounds: each device adds a share before it masks, so the coordinator sees sums with their
    noise only. ``mechanism = "blt"``"""
    clip: float = Field(gt=0, le=RANGE, allow_inf_nan=False)
    """The most that one update counts, as an L2 norm: a longer one is scaled down. With ``adapt`` that of the first
    round. ``clip = 0.5``"""
    adapt: Target | None = Field(default=None, exclude_if=lambda section: section is None)
    """None: the clip is the same in all rounds. ``adapt = { lowest = 0.01, highest = 10.0 }``"""
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
        if self.adapt is not None and not self.adapt.lowest <= self.clip <= self.adapt.highest:
            raise ValueError(
                f"clip ({self.clip:g}) is that of the first round, and not from adapt.lowest ({self.adapt.lowest:g}) "
                f"to adapt.highest ({self.adapt.highest:g})"
            )
        return self

    @property
    def bounds_of_clip(self) -> tuple[float, float]:
        """Between what the clip adapts; zeros where it does not."""
        return (0.0, 0.0) if self.adapt is None else (self.adapt.lowest, self.adapt.highest)

    def clip_after(self, small: Small) -> float:
        """The clip of a round that begins with this small state."""
        return self.clip if self.adapt is None else float(small.get(CLIP, self.clip))

    def beta(self, plan: Plan) -> float:
        """The length of the bit in the sum, over ``clip``; 0 where the clip does not adapt."""
        return 0.0 if self.adapt is None else beta_of(self.multiplier(plan), plan.cohort.goal)

    def bit(self, plan: Plan) -> float:
        """What an update within the clip adds behind its values in a plain round, as a multiple of the sum's unit that
        a float32 holds: at most beta times ``clip``. 0 where the clip does not adapt."""
        whole = self.beta(plan) * self.clip * (1 - 2.0**-20) * 2**FRACTION_BITS
        return float(int(np.float32(whole)) / 2**FRACTION_BITS)

    def after(self, small: Small, within: float | None) -> Small:
        """What the small state says of the clip once a round that began with ``small`` has found the part ``within``
        the clip."""
        if self.adapt is None or within is None:
            return {}
        numbers = self.adapt.model_dump(include={"quantile", "rate", "lowest", "highest"})
        return {CLIP: next_clip(self.clip_after(small), within, **numbers), WITHIN: within}

    @property
    def correlated(self) -> bool:
        """Whether the noise of a round is made of that of rounds before too."""
        return self.mechanism in ("tree", "blt")

    def participations(self, plan: Plan) -> int:
        """In how many rounds of the run one device counts at most; under masks a round that fails after its list was
        shown is one of them."""
        if self.mechanism == "distributed":
            return plan.cohort.most_rounds or plan.finish.rounds
        return self.pattern(plan).most()

    def pattern(self, plan: Plan) -> Pattern:
        """In which committed rounds a device may count."""
        steps = plan.finish.rounds
        return Pattern(steps, plan.cohort.apart or 1, plan.cohort.most_rounds or steps)

    def strategy(self, plan: Plan) -> Strategy:
        """How the noise of rounds is correlated."""
        if not self.correlated:
            return Independent()
        return Tree() if self.mechanism == "tree" else buffers_for(self.pattern(plan))

    def multiplier(self, plan: Plan) -> float:
        """``noise``, also where the plan says ``epsilon`` instead."""
        return self._noise_for(plan) if self.noise is None else self.noise

    def _noise_for(self, plan: Plan) -> float:
        """The least noise with which a device stays within ``epsilon``."""
        return noise_for(self.epsilon or 0.0, self.delta, self._weight(plan) * self.participations(plan))

    def _weight(self, plan: Plan) -> float:
        """By how many rounds of independent noise one round counts."""
        return cost_of_a_step(self.strategy(plan), self.pattern(plan))

    def terms(self, plan: Plan) -> PrivacyTerms:
        """What devices are told."""
        return PrivacyTerms(
            noise=self.multiplier(plan) / math.sqrt(self._weight(plan)),
            most_rounds=self.participations(plan),
            apart=plan.cohort.apart or 1,
        )

    def deviation(self, plan: Plan) -> int:
        """Of the independent noise in a round's sum, in the sum's units, rounded up."""
        clip = Fraction(self.clip) * (1 << FRACTION_BITS) + (ROUNDING if self.mechanism == "blt" else 0)
        return math.ceil(Fraction(self.multiplier(plan)) * clip)

    def cost(self, plan: Plan) -> float:
        """The zCDP that one round costs each device that counts in it."""
        return rho_of(self.multiplier(plan), self._weight(plan))

    def ledger_of(self, run: str) -> str:
        """The name of the run's ledger. That of a run's own is no name that a plan can give."""
        return self.ledger or own_ledger(run)

    def rho(self, plan: Plan) -> float:
        """The zCDP of a device that takes part as often as the plan allows."""
        return rho_of(self.multiplier(plan), self._weight(plan) * self.participations(plan))

    def spent(self, plan: Plan) -> float:
        """The epsilon at ``delta`` of such a device."""
        return epsilon_of(self.rho(plan), self.delta)

    def said(self, plan: Plan, values: int | None) -> Iterator[str]:
        """What the noise is worth and what it costs, a sentence each. ``values``: of the model, where it is known."""
        times, noise = self.participations(plan), self.multiplier(plan)
        estimate = estimate_of(self.rho(plan), self.delta)
        yield (
            f"epsilon {self.spent(plan):.4g} at delta {self.delta:g} (zCDP {self.rho(plan):.4g}) for a device that "
            f"counts in all of its {times} rounds (an estimate, not proven: {estimate:.4g}); nothing is gained by "
            "chance in who takes part"
        )
        if plan.secure is not None:
            groups, goal = plan.secure.groups, plan.cohort.goal
            size = plan.secure.most_advertisers(plan.cohort) // groups
            honest = hidden_among(plan.secure.rule, size)
            all_of_it = noise * math.sqrt(goal / honest)
            where = f"each of the {groups} groups' sums" if groups > 1 else "a sum"
            yield (
                f"{honest} honest devices of {size} are surely in {where}, and give it noise {noise:.4g} x clip; all "
                f"{goal} give the round {all_of_it:.4g} x clip"
            )
            noise = all_of_it
        strategy, steps = self.strategy(plan), plan.finish.rounds
        spread = noise / plan.cohort.goal
        if self.adapt is not None:
            more = 1 / kappa_of(self.beta(plan))
            yield (
                f"the clip begins with {self.clip:g} and adapts from {self.adapt.lowest:g} to {self.adapt.highest:g}; "
                f"for its bit values have {more:.3g} times the noise that is said here"
            )
        how = f"noise {noise:.4g} x clip in a sum is {spread:.3g} x clip in each value of its mean"
        if self.correlated:
            last, alone = strategy.spread(steps)[-1], noise_for(self.spent(plan), self.delta, times) * math.sqrt(steps)
            yield (
                f"the sum of all {steps} rounds has noise of {noise * last:.4g} x clip; independent noise of the same "
                f"epsilon would be {alone:.4g} x clip"
            )
        if values is None:
            yield how
            return
        length = spread * math.sqrt(values)
        yield f"{how}, and {length:.3g} x clip over {values:,} values, where the mean update is at most clip long"

    def against(self, plan: Plan) -> Iterator[str]:
        aggregation, cohort = plan.aggregation, plan.cohort
        if self.mechanism == "blt" and plan.finish.rounds > MOST_STEPS:
            yield f'privacy.mechanism = "blt" takes finish.rounds of {MOST_STEPS:,} at most: lower it, or take "tree"'
            return  # everything else would look for its buffers
        if cohort.most_rounds is None:
            yield (
                "privacy needs cohort.most_rounds: in how many rounds one device may count decides how much noise "
                "a run takes"
            )
        elif self.noise is not None and self.epsilon is not None and self.spent(plan) > self.epsilon:
            takes = self._noise_for(plan)
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
        yield from self._against_masks(plan)
        for name in ("buffered", "strategy", "datacenter"):
            if getattr(plan, name) is not None:
                yield f"privacy with [{name}] is not accounted for: leave one of the two out"
        if plan.task.score_held_out:
            yield "privacy with task.score_held_out: scores are computed from data, without noise: leave it out"
        if cohort.choose not in SELECTIONS or cohort.asks_size or SELECTIONS[cohort.choose].reads:
            yield (
                f'privacy with cohort.choose = "{cohort.choose}" and min_examples = {cohort.min_examples}: who is '
                "drawn would depend on devices' data"
            )
        if cohort.most_rounds is not None and self.mechanism != "distributed":
            yield from self._against_size(plan)

    def _against_size(self, plan: Plan) -> Iterator[str]:
        """Whether sums and noise fit into their numbers."""
        strategy, steps, deviation = self.strategy(plan), plan.finish.rounds, self.deviation(plan)
        noise = _DEVIATIONS * deviation * strategy.largest(steps)
        if plan.cohort.goal * math.ceil(self.clip * 2**FRACTION_BITS) + noise > TOTAL_LIMIT:
            yield (
                f"privacy.clip ({self.clip:g}), its noise and cohort.goal ({plan.cohort.goal}) give sums beyond 2^31: "
                "lower clip"
            )
        elif isinstance(strategy, Buffers) and not strategy.is_exact(
            steps, _DEVIATIONS * deviation * float(strategy.spread(steps).max())
        ):
            yield (
                f"privacy.clip ({self.clip:g}), its noise and finish.rounds ({steps}) give sums that the buffers of "
                '"blt" cannot hold exactly: lower clip'
            )

    def against_model(self, plan: Plan, values: int) -> str | None:
        """Why a model with so many values is too large for the mechanism; None: it is not."""
        if self.mechanism != "blt" or plan.finish.rounds * values <= MOST_PLACES:
            return None
        return (
            f'privacy.mechanism = "blt" takes {MOST_PLACES:,} values times rounds at most, and these are '
            f'{values:,} times {plan.finish.rounds:,}: take "tree"'
        )

    def _against_masks(self, plan: Plan) -> Iterator[str]:
        secure = plan.secure
        if secure is None:
            if self.mechanism == "distributed":
                yield 'privacy.mechanism = "distributed" is noise that devices add before they mask: it needs [secure]'
        elif self.mechanism != "distributed":
            yield (
                "privacy with [secure] has noise that each device adds before it masks, or the coordinator would see "
                'sums without: set privacy.mechanism = "distributed"'
            )
        else:
            if self.clip != secure.max_norm:
                yield (
                    f"privacy.clip ({self.clip:g}) and secure.max_norm ({secure.max_norm:g}) are one bound, to which "
                    "devices scale their updates: set both alike"
                )
            if secure.q == 1:
                yield "privacy with secure.q = 1: a value of 0 has no integer of its own, so set q = 2 or more"

    def against_size(self, plan: Plan, values: int) -> str:
        """Why no secure round can have this noise in sums of so many values, in a sentence; else empty."""
        secure, terms = plan.secure, plan.terms
        if secure is None or terms is None:
            return ""
        most, fewest = secure.most_advertisers(plan.cohort), secure.fewest_advertisers(plan.cohort)
        try:
            used = terms.quantizer_of(())
            for size in {fewest // secure.groups, -(-most // secure.groups)}:
                used.lane_bits(size, size * share_of(used, secure.rule, values, size))
        except BadParameters as error:
            given = f"privacy.noise = {terms.noise:g} with secure.q = {secure.q}"
            return f"{given} and secure.max_abs = {secure.max_abs:g}: {error}"
        return ""
