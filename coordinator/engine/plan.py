"""The Plan of a run, frozen and checked before anything starts.

It checks which values are valid, alone and together.
A plan is written as TOML::

    name = "mnist"

    [task]                      # the device's part, see client_sdk.protocol.devices.Task
    learner = "quorate:mnist-mlp"
    epochs = 1
    batch_size = 10
    learning_rate = 0.1

    [cohort]
    select = 300
    goal = 256

    [finish]
    rounds = 20

Every field that is left out has the default written here. An unknown field is an error: it was meant to do something.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from operator import not_
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from client_sdk.protocol.devices import PrivacyTerms, Task
from client_sdk.protocol.names import NAME_PATTERN, PLAN_PATTERN, DeviceId, MetricName, message_of
from client_sdk.protocol.operators import Kind
from client_sdk.protocol.wire import canonical, named
from client_sdk.protocol.workers import DatacenterTask
from client_sdk.secagg.header import Terms
from coordinator.engine.aggregation.optimizers import NO_BOUND, Reach
from coordinator.engine.aggregation.parameters import ExtensionError, Settings
from coordinator.engine.aggregation.registry import (
    BUILT_IN,
    RULES,
    Chosen,
    Registry,
    choose,
    choose_selection,
    choose_strategy,
    reach_of,
    reason_against_selection,
)
from coordinator.engine.aggregation.section import Aggregation, heaviest, unit_of
from coordinator.engine.aggregation.strategy import Algorithm, Strategy, StrategySection, why_not
from coordinator.engine.buffered import WHOLE, Buffered
from coordinator.engine.plan_file import LONGEST, MOST, Mistake, PlanError, PlanFile, elsewhere, fields_of
from coordinator.engine.plan_section import Section
from coordinator.engine.privacy import Privacy
from coordinator.engine.schedule import Schedule
from coordinator.engine.secure import plan as secure_plan
from coordinator.engine.secure.plan import Secure
from coordinator.engine.selection import SELECTIONS, Choice

_BATCH = 32
"""Examples that a device has at least, where nothing is known of it."""


class Cohort(Section):
    """Who takes part in a round, and how long they have."""

    select: int = Field(default=300, ge=1, le=100_000)
    """Devices selected for a round, more than needed since some vanish. ``select = 300``"""
    goal: int = Field(default=256, ge=1, le=100_000)
    """Reports at which a round closes at once; at most ``select``. ``goal = 256``"""
    quorum: float = Field(default=0.85, gt=0, le=1)
    """The fraction of ``goal`` that still makes a round when the time is up; 0.85 of 256 is 218 reports.

    Fewer: abandoned.
    """
    pool: int | None = Field(default=None, ge=1, le=10_000_000)
    """Waiting devices at which selection stops waiting for more; at least ``select``. A pool larger than ``select``
    keeps the fastest to check in from always being selected. None: ``select``."""
    select_s: float = Field(default=60.0, gt=0, le=86_400 * 7, allow_inf_nan=False)
    """Seconds after which the cohort is drawn from the devices that wait, pool full or not."""
    collect_s: float = Field(default=600.0, gt=0, le=86_400 * 7, allow_inf_nan=False)
    """Seconds from selection to the deadline for reports."""
    choose: str = Field(default="uniform", max_length=200, json_schema_extra={"built_in": list(SELECTIONS)})
    """*uniform*: each waiting device alike. The others need ``pool`` above ``select``, or every waiting device is
    drawn. *by_examples*: proportional to the examples it holds, without replacement. It needs ``aggregation.weighting =
    "equal"``, or large devices count twice. The coordinator then knows the devices' sizes, in secure rounds too.
    *power-of-choice* (Cho et al. 2020, arXiv:2010.01243): candidates are drawn as by *by_examples*, and those of
    them with the highest last loss are taken. *oort* (Lai et al. 2021, arXiv:2010.06081): devices with high losses
    that are fast, and some new ones. *cyclic*: each device in turn. *fixed*: the same devices in each round.
    *poisson*: each device by itself, so that the size of cohorts varies. Or a package's selection, by
    ``package:name``. See docs/selection.md."""
    choose_version: str | None = Field(default=None, max_length=64)
    """Version of a package's selection: required for one, refused for those that are built in."""
    choose_parameters: dict[str, float] = Field(default_factory=dict, max_length=64)
    """Numbers for the selection. *power-of-choice*: ``factor`` (2), candidates for each place. *oort*: ``explore``
    (0.9), ``decay`` (0.98), ``least`` (0.2), ``preferred`` (0.3), ``alpha`` (2), ``cutoff`` (0.95), ``pace``
    (0), ``window`` (20).
    ``choose_parameters = { factor = 3 }``"""
    devices: tuple[DeviceId, ...] = Field(default=(), max_length=10_000, exclude_if=not_)
    """Ids of the devices that take part, as ``quorate devices`` lists them; others are not eligible. With ``choose =
    "fixed"`` and as many in ``select`` a round draws all of them that wait, and ``pool`` may be left out. Empty: all
    devices. ``devices = ["d1", "d2", "d3"]``"""
    most_rounds: int | None = Field(default=None, ge=1, le=10_000_000, exclude_if=lambda most: most is None)
    """In how many committed rounds of the run one device's update may count; then it is drawn no more. None: in any
    number. ``most_rounds = 10``"""
    apart: int | None = Field(default=None, ge=1, le=10_000_000, exclude_if=lambda apart: apart is None)
    """After a committed round in which a device's update counts, it is drawn for none of the next rounds up to this
    many committed ones later: with 1 it may count in successive rounds. None: the same. ``apart = 5``"""
    min_examples: int = Field(default=1, ge=1)
    """Devices with fewer examples are not eligible. Above 1, the coordinator knows the devices' sizes in secure rounds
    too, and devices whose data goes in clear for no learner, as after their first secure round, are not eligible: they
    tell no size."""

    @property
    def quorum_count(self) -> int:
        """The fewest reports that make a round: at least one, and what floating point adds to a whole number is not
        counted.
        """
        return max(1, math.ceil(self.quorum * self.goal - 1e-9))

    @property
    def pool_count(self) -> int:
        return self.pool or self.select

    @property
    def chosen_already(self) -> bool:
        """Whether the plan itself says whom each round draws, so that who waits may be all whom it draws."""
        return bool(self.devices) and self.choose == "fixed"

    @property
    def remembers(self) -> bool:
        """Whether a run keeps what it knows of single devices: the selection may read it."""
        return self.choose not in SELECTIONS or bool(SELECTIONS[self.choose].reads)

    @property
    def asks_size(self) -> bool:
        """Whether devices must say their size although the weights do not need it: the selection may go by it."""
        return self.choose not in SELECTIONS or SELECTIONS[self.choose].proportional or self.min_examples > 1

    @model_validator(mode="after")
    def _consistent(self) -> Cohort:
        if reason := reason_against_selection(self):
            raise ValueError(reason)
        if self.goal > self.select:
            raise ValueError(f"goal ({self.goal}) is above select ({self.select}): a round could never reach it")
        if len(set(self.devices)) < len(self.devices):
            raise ValueError("devices names one twice")
        if self.devices and len(self.devices) < self.quorum_count:
            raise ValueError(f"devices names {len(self.devices)}, and a round needs {self.quorum_count} reports")
        if self.pool is not None and self.pool < self.select:
            raise ValueError(
                f"pool ({self.pool}) is below select ({self.select}): there would be too few to select from"
            )
        return self

    def against(self, plan: Plan) -> Iterator[str]:
        proportional = self.choose in SELECTIONS and SELECTIONS[self.choose].proportional
        if proportional and plan.weighting == "examples":
            yield (
                f'choose = "{self.choose}" with weighting = "examples" counts the size of a device twice: '
                'set weighting = "equal"'
            )
        budget = plan.task.time_budget_s
        if budget is not None and budget > self.collect_s:
            yield (
                f"task.time_budget_s ({budget:g}) is above cohort.collect_s ({self.collect_s:g}): "
                "reports would come after the deadline"
            )


class Finish(Section):
    """When a run is done: whichever comes first."""

    rounds: int = Field(default=100, ge=1, le=10_000_000)
    """Committed rounds."""
    metric: MetricName | None = None
    """Name of the metric that ``target`` and ``patience`` look at, for example ``accuracy``."""
    source: str = Field(default="evaluator", pattern=NAME_PATTERN)
    """Whose scores count: those that an evaluator reports under this name, or ``devices`` for their held-out data."""
    better: Literal["higher", "lower"] = "higher"
    """Which way the metric improves."""
    target: float | None = Field(default=None, allow_inf_nan=False)
    """The run is finished once the metric is at least this good."""
    patience: int | None = Field(default=None, ge=1)
    """Early stop: scored checkpoints in a row without an improvement by more than ``min_delta``."""
    min_delta: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """How much better a score must be to count as an improvement, in the metric's own unit."""
    abandoned: int | None = Field(default=None, ge=1, le=1_000_000)
    """After so many abandoned rounds in a row the run is paused, with the reason of the last one; not before it has
    fallen back to the datacenter, where the plan says so. At least ``datacenter.patience``. None: it goes on."""

    @model_validator(mode="after")
    def _consistent(self) -> Finish:
        if self.metric is None and (self.target is not None or self.patience is not None):
            raise ValueError('target and patience need a metric to look at, for example metric = "accuracy"')
        if self.metric is not None and self.target is None and self.patience is None:
            raise ValueError("a metric alone never ends a run: set target, patience or both")
        return self

    def against(self, plan: Plan) -> Iterator[str]:
        if self.source == "devices" and self.metric is not None and not plan.task.score_held_out:
            yield 'finish.source = "devices" needs task.score_held_out = true: else no device reports a score'


class Retention(Section):
    """How long the raw updates of plain rounds are retained after their round."""

    rounds: int = Field(default=0, ge=0, le=1_000_000)
    """Rounds for which raw updates are retained, for audits to fold again. 0: deleted once the round has ended."""


class Datacenter(DatacenterTask, Section):
    """When a round is given to a worker in a datacenter rather than to devices, and what the worker does.

    A plan without this section never does so."""

    patience: int | None = Field(default=None, ge=1, le=1_000_000)
    """After so many abandoned rounds in a row the run falls back: its rounds go to the datacenter until enough devices
    wait. None: it never falls back."""
    every: int | None = Field(default=None, ge=1, le=1_000_000)
    """Each so-many-th version is made in the datacenter, whether devices wait or not; 1 is a run on GPUs alone. None:
    none is by plan."""
    return_devices: int | None = Field(default=None, ge=1, le=10_000_000)
    """Eligible waiting devices at which a run that has fallen back returns to them; at least the cohort's quorum. None:
    ``cohort.goal``. Where no worker takes the round within ``cohort.select_s``, a quorum is enough."""
    wait_s: float = Field(default=60.0, ge=0, le=86_400 * 7, allow_inf_nan=False)
    """Seconds that a round that is the datacenter's by plan (``every``) waits for a worker while enough devices
    wait."""
    lease_s: float = Field(default=60.0, ge=1, le=86_400, allow_inf_nan=False)
    """Seconds without a heartbeat after which the worker's lease ends and another may take the round."""
    max_s: float = Field(default=3600.0, ge=1, le=86_400 * 30, allow_inf_nan=False)
    """Seconds from the round's first lease in which the result must be there, whatever the number of leases; otherwise
    the round is abandoned."""

    @model_validator(mode="after")
    def _consistent(self) -> Datacenter:
        if self.patience is None and self.every is None:
            raise ValueError(
                "set patience (after so many abandoned rounds), every (by plan) or both: "
                "else no round ever goes to the datacenter"
            )
        if self.max_s < self.lease_s:
            raise ValueError(
                f"max_s ({self.max_s:g}) is below lease_s ({self.lease_s:g}): no lease could last as long as it may"
            )
        return self

    def against(self, plan: Plan) -> Iterator[str]:
        quorum, most = plan.cohort.quorum_count, plan.finish.abandoned
        if self.return_devices is not None and self.return_devices < quorum:
            yield (
                f"datacenter.return_devices ({self.return_devices}) is below the cohort's quorum ({quorum}): "
                "the run would return to devices that cannot make a round"
            )
        if most is not None and self.patience is not None and most < self.patience:
            yield (
                f"finish.abandoned ({most}) is below datacenter.patience ({self.patience}): "
                "the run would be paused before it could fall back"
            )

    def devices_back(self, cohort: Cohort) -> int:
        """Waiting devices at which a run that has fallen back returns to them."""
        return self.return_devices or cohort.goal

    @property
    def work(self) -> DatacenterTask:
        """The worker's part."""
        return DatacenterTask(**{name: getattr(self, name) for name in DatacenterTask.model_fields})


class Plan(Section):
    """Everything that a run shall do."""

    name: str = Field(pattern=PLAN_PATTERN)
    """Short name: lower-case letters, digits, dashes. The run's id is made from it."""
    task: Task
    cohort: Cohort = Cohort()
    aggregation: Aggregation = Aggregation()
    finish: Finish = Finish()
    retention: Retention = Retention()
    datacenter: Datacenter | None = None
    secure: Secure | None = None
    schedule: Schedule | None = None
    strategy: StrategySection | None = None
    buffered: Buffered | None = None
    privacy: Privacy | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        if self.task.strategy is not None:
            raise ValueError("a plan says its strategy in the section [strategy], not in task.strategy")
        sections = [section for _, section in self if isinstance(section, Section)]
        against = [reason for section in sections for reason in section.against(self)]
        if against:
            raise ValueError("; ".join(against))
        return self

    @property
    def kind(self) -> Kind:
        """Of this plan's rounds with devices."""
        if self.buffered is not None:
            return "buffered"
        return "federated" if self.secure is None else "secure"

    @property
    def places(self) -> int:
        """How many devices are drawn: for a round, or to train at once in buffered rounds."""
        return self.cohort.select if self.buffered is None else self.buffered.concurrency

    @property
    def pool_count(self) -> int:
        """Waiting devices at which a draw waits for no more."""
        return self.cohort.pool_count if self.buffered is None else 1

    @property
    def fewest_devices(self) -> int:
        """The fewest devices that are drawn at once: in rounds that are not buffered, with which a round begins."""
        if self.buffered is not None:
            return 1
        return self.cohort.quorum_count if self.secure is None else self.secure.fewest_advertisers(self.cohort)

    @property
    def weighting(self) -> Literal["examples", "equal"]:
        """What an update of this plan's rounds with devices weighs."""
        return self.aggregation.weighs(secure=self.secure is not None)

    @property
    def terms(self) -> Terms | None:
        """What secure rounds of this plan are held to; None: its rounds with devices are plain."""
        return self.terms_with(())

    def terms_with(self, statistics: Iterable[str]) -> Terms | None:
        """What secure rounds are held to where these statistics are averaged; None: rounds with devices are plain."""
        if self.secure is None:
            return None
        if self.privacy is None:
            return self.secure.terms(self.aggregation, statistics, self.reach)
        noise, clips = self.privacy.multiplier(self), self.privacy.bounds_of_clip
        return self.secure.terms(self.aggregation, statistics, self.reach, noise, self.cohort.goal, clips)

    @property
    def reach(self) -> Reach:
        """How far a secure round of this plan moves the model at most. A datacenter moves it anywhere, and devices take
        such a model where somebody has signed it."""
        rate, curve = self.aggregation.server_learning_rate, self.schedule and self.schedule.server_learning_rate
        return self._reach_with(max(curve.rates(rate, self.finish.rounds)) if curve else rate)

    @property
    def shortest_reach(self) -> Reach:
        """How far at most the round moves the model that moves it least, of those that another round follows. An
        optimizer with a memory is taken to move it as far in each."""
        versions = {0, max(0, self.finish.rounds - 2)}
        if self.aggregation.server_optimizer != "average":
            return self.reach
        return self._reach_with(min(self.settings_at(version)["server_learning_rate"] for version in versions))

    def _reach_with(self, rate: float) -> Reach:
        rule = RULES.get(self.aggregation.rule)
        if self.secure is None or rule is None:
            return NO_BOUND
        # Of what a rule makes of the groups' means no coordinate is beyond all of theirs.
        wider = 1.0 if rule.needs == "sum" else math.sqrt(self.secure.groups)
        norm = self.secure.max_norm
        if self.privacy is not None:  # the sum is over the goal, and more may be in it
            wider = max(1.0, self.secure.most_advertisers(self.cohort) / self.cohort.goal)
            norm = max(norm, self.privacy.bounds_of_clip[1])
        return reach_of(self.aggregation, self.strategy, norm * self.aggregation.coarser * wider, rate)

    def task_at(self, version: int) -> Task:
        """The devices' part of a round that begins with this version of the model."""
        return self.task if self.schedule is None else self.schedule.task(self, version)

    def settings_at(self, version: int) -> Settings:
        """The numbers with which a round that begins with this version becomes the next one: see ``Combine``."""
        rate, curve = self.aggregation.server_learning_rate, self.schedule and self.schedule.server_learning_rate
        found = {"server_learning_rate": curve.rate(rate, version, self.finish.rounds) if curve else rate}
        if self.strategy is not None:
            task = self.task_at(version)
            found |= {"learning_rate": task.learning_rate, "mu": task.mu}
        return found

    @property
    def half(self) -> tuple[str, str] | None:
        """Name and version of the strategy of which devices run a half; None: they need none."""
        return None if self.strategy is None else self.strategy.half

    @property
    def privacy_terms(self) -> PrivacyTerms | None:
        """What devices are told of the noise; None: there is none."""
        return None if self.privacy is None else self.privacy.terms(self)

    @property
    def usual_weight(self) -> float:
        """What a device of a secure round is taken to weigh where nobody says: the cap; but where the plan leaves that
        at its default, which says nothing of devices, as much as one batch."""
        cap, default = self.aggregation.weight_cap, Aggregation.model_fields["weight_cap"].default
        if self.secure is not None and (self.secure.weight_cap is not None or self.weighting == "equal"):
            return float(self.secure.cap(self.aggregation))
        return float(cap if cap != default else min(cap, max(_BATCH, self.task.batch_size, self.cohort.min_examples)))

    @property
    def weight_unit(self) -> int:
        """In how many parts of an example a new run of this plan counts: see ``weights.unit_of``."""
        if self.buffered is not None:
            return self.buffered.unit(self.aggregation, self.cohort.goal)
        return unit_of(self.aggregation, self.cohort.goal)

    @property
    def heaviest(self) -> int:
        """The most that one update can weigh."""
        if self.buffered is not None:
            return heaviest(self.aggregation, self.weight_unit // WHOLE) * WHOLE
        if self.secure is not None:
            return self.secure.cap(self.aggregation)
        return heaviest(self.aggregation, self.weight_unit)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical text (``client_sdk.protocol.wire``): what a device agrees to."""
        return hashlib.sha256(canonical(named(self))).hexdigest()

    @property
    def written_out(self) -> dict[str, Any]:
        """The plan as JSON with all defaults, for people and for a run's row; sections that it lacks are absent."""
        return self.model_dump(mode="json", exclude={name for name in Plan.model_fields if getattr(self, name) is None})

    @classmethod
    def parse(cls, data: object) -> Plan:
        """A plan from parsed TOML or JSON; PlanError with the first 20 mistakes. "2" and true are no numbers."""
        try:
            return cls.model_validate_json(json.dumps(data), strict=True)
        except (TypeError, RecursionError):
            raise PlanError("a plan holds tables, lists, texts, numbers, true and false only") from None
        except ValidationError as error:
            found = error.errors(include_url=False)
            more = [f"and {len(found) - MOST} more mistakes"] if len(found) > MOST else []
            raise PlanError(*map(_mistake, found[:MOST]), *more) from None

    @classmethod
    def from_toml(cls, path: Path | str, changes: Sequence[str] = ()) -> Plan:
        """A plan from a file, with changes such as ``cohort.select=20`` on top. PlanError, with file and line, where
        the file cannot be read, is not TOML, or makes no sense."""
        file = PlanFile(path, changes, model=cls)
        try:
            return cls.parse(file.data)
        except PlanError as error:
            raise file.located(error) from None


def chosen(plan: Plan, registry: Registry = BUILT_IN, tried_on: int | None = None) -> Chosen:
    """The plan's rule and server optimizer, out of what is built in and this registry. PlanError where one, or the
    plan's selection, is not there in the plan's version, or what the plan asks for does not go together. ``tried_on``:
    with so many updates a rule is tried, and refused where it depends on the width of a block."""
    selection_of(plan, registry)
    if plan.secure is not None and (reason := secure_plan.takes_partial_work(plan.aggregation)):
        raise PlanError(Mistake(reason, ("aggregation",)))
    try:
        found = choose(plan.aggregation, registry, tried_on, secure=plan.secure is not None)
    except ExtensionError as error:
        field, _, what = str(error).partition(": ")
        known = field in Aggregation.model_fields
        where = ("aggregation", field) if known else ("aggregation",)
        raise PlanError(Mistake(what if known else str(error), where)) from None
    if plan.secure is not None and plan.secure.groups == 1 and found.rule.needs != "sum":
        raise PlanError(Mistake(secure_plan.needs_single_updates(plan.aggregation), ("aggregation",)))
    require_combinable(plan, found)
    return found


def algorithm(plan: Plan, registry: Registry = BUILT_IN, tried_on: int | None = None) -> Algorithm:
    """The plan's rule and server optimizer as ``chosen`` gives them, under its strategy, where it names one. PlanError
    where the strategy is not there in the plan's version, cannot have this plan, or fails before the first round."""
    usual = chosen(plan, registry, tried_on)
    try:
        strategy, numbers = choose_strategy(plan.strategy, registry)
    except ExtensionError as error:
        field, _, what = str(error).partition(": ")
        raise PlanError(Mistake(what, ("strategy", field))) from None
    found = Algorithm(usual=usual, strategy=strategy, settings=numbers)
    if plan.strategy is None:
        return found
    try:
        reason = why_not(strategy, plan, usual, numbers)
    except ExtensionError as error:
        reason = str(error)
    if not reason and (plan.half is None) != (strategy.device is None):
        has, said = ("has a", "true") if strategy.device is not None else ("has no", "false, or leave it out")
        reason = f"it {has} half that devices run: write devices = {said}"
    if not reason and plan.buffered is not None and type(strategy).decide is not Strategy.decide:
        reason = "it decides for a whole cohort at once, and buffered rounds have none: leave [buffered] out"
    if not reason and plan.secure is not None and strategy.needs != "sum":
        reason = "it needs single updates, which nobody sees in a masked round: leave [secure] out"
    if not reason and plan.datacenter is not None and strategy.device is not None:
        reason = "a datacenter has no half of it, and no device's state: leave [datacenter] out"
    try:
        if not reason:
            found.task(plan, 0, {})
    except ExtensionError as error:
        reason = str(error)
    if reason:
        raise PlanError(Mistake(f"{plan.strategy.name} does not go with this plan: {reason}", ("strategy", "name")))
    return found


def selection_of(plan: Plan, registry: Registry = BUILT_IN) -> Choice:
    """How the plan draws cohorts. PlanError as from ``chosen``."""
    cohort = plan.cohort
    try:
        found = choose_selection(cohort, registry)
    except ExtensionError as error:
        field, _, what = str(error).partition(": ")
        raise PlanError(Mistake(what, ("cohort", field))) from None
    pool = math.inf if cohort.chosen_already else cohort.pool_count
    if reason := found.reason_against(cohort.select, pool, secure=plan.secure is not None):
        raise PlanError(Mistake(reason, ("cohort",)))
    return found


def require_combinable(plan: Plan, chosen: Chosen | Algorithm, elements: int = 0) -> None:
    """PlanError where the plan's rule cannot combine rounds of updates of so many values: they may be too few, or take
    too much memory."""
    updates = plan.cohort.goal, plan.cohort.quorum_count
    if plan.secure is not None:
        updates = plan.secure.groups, plan.secure.fewest_groups
    if reason := chosen.reason_against(*updates, elements):
        raise PlanError(
            Mistake(f"{plan.aggregation.rule} does not go with this plan: {reason}", ("aggregation", "rule"))
        )


def require_bits(plan: Plan, usual: float | None = None) -> None:
    """PlanError where rounding of a secure round would be larger than what is learned. ``usual``: what its devices
    weigh on average; None: that is not known."""
    if plan.secure is not None:
        weight = plan.usual_weight if usual is None else usual
        rest = (plan.aggregation, weight, plan.cohort.goal, secure_plan.FEWEST_BITS)
        if reason := secure_plan.said_of_bits(plan.secure, *rest):
            raise PlanError(Mistake(reason, ("secure",)))


def _mistake(item: ErrorDetails) -> Mistake:
    where = tuple(part[:LONGEST] if isinstance(part, str) else part for part in item["loc"])
    what = message_of(dict(item))
    if item["type"] == "extra_forbidden":
        name = str(where[-1])
        near = get_close_matches(name, fields_of(Plan, where[:-1]), n=1) or elsewhere(Plan, name)
        what = "there is no such field" + (f"; did you mean {' or '.join(near)}?" if near else "")
    elif item["type"] == "missing":
        what = "is required"
    return Mistake(what, where)
