"""Loads rules, server optimizers, strategies and selections of installed packages, for the engine, which is pure and
imports nothing itself.

The groups of entry points are ``quorate.`` and *rules*, *server_optimizers*, *strategies*, *selections*. An entry
point returns the object itself. Its version is the object's own ``version``, where it has one, so that a package may
change without its arithmetic; otherwise the version of the package. Only what a plan names is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from client_sdk.extensions import CannotLoad, extensions, provided_now
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.engine.aggregation.parameters import Parameter
from coordinator.engine.aggregation.registry import BUILT_IN, Installed, Registry, needs_package
from coordinator.engine.plan import Plan
from coordinator.engine.plan_file import PlanError

RULES_GROUP = "quorate.rules"
OPTIMIZERS_GROUP = "quorate.server_optimizers"
SELECTIONS_GROUP = "quorate.selections"
STRATEGIES_GROUP = "quorate.strategies"

_ELSEWHERE_S = 30.0
"""Seconds after which a peer asks again: another replica may have what the plan names."""
_PARTS = {
    "rule": ("needs", "takes_weights", "parameters"),
    "server_optimizer": ("slots", "parameters", "first", "apply"),
    "name": ("parameters", "needs", "holds", "device", "against", "keeps", "decide", "combine"),
    "choose": ("reads", "varies", "parameters", "select"),
}
_OF_RULE = {"sum": (), "all": ("combine",), "whole": ("holds", "fewest", "delta")}
"""What a rule has beside, by what it needs."""

FindExtensions = Callable[[Plan], Registry]
"""Returns what installed packages provide for a plan. PlanError where one that the plan names cannot be loaded."""


class MissingExtension(ProblemError):
    """A run of the store names a rule, a server optimizer, a selection or a codec that is not installed here in that
    version. Devices and workers get *busy*: another replica may have it."""


def missing(run: str, reason: Exception) -> MissingExtension:
    """Returns the error to raise."""
    detail = f"this coordinator cannot continue run {run}: {reason}"
    return MissingExtension(problem("busy", detail, retry_after_s=_ELSEWHERE_S).problem)


def installed(plan: Plan) -> Registry:
    """Returns the rule, the server optimizer, the strategy and the selection that the plan names, where packages
    provide them."""
    strategy = "" if plan.strategy is None else plan.strategy.name
    if not needs_package(plan.aggregation) and ":" not in strategy + plan.cohort.choose:
        return BUILT_IN
    return Registry(
        rules=_named(RULES_GROUP, plan.aggregation.rule, "rule"),
        server_optimizers=_named(OPTIMIZERS_GROUP, plan.aggregation.server_optimizer, "server_optimizer"),
        strategies=_named(STRATEGIES_GROUP, strategy, "name", "strategy"),
        selections=_named(SELECTIONS_GROUP, plan.cohort.choose, "choose", "cohort"),
    )


def _named(group: str, name: str, field: str, section: str = "aggregation") -> dict[str, Installed[Any]]:
    entry = provided_now(group).get(name) or extensions(group).get(name)
    if entry is None:
        return {}
    try:
        made = entry.load()
    except CannotLoad as error:
        raise PlanError(f"{section}.{field}: {error}") from None
    lacking = [part for part in _PARTS[field] if not hasattr(made, part)]
    needs = getattr(made, "needs", "sum") if field == "rule" else "sum"
    lacking += [part for part in _OF_RULE.get(needs, ()) if not hasattr(made, part)]
    if isinstance(made, type) or lacking or needs not in _OF_RULE:
        what = f"an object without {lacking[0]}" if lacking else f"a rule that needs {needs!r}, not sum, all or whole"
        what = "a class instead of an object of it" if isinstance(made, type) else what
        raise PlanError(f"{section}.{field}: {name} cannot be used: its entry point returns {what}")
    declared = made.parameters.values() if isinstance(made.parameters, Mapping) else (made.parameters,)
    if other := [one for one in declared if not isinstance(one, Parameter)]:
        what = "its parameters are a dict from names to Parameter(meaning=...)"
        raise PlanError(f"{section}.{field}: {name} cannot be used: {what}, and have {other[0]!r:.80}")
    return {name: Installed(str(getattr(made, "version", entry.version)), made)}
