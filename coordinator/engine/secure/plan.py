"""The plan's section ``[secure]``: the parameters of secure aggregation, and their conditions on the rest of the plan.

A plan with this section::

    [secure]
    profile = "strict"          # or "fast", with drop
    max_norm = 1.0
    max_abs = 0.25

There is no field for the adversary, nor for the threshold: it follows from the profile, and a rule whose threshold is
not above half of the share holders is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import (
    Field,
    model_validator,
)

from client_sdk.codecs import linear_names
from client_sdk.protocol.names import SIGNATURE_PATTERN, copied
from client_sdk.secagg.errors import BadParameters
from client_sdk.secagg.header import MOST_GROUPS, GraphRule, Terms, hidden_among, withstood
from client_sdk.secagg.lanes import lane_bits
from client_sdk.secagg.parameters import LARGEST, SMALLEST, STRICT_LIMIT, colluding_of_all
from client_sdk.secagg.quantize import LARGEST_BOUND, SMALLEST_BOUND, WEIGHT_LIMIT, Quantizer
from client_sdk.tensors.exact_sum import RANGE
from coordinator.engine.aggregation.optimizers import NO_BOUND, Reach
from coordinator.engine.aggregation.registry import RULES
from coordinator.engine.plan_section import Section

if TYPE_CHECKING:
    from coordinator.engine.aggregation.section import Aggregation
    from coordinator.engine.plan import Cohort, Plan

EXCHANGES = 4
"""Exchanges that follow the advertisements, each with a deadline of its own."""


_MILLION = 1_000_000
LEAST_MARGIN = 50
"""Of a roster, in thousandths."""
SIGMA = 80
"""Bits of secrecy, where a plan does not say them."""
Q_MOST = 24
FEWEST_BITS = 5.25
"""With fewer bits of a value in the mean, by a weight cap far above what devices weigh, no run begins: with the default
cap, six devices of 32 examples and q = 12, which are 5.0, rounding was as large as the step."""
ENOUGH_BITS = 7.5
"""With fewer it is said: with q = 15 there, which are 8.0, it was a third of the step."""
FAR_ABOVE = 4
"""A cap this many times what devices weigh is far above it. A lower one is what somebody chose."""
_FAST_ONLY = ("drop", "corrupt", "sigma", "eta")


def _unsaid(value: object) -> bool:
    return value is None


_FOLLOWS = {
    "threshold": "it follows from the profile and the roster's size: leave it out",
    "neighbours": "it follows from the profile and the roster's size: leave it out",
    "adversary": "rounds are always secure against a malicious coordinator: leave it out",
}


class Secure(Section):
    """How rounds are aggregated so that the coordinator sees their sum and nothing else.

    A plan without this section has plain rounds."""

    profile: Literal["strict", "fast"] = "strict"
    """*strict*: at most 300 devices, each masks with all others, 2n/3 shares rebuild a secret. *fast*: each has a few
    neighbours, computed from the four numbers below."""
    drop: int | None = Field(default=None, ge=0, le=LARGEST)
    """*fast*: how many devices may vanish between the roster and the sum. Required there."""
    corrupt: float | None = Field(default=None, ge=0, lt=1, allow_inf_nan=False)
    """*fast*: the fraction of devices that may collude with the coordinator, in whole millionths. None: 0.1."""
    sigma: int | None = Field(default=None, ge=1, le=128)
    """*fast*: bits of secrecy. None: 80, the fewest that devices accept by default."""
    eta: int | None = Field(default=None, ge=1, le=128)
    """*fast*: bits of correctness. None: 40."""
    q: int = Field(default=16, ge=1, le=Q_MOST)
    """Bits of a quantized value. Below 8 only after a rotation (``task.codec = "rotated@1"``, or one of
    ``sampled-...-rotated@1``), which spreads large coordinates."""
    max_norm: float = Field(gt=0, allow_inf_nan=False)
    """The device scales its update down to this L2 norm. Devices refuse less than their owner's policy allows (0.1)."""
    max_abs: float = Field(gt=0, allow_inf_nan=False)
    """Then it cuts each coordinate of the encoded update to this range: [-max_abs, max_abs]. With a rotating codec
    these are rotated coordinates, mostly below 4 max_norm / sqrt(values sent), hardly ever above
    5 max_norm / 256 where there are 65536 values or more."""
    weight_cap: int | None = Field(default=None, ge=1, le=WEIGHT_LIMIT)
    """The most that one device weighs where ``aggregation.weighting = "examples"``; refused with equal weights. None:
    what it weighs at most by ``[aggregation]``. With small q it should be
    near what devices usually weigh: a device adds as much rounding as one at the cap, whatever it weighs. A run is
    refused where rounding would be larger than what is learned for that."""
    minimum_cohort: int = Field(default=64, ge=SMALLEST, le=LARGEST)
    """Fewest devices in a group of the roster and in its sum. Devices refuse fewer than their owner's policy allows
    (64)."""
    groups: int = Field(default=1, ge=1, le=MOST_GROUPS)
    """Into how many groups the devices of a round are divided at random, each with masks, a list and a sum of its own.
    A device masks with its group alone; a group that fails or whose sum is impossible costs that group, and the round
    goes on with the others, while they are more than half of the groups and have ``cohort.quorum`` devices. With 3 or
    more, a quorum that cannot spare one is refused; of 2 none can be lost. The groups' means go through
    ``aggregation.rule``: a median or trimmed mean of them survives groups with a wrong sum. A device hides in its group
    alone, and fewer colluders are withstood: ``quorate plan check`` says how many."""
    reserve: int | None = Field(default=None, ge=0, le=LARGEST)
    """Devices above ``cohort.goal`` that still come into the roster, so that some may vanish. None: a twentieth of the
    goal, at least one, but no more than half of those that ``cohort.select`` has above the goal, so that a round need
    not wait for all of them, and no more than the profile's largest roster allows."""
    margin: int | None = Field(default=None, ge=0, le=LARGEST, exclude_if=_unsaid)
    """Devices that may vanish between the list of survivors and the sum: the list is shown only when so many more have
    masked than must sign it; else a fresh attempt begins, without a signature. Of several groups each has it, and one
    that lacks it falls where the others are enough. None: what the last five lists lost, at
    least 5 % and one device. Never above half of those that need not sign (a third of the roster, in *fast* rounds
    ``drop``), and half as much after each attempt that failed for want of it."""
    exchange_s: float = Field(default=60.0, gt=0, le=86_400, allow_inf_nan=False)
    """Seconds that each exchange lasts at most, from its beginning. Devices advertise again no sooner than
    10 s after the last time, by their policy."""
    quiet_s: float | None = Field(default=None, gt=0, le=86_400, allow_inf_nan=False)
    """Seconds after which the second and third exchange go on without the devices that are missing, where enough have
    sent their message and no other one came for so long. None: a quarter of ``exchange_s``. As long as
    ``exchange_s``: they wait for all."""
    attempts: int = Field(default=3, ge=1, le=8)
    """The most attempts in a round, each with new keys; 1: no second attempt."""
    expires_s: float = Field(default=3600.0, gt=0, le=86_400 * 6, allow_inf_nan=False)
    """Seconds from an attempt's header until no device signs or reveals anything for it any more."""
    barred_rounds: int = Field(default=10, ge=1, le=1_000_000)
    """Rounds for which a device is barred from the run, after the one in which it was proven to have shared secrets
    that nobody can rebuild. An owner can lift it sooner: ``quorate run unbar``."""
    first_seed: int | None = Field(default=None, ge=0, lt=2**63, exclude_if=_unsaid)
    """The first model is the learner's ``initial`` of this seed: devices that have the learner make it themselves, and
    take no run of another model. ``quorate run create`` sets it where it makes the model. None: it is not said."""
    first_signature: str | None = Field(default=None, pattern=SIGNATURE_PATTERN, exclude_if=_unsaid)
    """The signature of the authority, or of a key that devices' owners trust, under the first model:
    ``quorate authority sign`` makes it. A run from a file (``--init``) needs it, unless owners allow any model. None:
    there is none."""

    @model_validator(mode="before")
    @classmethod
    def _nothing_that_follows(cls, data: Any) -> Any:
        for name in _FOLLOWS.keys() & set(data if isinstance(data, dict) else ()):
            raise ValueError(f"{name}: {_FOLLOWS[name]}")
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Secure:
        given = [name for name in _FAST_ONLY if getattr(self, name) is not None]
        if self.profile == "strict" and given:
            raise ValueError(f'{", ".join(given)}: only profile = "fast" takes these; strict has numbers of its own')
        if self.profile == "fast" and self.drop is None:
            raise ValueError('profile = "fast" needs drop: how many devices may vanish')
        if self.corrupt is not None and abs(self.corrupt * _MILLION - round(self.corrupt * _MILLION)) > 1e-6:
            raise ValueError(
                f"corrupt ({self.corrupt!r}) is not a whole number of millionths: devices compute in exact integers"
            )
        for name, bound in (("max_norm", self.max_norm), ("max_abs", self.max_abs)):
            if not SMALLEST_BOUND <= bound <= LARGEST_BOUND:
                raise ValueError(f"{name} ({bound:g}) is not from {SMALLEST_BOUND:g} to {LARGEST_BOUND:g}")
        if self.quiet_s is not None and self.quiet_s > self.exchange_s:
            raise ValueError(f"quiet_s ({self.quiet_s:g}) is above exchange_s ({self.exchange_s:g}): set less")
        return self

    @property
    def rule(self) -> GraphRule:
        """The header's rule that gives neighbours and threshold for a roster's size."""
        if self.profile == "strict":
            return GraphRule(profile="strict")
        return GraphRule(
            profile="fast",
            drop=self.drop or 0,
            corrupt_millionths=round(_MILLION * (0.1 if self.corrupt is None else self.corrupt)),
            sigma=SIGMA if self.sigma is None else self.sigma,
            eta=40 if self.eta is None else self.eta,
        )

    def cap(self, aggregation: Aggregation) -> int:
        """The most that one device weighs: the header's weight cap."""
        return self.weight_cap if self.weight_cap is not None else _heaviest(aggregation)

    def terms(
        self,
        aggregation: Aggregation,
        statistics: Iterable[str] = (),
        reach: Reach = NO_BOUND,
        noise: float = 0.0,
        divisor: int = 0,
        clips: tuple[float, float] = (0.0, 0.0),
    ) -> Terms:
        """The plan's terms in every header of the run, for which devices' owners set bounds. ``statistics``: the names
        of those that are averaged; ``reach``: how far a round moves the model; ``noise``, ``divisor``: of a plan with
        ``[privacy]``; ``clips``: the bounds of a clip that adapts."""
        return copied(
            Terms,
            self,
            weight_cap=self.cap(aggregation),
            noise=noise,
            divisor=divisor,
            lowest=clips[0],
            highest=clips[1],
            statistics=tuple(aggregation.range_of(name) or RANGE for name in sorted(statistics)),
            move=reach.norm,
            move_each=reach.each,
        )

    def fewest_advertisers(self, cohort: Cohort) -> int:
        """The smallest roster with which a round goes on."""
        return max(cohort.quorum_count, self.minimum_cohort * self.groups)

    def reserved(self, cohort: Cohort) -> int:
        """How many devices ``reserve`` is."""
        if self.reserve is not None:
            return self.reserve
        goal = cohort.goal
        return max(0, min(max(1, goal // 20), (cohort.select - goal) // 2, self.largest_roster - goal))

    @property
    def fewest_groups(self) -> int:
        """With how many groups a round can be committed, at least."""
        return self.groups // 2 + 1

    def most_advertisers(self, cohort: Cohort) -> int:
        """The largest roster: it is closed as soon as this many have advertised."""
        return cohort.goal + self.reserved(cohort)

    def margin_of(self, n: int, signers: int, share: int = LEAST_MARGIN) -> int:
        """How many devices ``margin`` is, in a group of ``n`` of whom ``signers`` must sign. ``share``: thousandths of
        the roster, where the plan does not say it."""
        wanted = max(1, -(-n * share // 1000)) if self.margin is None else self.margin
        return min(wanted, (n - signers) // 2)

    def first_margin(self, cohort: Cohort) -> int:
        """That of a run's first list of a group, where the roster is the largest one."""
        most = self.most_advertisers(cohort) // self.groups
        return self.margin_of(most, self.rule.parameters(most).signers)

    @property
    def quiet(self) -> float:
        """How many seconds ``quiet_s`` is."""
        return self.exchange_s / 4 if self.quiet_s is None else self.quiet_s

    @property
    def largest_roster(self) -> int:
        """The most devices that the profile takes, in all groups."""
        return min(LARGEST, self.groups * STRICT_LIMIT) if self.profile == "strict" else LARGEST

    def said_of_sizes(self, plan: Plan) -> Iterator[str]:
        """What such rounds tell of how many examples single devices have, a sentence each."""
        cohort = plan.cohort
        if plan.weighting == "examples":
            yield (
                "each round's total weight can be computed from its model, and sizes of single devices follow from "
                'several of these, with who is in each: aggregation.weighting = "equal" tells none.'
            )
        if cohort.asks_size:
            field = f"min_examples = {cohort.min_examples}" if cohort.min_examples > 1 else f"choose = {cohort.choose}"
            yield (
                f"cohort.{field} goes by how many examples each device says it has, and leaves out devices whose data "
                "goes in clear for no learner, as after their first secure round: they say none."
            )

    def said_of_first(self) -> str:
        """A sentence where the plan does not say where the run's first model comes from; else empty."""
        if self.first_seed is not None or self.first_signature is not None:
            return ""
        return (
            "devices that have the learner take no first model from a file that nobody whom they trust has signed: "
            "quorate authority sign FILE, then --set secure.first_signature=SIGNATURE, or owners start devices with "
            "--origins any."
        )

    def said_of_groups(self, plan: Plan, withstands: int) -> Iterator[str]:
        """What rosters of the plan's largest size withstand with these and with other numbers of groups, a sentence
        each. ``withstands``: how many wrong groups the rule does."""
        n, sigma = self.most_advertisers(plan.cohort), self.rule.sigma or SIGMA
        for groups in sorted({1, self.groups}):
            sizes = sorted({n // groups, -(-n // groups)})
            try:
                within = min(withstood(self.rule, size) for size in sizes)
                hides = min(hidden_among(self.rule, size) for size in sizes)
            except BadParameters:
                continue
            wrong = withstands if groups == self.groups else 0
            lost = "costs that group" if groups > groups // 2 + 1 else "costs the round"
            most = ", since most groups must stand" if groups == 2 else ""
            yield (
                f"{groups} x {' or '.join(map(str, sizes))} withstands {colluding_of_all(n, groups, within, sigma)} "
                f"of {n} colluding at {sigma} bits, a device hides among {hides}; lying groups that the rule survives: "
                f"{wrong}; a bad sum {lost}{most}."
            )

    def against(self, plan: Plan) -> Iterator[str]:
        task, cohort, aggregation = plan.task, plan.cohort, plan.aggregation
        of_all = f"in each of {self.groups} groups " if self.groups > 1 else ""
        most, fewest = self.most_advertisers(cohort), self.fewest_advertisers(cohort)
        if most > cohort.select:
            yield (
                f"secure.reserve ({self.reserve}) and cohort.goal ({cohort.goal}) together are above cohort.select "
                f"({cohort.select}): so many could never advertise"
            )
        if fewest > most:
            yield (
                f"secure.minimum_cohort ({self.minimum_cohort}) {of_all}is above cohort.goal and secure.reserve "
                f"together ({most}): a round could never have as many"
            )
        else:
            yield from _sizes(self, fewest, most)
            yield from _spares_no_group(self, cohort)
        heaviest, example_cap = _heaviest(aggregation), type(aggregation).model_fields["weight_cap"].default
        if plan.weighting == "equal" and self.weight_cap is not None:
            yield _weighs_nothing("secure.weight_cap", self.weight_cap)
        elif aggregation.weighting is None and aggregation.weight_cap != example_cap:
            yield _weighs_nothing("aggregation.weight_cap", aggregation.weight_cap)
        elif self.weight_cap is not None and self.weight_cap > heaviest:
            yield (
                f"secure.weight_cap ({self.weight_cap}) is above what a device may weigh by [aggregation] "
                f"({heaviest}): lanes would be left empty; leave it out"
            )
        if task.codec not in linear_names():
            linear = ", ".join(linear_names())
            yield f"task.codec ({task.codec}) cannot be added under masks: a secure plan takes {linear}"
        if self.groups == 1 and aggregation.rule in RULES and RULES[aggregation.rule].needs != "sum":
            yield needs_single_updates(aggregation)
        if aggregation.clip_norm is not None:
            yield "aggregation.clip_norm is the coordinator's clip, and it sees no update: set secure.max_norm instead"
        if aggregation.inverse_participation is not None:
            yield "aggregation.inverse_participation weighs single updates, and nobody sees one: leave it out"
        if aggregation.partial == "examples_seen":
            yield (
                'aggregation.partial = "examples_seen" needs the work of each, which nobody sees: '
                'set partial = "refuse"'
            )
        if task.score_held_out:
            yield "task.score_held_out = true would reveal each device's scores: leave it out of a secure plan"
        if plan.retention.rounds:
            yield "retention.rounds keeps raw updates, and a secure round has none: leave it out"
        if self.expires_s < cohort.collect_s + EXCHANGES * self.exchange_s:
            yield (
                f"secure.expires_s ({self.expires_s:g}) is below cohort.collect_s and {EXCHANGES} times "
                f"secure.exchange_s together ({cohort.collect_s + EXCHANGES * self.exchange_s:g}): "
                "an attempt would expire under way"
            )


def quantizer(secure: Secure, aggregation: Aggregation) -> Quantizer:
    """Of the plan's rounds."""
    return Quantizer(q=secure.q, max_norm=secure.max_norm, max_abs=secure.max_abs, weight_cap=secure.cap(aggregation))


def said_of_bits(
    secure: Secure, aggregation: Aggregation, usual: float, survivors: int, enough: float = ENOUGH_BITS
) -> str:
    """A sentence with advice where a weight cap far above what devices weigh (``usual``) leaves a value in the mean of
    so many fewer bits than ``enough``; empty where it does not."""
    cap, found = secure.cap(aggregation), quantizer(secure, aggregation).bits_used(usual, survivors)
    if found >= enough or cap < FAR_ABOVE * usual:
        return ""
    advised, several = max(1, math.ceil(usual)), math.ceil(secure.q + ENOUGH_BITS - found)
    more = f", or q = {several}" if several <= Q_MOST else ""
    how = "more than what they send" if found < FEWEST_BITS else "a large part of what is committed"
    return (
        f"q = {secure.q} with weight_cap = {cap:,}: where {survivors} devices weigh about {usual:,.0f}, their mean has "
        f"{max(0.0, found):.1f} bits, and rounding is {how}. Set secure.weight_cap to what devices usually weigh, such "
        f"as {advised}{more}"
    )


def cannot_learn(secure: Secure, aggregation: Aggregation, dimension: int, survivors: int) -> str:
    """Why no update of so many values can be told from rounding, also where each device weighs its cap; else empty."""
    found = quantizer(secure, aggregation).rounding_error(dimension, survivors, secure.cap(aggregation))
    if found < 1:
        return ""
    return (
        f"q = {secure.q} with max_abs = {secure.max_abs:g} rounds a mean of {dimension:,} values by {found:.1f} times "
        f"max_norm ({secure.max_norm:g}), so no update can be told from it: raise q, or lower max_abs "
        f"(4 max_norm / sqrt(values) is {4 * secure.max_norm / math.sqrt(dimension):.2g})"
    )


def takes_partial_work(aggregation: Aggregation) -> str:
    """Why no run has this secure plan; empty where it refuses work that a deadline has cut short."""
    if aggregation.partial == "refuse":
        return ""
    return (
        f'partial = "{aggregation.partial}" counts work that a deadline has cut short, and devices mask none in secure '
        'rounds: set aggregation.partial = "refuse"'
    )


def needs_single_updates(aggregation: Aggregation) -> str:
    """Why a secure plan cannot have a rule that needs more than the sum. For a package's rule this is known only where
    the package is installed."""
    return (
        f'aggregation.rule ({aggregation.rule}) needs single updates, which nobody sees: set rule = "mean", or '
        "secure.groups, whose means it then looks at"
    )


def _sizes(secure: Secure, fewest: int, most: int) -> Iterator[str]:
    """The reasons against rosters of these sizes. It is enough to check the smallest and the largest: n - drop grows
    with n faster than the number of signatures that are needed."""
    if most > secure.largest_roster:
        yield (
            f'secure.profile = "{secure.profile}" takes at most {secure.largest_roster} devices; '
            f"cohort.goal and secure.reserve together are {most}"
        )
        return
    for size in sorted({fewest // secure.groups, -(-most // secure.groups)}):
        try:
            parameters = secure.rule.parameters(size)
            lane_bits(size, secure.q)
        except BadParameters as error:
            what = "a group" if secure.groups > 1 else "a roster"
            yield f"secure.profile: {what} of {size} devices is possible, and {error}"
            return
        if 2 * parameters.threshold <= parameters.holders:
            yield (
                f"secure.profile: with {size} devices the threshold {parameters.threshold} is not above half of the "
                f"{parameters.holders} share holders"
            )
            return


def _spares_no_group(secure: Secure, cohort: Cohort) -> Iterator[str]:
    """The reason against a quorum that the loss of one group would miss, where most groups would still stand."""
    largest = -(-cohort.goal // secure.groups)
    left = cohort.goal - largest
    if secure.fewest_groups < secure.groups and cohort.quorum_count > left:
        yield (
            f"cohort.quorum ({cohort.quorum:g}) counts {cohort.quorum_count} of {cohort.goal} devices, and {left} are "
            f"left without one of secure.groups ({secure.groups}): one bad sum would cost the round; set "
            f"cohort.quorum = {100 * left // cohort.goal / 100:g} or less"
        )


def _weighs_nothing(field: str, cap: int) -> str:
    return (
        f"{field} ({cap}) bounds weights by examples, and devices of a secure plan weigh the same where it does not "
        'say otherwise: leave it out, or set aggregation.weighting = "examples"'
    )


def _heaviest(aggregation: Aggregation) -> int:
    return aggregation.weight_cap if aggregation.weighs(secure=True) == "examples" else 1
