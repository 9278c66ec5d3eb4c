"""The registry of rules and server optimizers, as data, and the choice of a plan from it.

Built-in ones are here. Those of packages are loaded by ``coordinator.runtime.extensions`` and passed in as another
``Registry``, so the engine stays pure. A name of a package, ``package:name``, has a version in the plan, since every
replica must fold in the same way.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

import numpy as np

from client_sdk.protocol.names import LEARNER_PATTERN
from client_sdk.tensors import TensorError
from coordinator.engine.aggregation.adaptive import FEDADAGRAD, FEDADAM, FEDYOGI
from coordinator.engine.aggregation.combining import (
    MEMORY,
    Blocks,
    Columns,
    Combined,
    Computed,
    Needs,
    Sources,
    Updates,
    Weights,
    flat,
)
from coordinator.engine.aggregation.layerwise import Lamb, Lars, RAdam
from coordinator.engine.aggregation.optimizers import (
    NO_BOUND,
    Average,
    BlockOptimizer,
    Bounded,
    FedAvgM,
    Layer,
    LayerOptimizer,
    Reach,
    ServerOptimizer,
    is_layerwise,
)
from coordinator.engine.aggregation.parameters import ExtensionError, Settings, failures, settings
from coordinator.engine.aggregation.robust import CenteredClipping, GeometricMedian, Krum
from coordinator.engine.aggregation.rules import ColumnRule, Mean, Median, Rule, TrimmedMean, Vector, WholeRule
from coordinator.engine.aggregation.strategies import STRATEGIES
from coordinator.engine.aggregation.strategy import PLAIN, Strategy
from coordinator.engine.aggregation.width import (
    WidthProbe,
    require_on_made_columns,
    require_on_made_updates,
    sample_of,
)
from coordinator.engine.named_tensors import RULE, SERVER_OPTIMIZER, Small
from coordinator.engine.selection import SELECTIONS, Choice, Selection

if TYPE_CHECKING:
    from coordinator.engine.aggregation.section import Aggregation
    from coordinator.engine.aggregation.strategy import StrategySection
    from coordinator.engine.plan import Cohort

Made = TypeVar("Made", covariant=True)


@dataclass(frozen=True, slots=True)
class Installed(Generic[Made]):
    """What a package provides under a name."""

    version: str
    made: Made


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """What packages provide, by ``package:name``. What is built in is always available."""

    rules: Mapping[str, Installed[Rule]] = field(default_factory=dict)
    server_optimizers: Mapping[str, Installed[ServerOptimizer]] = field(default_factory=dict)
    strategies: Mapping[str, Installed[Strategy]] = field(default_factory=dict)
    selections: Mapping[str, Installed[Selection]] = field(default_factory=dict)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "mean": Mean(),
        "median": Median(),
        "trimmed-mean": TrimmedMean(),
        "krum": Krum(),
        "geometric-median": GeometricMedian(),
        "centered-clipping": CenteredClipping(),
    }
)
SERVER_OPTIMIZERS: Mapping[str, Bounded] = MappingProxyType(
    {
        "average": Average(),
        "fedavgm": FedAvgM(),
        "fedadagrad": FEDADAGRAD,
        "fedadam": FEDADAM,
        "fedyogi": FEDYOGI,
        "lars": Lars(),
        "lamb": Lamb(),
        "radam": RAdam(),
    }
)
BUILT_IN = Registry()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A plan's rule and server optimizer, with every parameter set: together a ``Combine``. The rule makes a delta from
    the updates, and the optimizer a step from the delta; statistics move by the delta.

    Their results are checked, since packages bring some of them: a block of another length would become a file that is
    no checkpoint.
    """

    rule: Rule
    rule_settings: Settings
    optimizer: ServerOptimizer
    optimizer_settings: Settings

    @property
    def needs(self) -> Needs:
        return self.rule.needs

    @property
    def keeps(self) -> Mapping[str, tuple[float, ...]]:
        first = self.optimizer.first(self.optimizer_settings)
        of_rule: dict[str, tuple[float, ...]] = {RULE: (0.0,)} if self._remembers else {}
        return ({SERVER_OPTIMIZER: first} if first else {}) | of_rule

    @property
    def _remembers(self) -> bool:
        """Whether the rule gets the delta of the round before."""
        said = getattr(self.rule, "remembers", None)
        with failures("aggregation rule of the plan", self.rule):
            return said is not None and bool(said(self.rule_settings))

    def combine(
        self,
        parent: Blocks,
        sources: Sources,
        tensors: Mapping[str, Blocks],
        small: Small,
        settings: Settings,
        seed: bytes,
    ) -> Combined:
        """See ``Combine``. The small state has the count of a layer-wise optimizer's steps, under ``SERVER_OPTIMIZER``;
        the rest of it is passed on. Nothing is drawn."""
        rate, state = settings["server_learning_rate"], tensors.get(SERVER_OPTIMIZER)
        taken = small.get(SERVER_OPTIMIZER, 0) + 1
        delta = self._delta(sources, tensors.get(RULE))
        step = _Step(self, parent, delta, state, sources, rate, taken)
        small = {**small, SERVER_OPTIMIZER: taken} if is_layerwise(self.optimizer) else small
        kept: dict[str, Blocks] = {} if state is None else {SERVER_OPTIMIZER: Computed(step.state)}
        if self._remembers:
            kept[RULE] = Computed(lambda start, count: delta.read(start, count)[:, None])
        return Combined(step, kept, small)

    def _delta(self, sources: Sources, before: Blocks | None) -> Blocks:
        if isinstance(sources, Updates) and self.rule.needs == "whole":
            places = [place for place in sources.tensors.slices().values() if place.start < sources.parameters]
            parts = [] if before is None else [before.read(at.start, at.stop - at.start)[:, 0] for at in places]
            return flat(self.of_whole(sources, np.concatenate(parts) if parts else None))
        if self.rule.needs == "sum":
            return sources.sum()
        delta, start, probe = np.empty(sources.elements, np.float32), 0, self.probe(sources.elements)
        for columns in sources.blocks():
            width = columns.shape[1]
            probe.take(start, columns)
            delta[start : start + width] = self.by_columns(columns, sources.weights)
            start += width
        probe.require(delta, lambda columns: self.by_columns(columns, sources.weights))
        return flat(delta)

    def by_columns(self, columns: Columns, weights: Weights) -> Vector:
        """One block of the delta, as ``ColumnRule.combine`` gives it. ExtensionError where the rule fails, or gives
        anything else than float32 [B]."""
        with failures("aggregation rule of the plan", self.rule):
            found = cast("ColumnRule", self.rule).combine(columns, weights, self.rule_settings)
            return _block("aggregation rule", found, columns.shape[1])

    def of_whole(self, updates: Updates, before: Vector | None = None) -> Vector:
        """The delta, as ``WholeRule.delta`` gives it. ``before``: the last one, for a rule that remembers it; None:
        zeros. ExtensionError where the rule fails, and for too few updates. An update that could not be read is raised
        as it is, whatever the rule makes of it."""
        rule, count, fewest = cast("WholeRule", self.rule), len(updates.weights), self._fewest()
        if count < fewest:
            raise ExtensionError(f"the aggregation rule of the plan takes no fewer than {fewest} updates, not {count}")
        updates.holds = rule.holds
        try:
            with failures("aggregation rule of the plan", self.rule):
                last = np.zeros(updates.parameters, np.float32) if before is None else before
                more = (last,) if self._remembers else ()
                return _block("aggregation rule", rule.delta(updates, self.rule_settings, *more), updates.elements)
        finally:
            if updates.failed is not None:
                raise updates.failed

    def reason_against(self, goal: int, quorum: int, elements: int = 0) -> str:
        """Why rounds of ``quorum`` to ``goal`` updates of so many values cannot be combined; empty where they can.
        Of a rule over whole updates: its memory is what it holds and a Gram matrix, four times."""
        if self.rule.needs != "whole":
            return ""
        fewest, holds = self._fewest(), cast("WholeRule", self.rule).holds
        if quorum < fewest:
            return (
                f"it takes no fewer than {fewest} updates, and a round may have {quorum}: raise cohort.goal or quorum, "
                "in secure rounds secure.groups"
            )
        if (taken := 4 * elements * holds + 32 * goal * goal) > MEMORY:
            return (
                f"it would take {taken:,} bytes of memory, more than {MEMORY:,}: for {holds} whole updates of "
                f"{elements:,} values, and for a Gram matrix of {goal:,} updates"
            )
        return ""

    def probe(self, elements: int) -> WidthProbe:
        """What checks that the rule's delta of so many elements does not depend on the width of blocks. Built-in rules
        need no check."""
        return WidthProbe(0 if self.rule in RULES.values() else elements)

    def require_any_width(self, rows: int) -> None:
        """ExtensionError, that begins with the field, where a package's rule gives other values for another width of a
        block, or a rule over whole updates for another order, on ``rows`` drawn updates."""
        if self.rule.needs == "sum" or self.rule in RULES.values():
            return
        fewest = self._fewest() if self.rule.needs == "whole" else 1
        weights = 1 + np.arange(max(min(rows, 33), fewest), dtype=np.int64) * self.rule.takes_weights
        try:
            if self.rule.needs == "all":
                require_on_made_columns(rows, lambda columns: self.by_columns(columns, weights))
            elif fewest <= rows:
                require_on_made_updates(weights, self.of_whole)
        except (ExtensionError, TensorError) as error:
            raise ExtensionError(f"rule: {error}") from None

    def withstands(self, count: int) -> int:
        """How many of so many updates may be wrong, as far as the rule says it."""
        said = getattr(self.rule, "withstands", None)
        return 0 if said is None else int(said(self.rule_settings, count))

    def _fewest(self) -> int:
        with failures("aggregation rule of the plan", self.rule):
            return int(cast("WholeRule", self.rule).fewest(self.rule_settings))

    def apply(self, model: Vector, mean: Vector, state: Sequence[Vector], learning_rate: float) -> Vector:
        """The next block of the model, as ``BlockOptimizer.apply`` gives it. ExtensionError as above, and where an
        optimizer of a package gives other values for a part of the block."""
        optimizer = cast("BlockOptimizer", self.optimizer)
        some = slice(0, 0) if self.optimizer in SERVER_OPTIMIZERS.values() else sample_of(model.size)
        few, changes, kept = model[some].copy(), mean[some].copy(), [one[some].copy() for one in state]
        with failures("server optimizer of the plan", self.optimizer):
            given = list(state)
            found = optimizer.apply(model, mean, given, learning_rate, self.optimizer_settings)
            whole = _block("server optimizer", found, model.size)
            _require_written(given, state)
            if some.stop:
                part = optimizer.apply(few, changes, kept, learning_rate, self.optimizer_settings)
                again = (_block("server optimizer", part, few.size), *kept)
                if [one.tobytes() for one in again] != [one[some].tobytes() for one in (whole, *state)]:
                    raise ExtensionError(
                        "the server optimizer of the plan gives other values for a part of a block: it looks at the "
                        "whole block, as a norm does, and the model would depend on how tensors are cut into blocks. "
                        "An optimizer of whole layers says layerwise = True"
                    )
            return whole

    def apply_to_layer(
        self, layer: Layer, model: Vector, mean: Vector, state: Sequence[Vector], learning_rate: float
    ) -> Vector:
        """The next values of a layer, as ``LayerOptimizer.apply`` gives them. ExtensionError as above."""
        optimizer = cast("LayerOptimizer", self.optimizer)
        with failures("server optimizer of the plan", self.optimizer):
            given = list(state)
            found = optimizer.apply(layer, model, mean, given, learning_rate, self.optimizer_settings)
            _require_written(given, state)
            return _block("server optimizer", found, model.size)


class _Made(NamedTuple):
    place: slice
    model: Vector
    slots: Vector


_NOTHING = _Made(slice(0, 0), np.empty(0, np.float32), np.empty((0, 0), np.float32))


class _Step:
    """The model after a round, and the server optimizer's state, which is made with each block of parameters.

    For a layer-wise optimizer a whole layer is made when the first block of it is asked for, and blocks are cut from
    that. The layer before it is then gone: memory is that of the largest layer, for parent, delta, state, model, and
    what the optimizer needs beside them.
    """

    def __init__(
        self,
        chosen: Chosen,
        parent: Blocks,
        delta: Blocks,
        state: Blocks | None,
        sources: Sources,
        rate: float,
        step: int,
    ) -> None:
        self._chosen, self._parent, self._delta, self._before = chosen, parent, delta, state
        self._sources, self._rate, self._step = sources, rate, step
        self._places = list(sources.tensors.slices().items())
        self._starts = [place.start for _, place in self._places]
        self._last = _NOTHING
        self.zero_sum = True

    def read(self, start: int, count: int) -> Vector:
        if start >= self._sources.parameters:
            return self._parent.read(start, count) + self._changes(slice(start, start + count), count)
        made = self._made(start, count)
        return made.model[start - made.place.start :][:count]

    def state(self, start: int, count: int) -> Vector:
        """[count, slots] after the round."""
        made = self._made(start, count)
        return made.slots[start - made.place.start :][:count]

    def _made(self, start: int, count: int) -> _Made:
        """Model and state of this block, or of the layer that it is in."""
        if self._last.place.start <= start and start + count <= self._last.place.stop:
            return self._last
        self._last = _NOTHING
        place, layer = slice(start, start + count), None
        if is_layerwise(self._chosen.optimizer):
            name, place = self._places[bisect_right(self._starts, start) - 1]
            layer = Layer(name, self._sources.tensors[name].shape, self._step)
        model, delta = _read(self._parent, place, count), self._changes(place, count)
        none = np.empty((model.size, 0), np.float32)
        slots = none if self._before is None else _read(self._before, place, count)
        given = model, delta, list(slots.T), self._rate
        following = self._chosen.apply(*given) if layer is None else self._chosen.apply_to_layer(layer, *given)
        self._last = _Made(place, following, slots)
        return self._last

    def _changes(self, place: slice, width: int) -> Vector:
        delta = _read(self._delta, place, width)
        self.zero_sum = self.zero_sum and not delta.any()
        return delta


def _read(blocks: Blocks, place: slice, width: int) -> Vector:
    """What stands in this place, read ``width`` values at a time."""
    parts = [blocks.read(at, min(width, place.stop - at)) for at in range(place.start, place.stop, width)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def choose(
    section: Aggregation, registry: Registry = BUILT_IN, tried_on: int | None = None, *, secure: bool = False
) -> Chosen:
    """Returns what the plan names, checked, for plain rounds or ``secure`` ones. ExtensionError, in a sentence that
    begins with the field, where it is not installed, has another version, or does not support the plan. ``tried_on``:
    how many drawn updates a package's rule is tried on: it is refused where the width of a block changes its values."""
    rule = _found("rule", "aggregation rule", section.rule, section.rule_version, RULES, registry.rules)
    optimizer = _found(
        "server_optimizer",
        "server optimizer",
        section.server_optimizer,
        section.server_optimizer_version,
        SERVER_OPTIMIZERS,
        registry.server_optimizers,
    )
    reason = reason_against_weights(section, rule, section.weighs(secure=secure))
    if reason is not None:
        raise ExtensionError(f"rule: {reason}")
    found = Chosen(
        rule=rule,
        rule_settings=_settings("rule", section.rule, rule, section.rule_parameters),
        optimizer=optimizer,
        optimizer_settings=_settings(
            "server_optimizer", section.server_optimizer, optimizer, section.server_optimizer_parameters
        ),
    )
    if reason := _reason_against_state(optimizer, found.optimizer_settings):
        raise ExtensionError(f"server_optimizer: {reason}")
    if tried_on is not None:
        found.require_any_width(tried_on)
    return found


def choose_strategy(section: StrategySection | None, registry: Registry = BUILT_IN) -> tuple[Strategy, Settings]:
    """The strategy that a plan names, and its parameters. ExtensionError as ``choose``."""
    if section is None:
        return PLAIN, {}
    found = _found("name", "strategy", section.name, section.version, STRATEGIES, registry.strategies)
    return found, settings(section.name, "parameters", found.parameters, section.parameters)


def reach_of(section: Aggregation, strategy: StrategySection | None, norm: float, learning_rate: float) -> Reach:
    """How far a round moves the model under the mean: see ``optimizers.Bounded``. Of a package's optimizer or strategy
    no bound is known."""
    made = SERVER_OPTIMIZERS.get(section.server_optimizer)
    if made is None or (strategy is not None and strategy.name not in STRATEGIES):
        return NO_BOUND
    numbers = _settings("server_optimizer", section.server_optimizer, made, section.server_optimizer_parameters)
    usual = made.reach(norm, learning_rate, numbers)
    return usual if strategy is None else STRATEGIES[strategy.name].reach(usual)


def reasons_against(section: Aggregation) -> Iterator[str]:
    """Yields the errors of a section ``[aggregation]`` that can be found without any package."""
    known: dict[str, Rule | ServerOptimizer] = {**RULES, **SERVER_OPTIMIZERS}
    for name_of, what, name, version, given, built_in in (
        ("rule", "aggregation rule", section.rule, section.rule_version, section.rule_parameters, RULES),
        (
            "server_optimizer",
            "server optimizer",
            section.server_optimizer,
            section.server_optimizer_version,
            section.server_optimizer_parameters,
            SERVER_OPTIMIZERS,
        ),
    ):
        try:
            if name in built_in:
                _require_no_version(name_of, what, name, version)
                _settings(name_of, name, known[name], given)
            else:
                _require_foreign(name_of, what, name, built_in)
        except ExtensionError as error:
            yield str(error)
    rule = RULES.get(section.rule)
    reason = None if rule is None else reason_against_weights(section, rule, section.weighting)
    if reason is not None:
        yield reason


def choose_selection(cohort: Cohort, registry: Registry = BUILT_IN) -> Choice:
    """Returns how the plan draws cohorts. ExtensionError as from ``choose``."""
    name, given = cohort.choose, cohort.choose_parameters
    built_in: Mapping[str, Selection] = SELECTIONS
    found = _found("choose", "selection", name, cohort.choose_version, built_in, registry.selections)
    return Choice(name=name, selection=found, settings=settings(name, "choose_parameters", found.parameters, given))


def reason_against_selection(cohort: Cohort) -> str:
    """The error of a plan's selection that can be found without any package; empty where there is none."""
    try:
        if cohort.choose in SELECTIONS:
            choose_selection(cohort)
        else:
            _require_foreign("choose", "selection", cohort.choose, SELECTIONS)
    except ExtensionError as error:
        return str(error)
    return ""


def needs_package(section: Aggregation) -> bool:
    """Whether the plan names a rule or a server optimizer that is not built in."""
    return ":" in section.rule or ":" in section.server_optimizer


# ------------------------------------------------------------ inside


def _require_written(given: Sequence[Vector], state: Sequence[Vector]) -> None:
    if [id(one) for one in given] != [id(one) for one in state]:
        raise ExtensionError(
            "the server optimizer of the plan puts another vector in the place of one of its state, which is lost: "
            "write into those that it gets (last[:] = ...)"
        )


def _reason_against_state(optimizer: ServerOptimizer, numbers: Settings) -> str:
    """Why an optimizer's state cannot begin, as the end of a sentence; empty where it can."""
    with failures("server optimizer of the plan", optimizer):
        first = optimizer.first(numbers)
    fits = isinstance(first, tuple) and len(first) <= len(optimizer.slots)
    if fits and np.isfinite(np.array(first, np.float32)).all():
        return ""
    slots = ", ".join(optimizer.slots) or "none"
    return f"its state begins with {first!r:.80}: first() gives a tuple of numbers, at most one for each slot ({slots})"


def _block(what: str, found: object, size: int) -> Vector:
    if isinstance(found, np.ndarray) and (found.dtype, found.shape) == (np.float32, (size,)):
        return found
    gives = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
    raise ExtensionError(f"the {what} of the plan gives {gives} for a block of float32 [{size}]")


def _found(
    field: str,
    what: str,
    name: str,
    version: str | None,
    built_in: Mapping[str, Made],
    installed: Mapping[str, Installed[Made]],
) -> Made:
    if name in built_in:
        _require_no_version(field, what, name, version)
        return built_in[name]
    _require_foreign(field, what, name, built_in)
    found = installed.get(name)
    if found is None:
        which = f"{name} {version}" if version else name
        raise ExtensionError(f"{field}: the {what} {which} is not installed here: install its package")
    if not version:
        raise ExtensionError(
            f"{_version_of(field)}: the {what} {name} comes from a package, and is the same everywhere only in one "
            f'version: set {_version_of(field)} = "{found.version}", which is installed here'
        )
    if found.version != version:
        raise ExtensionError(f"{field}: the {what} {name} is installed in version {found.version}, not {version}")
    return found.made


def _require_foreign(field: str, what: str, name: str, built_in: Mapping[str, object]) -> None:
    if not re.fullmatch(LEARNER_PATTERN, name):
        raise ExtensionError(
            f"{field}: there is no {what} {name!r}; there are {', '.join(built_in)}, and package:name of a package"
        )


def _require_no_version(field: str, what: str, name: str, version: str | None) -> None:
    if version is not None:
        raise ExtensionError(f"{_version_of(field)}: the {what} {name} is built in: leave its version out")


def _version_of(field: str) -> str:
    """The field beside the one with the name."""
    return "version" if field == "name" else f"{field}_version"


def _settings(field: str, name: str, made: Rule | ServerOptimizer, given: Mapping[str, float]) -> Settings:
    return settings(name, f"{field}_parameters", made.parameters, given)


def reason_against_weights(section: Aggregation, rule: Rule, weighting: str | None) -> str | None:
    """Why the plan does not go with a rule that takes no weights; None where it does. ``weighting``: what updates weigh
    by, None: that is not known yet."""
    if not rule.takes_weights and weighting == "examples":
        return f'the {section.rule} takes no weights: set weighting = "equal"'
    if not rule.takes_weights and section.partial == "examples_seen":
        return f'the {section.rule} takes no weights: set partial = "full" or "refuse"'
    if not rule.takes_weights and section.inverse_participation is not None:
        return f"the {section.rule} takes no weights: leave inverse_participation out"
    return None
