"""The registry of rules and server optimizers, as data, and the choice of a plan from it.

Built-in ones are here. Those of packages are loaded by ``coordinator.runtime.extensions`` and passed in as another
``Registry``, so the engine stays pure. A name of a package, ``package:name``, has a version in the plan, since every
replica must fold in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from client_sdk.protocol.names import LEARNER_PATTERN
from coordinator.engine.aggregation.adaptive import FEDADAGRAD, FEDADAM, FEDYOGI
from coordinator.engine.aggregation.optimizers import Average, FedAvgM, ServerOptimizer
from coordinator.engine.aggregation.parameters import ExtensionError, Settings, settings
from coordinator.engine.aggregation.rules import Columns, Mean, Median, Rule, TrimmedMean, Vector, Weights
from coordinator.engine.aggregation.width import WidthProbe, require_on_made_columns, sample_of

if TYPE_CHECKING:
    from coordinator.engine.aggregation.section import Aggregation

Made = TypeVar("Made", covariant=True)


@dataclass(frozen=True, slots=True)
class Installed(Generic[Made]):
    """What a package provides under a name."""

    version: str
    made: Made


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Rules and server optimizers of packages, by ``package:name``. The built-in ones are always available."""

    rules: Mapping[str, Installed[Rule]] = field(default_factory=dict)
    server_optimizers: Mapping[str, Installed[ServerOptimizer]] = field(default_factory=dict)


RULES: Mapping[str, Rule] = MappingProxyType({"mean": Mean(), "median": Median(), "trimmed-mean": TrimmedMean()})
SERVER_OPTIMIZERS: Mapping[str, ServerOptimizer] = MappingProxyType(
    {"average": Average(), "fedavgm": FedAvgM(), "fedadagrad": FEDADAGRAD, "fedadam": FEDADAM, "fedyogi": FEDYOGI}
)
BUILT_IN = Registry()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A plan's rule and server optimizer, with every parameter set.

    Their results are checked, since packages bring some of them: a block of another length would become a file that is
    no checkpoint.
    """

    rule: Rule
    rule_settings: Settings
    optimizer: ServerOptimizer
    optimizer_settings: Settings

    def combine(self, columns: Columns, weights: Weights) -> Vector:
        """One block of the delta, as ``Rule.combine`` gives it. ExtensionError where the rule fails, or gives anything
        else than float32 [B]."""
        with _failures("aggregation rule"):
            found = self.rule.combine(columns, weights, self.rule_settings)
            return _block("aggregation rule", found, columns.shape[1])

    def probe(self, elements: int) -> WidthProbe:
        """What checks that the rule's delta of so many elements does not depend on the width of blocks. Built-in rules
        need no check."""
        return WidthProbe(0 if self.rule in RULES.values() else elements)

    def require_any_width(self, rows: int) -> None:
        """ExtensionError, that begins with the field, where the rule gives other values for another width of a block,
        on drawn columns of ``rows`` updates."""
        if self.rule.needs == "all" and self.rule not in RULES.values():
            weights = 1 + np.arange(min(rows, 33), dtype=np.int64) * self.rule.takes_weights
            try:
                require_on_made_columns(rows, lambda columns: self.combine(columns, weights))
            except ExtensionError as error:
                raise ExtensionError(f"rule: {error}") from None

    def apply(self, model: Vector, mean: Vector, state: Sequence[Vector], learning_rate: float) -> Vector:
        """The next block of the model, as ``ServerOptimizer.apply`` gives it. ExtensionError as above, and where an
        optimizer of a package gives other values for a part of the block."""
        some = slice(0, 0) if self.optimizer in SERVER_OPTIMIZERS.values() else sample_of(model.size)
        few, changes, kept = model[some].copy(), mean[some].copy(), [one[some].copy() for one in state]
        with _failures("server optimizer"):
            found = self.optimizer.apply(model, mean, state, learning_rate, self.optimizer_settings)
            whole = _block("server optimizer", found, model.size)
            if some.stop:
                part = self.optimizer.apply(few, changes, kept, learning_rate, self.optimizer_settings)
                again = (_block("server optimizer", part, few.size), *kept)
                if [one.tobytes() for one in again] != [one[some].tobytes() for one in (whole, *state)]:
                    raise ExtensionError(
                        "the server optimizer of the plan gives other values for a part of a block: it looks at the "
                        "whole block, as a norm does, and the model would depend on how tensors are cut into blocks"
                    )
            return whole


def choose(section: Aggregation, registry: Registry = BUILT_IN, tried_on: int | None = None) -> Chosen:
    """Returns what the plan names, checked. ExtensionError, in a sentence that begins with the field, where it is not
    installed, has another version, or does not support the plan. ``tried_on``: how many drawn updates a package's rule
    is tried on: it is refused where the width of a block changes its values."""
    rule = _found("rule", "aggregation rule", section.rule, section.rule_version, RULES, registry.rules)
    optimizer = _found(
        "server_optimizer",
        "server optimizer",
        section.server_optimizer,
        section.server_optimizer_version,
        SERVER_OPTIMIZERS,
        registry.server_optimizers,
    )
    reason = _reason_against_weights(section, rule)
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
    if tried_on is not None:
        found.require_any_width(tried_on)
    return found


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
    reason = _reason_against_weights(section, RULES[section.rule]) if section.rule in RULES else None
    if reason is not None:
        yield reason


def needs_package(section: Aggregation) -> bool:
    """Whether the plan names a rule or a server optimizer that is not built in."""
    return ":" in section.rule or ":" in section.server_optimizer


# ------------------------------------------------------------ inside


@contextmanager
def _failures(what: str) -> Iterator[None]:
    """Raises an error inside as an ExtensionError. A lack of memory is the machine's, and passes."""
    try:
        yield
    except (ExtensionError, MemoryError):
        raise
    except Exception as error:
        raise ExtensionError(f"the {what} of the plan failed: {type(error).__name__}: {error}") from error


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
            f"{field}_version: the {what} {name} comes from a package, and is the same everywhere only in one version: "
            f'set {field}_version = "{found.version}", which is installed here'
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
        raise ExtensionError(f"{field}_version: the {what} {name} is built in: leave its version out")


def _settings(field: str, name: str, made: Rule | ServerOptimizer, given: Mapping[str, float]) -> Settings:
    return settings(name, f"{field}_parameters", made.parameters, given)


def _reason_against_weights(section: Aggregation, rule: Rule) -> str | None:
    """Why the plan does not go with a rule that takes no weights; None where it does."""
    if not rule.takes_weights and section.weighting == "examples":
        return f'the {section.rule} takes no weights: set weighting = "equal"'
    if not rule.takes_weights and section.partial == "examples_seen":
        return f'the {section.rule} takes no weights: set partial = "full" or "refuse"'
    if not rule.takes_weights and section.inverse_participation is not None:
        return f"the {section.rule} takes no weights: leave inverse_participation out"
    return None
