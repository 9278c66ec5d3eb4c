"""The plan's section ``[aggregation]``: how the updates of a round become one step of the model.

It checks names, numbers and contradictions; ``registry`` has the rules and server optimizers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from operator import not_
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    WithJsonSchema,
    model_validator,
)

from client_sdk.tensors.exact_sum import RANGE
from coordinator.engine.aggregation.registry import RULES, SERVER_OPTIMIZERS, reason_against_weights, reasons_against
from coordinator.engine.plan_section import Section

if TYPE_CHECKING:
    from coordinator.engine.plan import Plan

UNIT = 1024
"""The most parts of a whole. Weight of whole work in an equal-weight plan that counts partial work by the fraction
done: resolution about 0.1 %."""
MOST_WEIGHT = 2**28
"""The most that a round may weigh in all. The exact sum holds sum_k w_k |x_k| < 2^31, so values up to 8 always fit."""
PARTS = 64
"""1/p is counted in so many parts, in plans with ``inverse_participation``."""


def _ranges(value: object) -> object:
    """A number, or a table of numbers, as it is; None for an empty table."""
    found = list(value.values()) if isinstance(value, dict) else [] if value is None else [value]
    for one in found:
        if isinstance(one, bool) or not isinstance(one, int | float) or not 0 < one <= RANGE:
            raise ValueError(
                f"should be a number above 0 and up to {RANGE:g}, or a table with one for each pattern of names"
            )
    return value or None


_A_RANGE = {"type": "number", "exclusiveMinimum": 0, "maximum": RANGE}
StatisticsRange = Annotated[
    float | dict[str, float] | None,
    BeforeValidator(_ranges),
    WithJsonSchema(
        {"anyOf": [_A_RANGE, {"type": "object", "additionalProperties": _A_RANGE}, {"type": "null"}], "default": None}
    ),
]
"""The bound on statistics: of all, or by shell patterns of their names."""


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


class Aggregation(Section):
    """How the updates of a round become one step of the model."""

    rule: str = Field(default="mean", max_length=200, json_schema_extra={"built_in": list(RULES)})
    """*mean*: the exact weighted mean, folded as updates arrive. *median*: coordinate-wise (Yin et al. 2018,
    arXiv:1803.01498), which withstands a minority of wrong updates; it reads all updates at the end and takes no
    weights. *trimmed-mean*: the mean of each coordinate without its extremes. *krum* (Blanchard et al. 2017,
    arXiv:1703.02757), *geometric-median* (RFA: Pillutla et al. 2022, arXiv:1912.13445) and *centered-clipping*
    (Karimireddy et al. 2021, arXiv:2012.10333) go by the distances of whole updates, and need 32 bytes of
    memory for each pair of them. These four, as the median, read all updates at the end and take no weights.
    ``package:name`` is a package's rule."""
    rule_version: str | None = Field(default=None, max_length=64)
    """Version of a package's rule: required for one, refused for those that are built in. A coordinator that has
    another one refuses the run."""
    rule_parameters: dict[str, float] = Field(default_factory=dict, max_length=64)
    """Numbers for the rule. *trimmed-mean*: ``fraction``, from 0 and below 0.5, of the values that are left out at each
    end. *krum*: ``wrong``, how many updates may be wrong, of 2 ``wrong`` + 3 or more; ``keep`` (1), of how many the
    mean is taken. *geometric-median*: ``iterations`` (32), ``smoothing`` (1e-6). *centered-clipping*: ``radius``, an L2
    norm, ``iterations`` (5), and ``remember`` (0: it begins with zero; 1: with the last round's aggregate, as in the
    paper). ``rule_parameters = { fraction = 0.1 }``"""
    weighting: Literal["examples", "equal"] | None = None
    """Weight of an update: the device's examples (FedAvg, McMahan et al. 2017), or one each. In secure rounds weights
    travel under masks, and the coordinator sees their total: by examples, sizes of single devices follow from several
    totals. Devices still say their size when they check in, but for those whose owners allow secure rounds only. None:
    *equal* in a plan with ``[secure]``, *examples* in any other."""
    weight_cap: int = Field(default=10_000, ge=1, le=2**20)
    """The most that one device weighs, in examples: sizes are self-reported."""
    partial: Literal["full", "examples_seen", "refuse"] = "full"
    """Work cut short by a device's time budget: counted with its full weight (FedProx, arXiv:1812.06127), with the
    fraction of its steps that were done (*examples_seen*; to 1/64 of an example or better, in a plan with the default
    cap and goal), or not at all. A run with secure rounds must *refuse* it: with a deadline of its own for each
    device, a coordinator could choose whose update is nearly all of the sum."""
    inverse_participation: int | None = Field(default=None, ge=2, le=64)
    """Weighs updates by 1/p as well, at most by so much: p is the part of a device's selections in which it counted,
    (counted + 1) / (selected + 1) over the run's committed rounds so far, so that slow devices are not outweighed by
    those that count more often. Integers in 1/64. A device that never counts stays unheard: its updates must sometimes
    come in time. Plain rounds only. None: not. See docs/selection.md."""
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The coordinator scales each update down to this L2 norm before adding it. Statistics, such as BatchNorm's running
    mean, are neither in the norm nor scaled. None: as it comes."""
    statistics_range: StatisticsRange = None
    """The most by which an update moves a value of a statistic: what is beyond is cut, and counted. One number, or one
    for each shell pattern of names, of which the smallest that matches holds:
    ``statistics_range = { "*running_mean" = 2.0, "*running_var" = 10.0 }``. None: as it comes, and in secure rounds
    65536."""
    server_optimizer: str = Field(
        default="average", max_length=200, json_schema_extra={"built_in": list(SERVER_OPTIMIZERS)}
    )
    """What is done with the mean. *average* adds it to the model, times the server's learning rate. *fedavgm*: with
    momentum (Hsu et al. 2019, arXiv:1909.06335). *fedadagrad*, *fedadam*, *fedyogi*: Reddi et al. 2021,
    arXiv:2003.00295. By layers, each of which moves in proportion to its norm: *lars* (You et al. 2017,
    arXiv:1708.03888) and *lamb* (You et al. 2020, arXiv:1904.00962). *radam*: Liu et al. 2020, arXiv:1908.03265, also
    by layers and with LookAhead (Zhang et al. 2019, arXiv:1907.08610). These three hold a few copies of the largest
    tensor in memory. Or a package's optimizer, by ``package:name``."""
    server_optimizer_version: str | None = Field(default=None, max_length=64)
    """Version of a package's server optimizer: required for one, refused for those that are built in."""
    server_optimizer_parameters: dict[str, float] = Field(default_factory=dict, max_length=64)
    """Numbers for the server optimizer. *fedavgm*: ``momentum`` (0.9), ``nesterov`` (0; 1 is Nesterov's).
    *fedadagrad*: ``beta1`` (0), ``tau`` (0.001).
    *fedadam*, *fedyogi*: ``beta1`` (0.9), ``beta2`` (0.99), ``tau`` (0.001). *lars*: ``momentum`` (0.9),
    ``trust_coefficient`` (0.001), ``weight_decay`` (0). *lamb*: ``beta1`` (0.9), ``beta2`` (0.99), ``eps`` (1e-6),
    ``weight_decay`` (0). *radam*: those of *lamb* (``eps`` 1e-8), and ``layerwise`` (0; 1 is LAMB's step by layers),
    ``lookahead`` (0, none: after how many rounds the slow weights move), ``lookahead_rate`` (0.5); RangerLARS is
    ``{ layerwise = 1, lookahead = 6 }``. ``server_optimizer_parameters = { tau = 0.01 }``"""
    server_learning_rate: float = Field(default=1.0, gt=0, le=1000, allow_inf_nan=False)
    """Step size on the server; 1 is plain FedAvg, and far too much for the adaptive optimizers, which move every
    coordinate by about this much, and for *lamb*, which moves each layer by this part of its norm."""

    step_bits: int | None = Field(default=None, ge=2, le=16, exclude_if=not_)
    """Bits of a value's step from one model to the next, rounded at random so that its expectation stays. A device that
    has the model of the round before then gets the next one in few bytes: with 8 bits a seventh of the model, with 6 a
    tenth. Parameters in float32 only; the noise of a round's step is 0.1 % of its squared norm with 8 bits, 3 % with 6.
    None: not rounded. See docs/rounds.md."""

    def weighs(self, *, secure: bool = False) -> Literal["examples", "equal"]:
        """What ``weighting`` is in plain rounds, or in ``secure`` ones, also where the plan does not say it."""
        return self.weighting or ("equal" if secure else "examples")

    @property
    def coarser(self) -> float:
        """By which factor ``step_bits`` lengthens a step: its noise is 3 % of the squared norm with 6 bits, and four
        times as much with each bit less (docs/rounds.md)."""
        return 1.0 if self.step_bits is None else math.sqrt(1 + 0.03 * 4.0 ** (6 - self.step_bits))

    def range_of(self, statistic: str) -> float | None:
        """The bound on the values of the statistic of this name; None: there is none."""
        if not isinstance(self.statistics_range, dict):
            return self.statistics_range
        found = [most for pattern, most in self.statistics_range.items() if _matches(statistic, pattern)]
        return min(found, default=None)

    def unmatched_ranges(self, statistics: Collection[str]) -> Iterator[str]:
        """The patterns of ``statistics_range`` that match none of these names."""
        patterns = self.statistics_range if isinstance(self.statistics_range, dict) else {}
        return (one for one in patterns if not any(_matches(statistic, one) for statistic in statistics))

    @model_validator(mode="after")
    def _consistent(self) -> Aggregation:
        against = list(reasons_against(self))
        if against:
            raise ValueError("; ".join(against))
        return self

    def against(self, plan: Plan) -> Iterator[str]:
        goal, weighs = plan.cohort.goal, plan.heaviest
        if self.rule in RULES and self.weighting is None:
            reason = reason_against_weights(self, RULES[self.rule], plan.weighting)
            if reason is not None:
                yield f"aggregation: {reason}"
        if plan.weighting == "examples" and self.weight_cap * goal > MOST_WEIGHT:
            yield (
                f"aggregation.weight_cap ({self.weight_cap}) times cohort.goal ({goal}) "
                f"is above {MOST_WEIGHT}, where the exact sum could not hold values above 8: lower weight_cap"
            )
        elif self.inverse_participation is not None and weighs * goal > MOST_WEIGHT:
            yield (
                f"with aggregation.inverse_participation ({self.inverse_participation}) an update may "
                f"weigh {weighs}, and cohort.goal ({goal}) of them more than {MOST_WEIGHT}, in 1/64: "
                "lower it, weight_cap or goal"
            )


# ------------------------------------------------------------ weights
# The weight of an update in plain rounds: an integer, since the exact sum adds integers. (In secure rounds devices
# weigh, by ``SecureTask.weighting``.)
#
# FedAvg weighs a device by its examples n_k (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1). Sizes are
# self-reported, so they are capped. A plan that counts partial work by the examples seen weighs it by a fraction of an
# example, so it counts in parts of an example: ``unit_of`` says how many parts there are. Only the ratios of weights
# matter, so the unit is in no result.
#
# The unit is a power of two up to 1,024 with which ``goal`` updates of the heaviest weight stay within 2^28 (64 for the
# defaults), so such a plan takes smaller values. Flooring to whole examples cost up to half the weight of a device with
# few examples. A common denominator of all steps is known only after the last report, and the fold adds updates as they
# arrive. A run keeps its unit, in ``Created``, since its acknowledged weights are in it. No device sends a weight: it
# could claim any.


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
