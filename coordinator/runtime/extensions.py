"""Rules and server optimizers of installed packages, for the engine, which looks at no machine itself.

Groups of entry points: ``quorate.rules`` and ``quorate.server_optimizers``. An entry gives the object itself. Its
version is the object's own ``version``, where it has one, so that a package may change without its arithmetic; else the
package's. Only what a plan names is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from client_sdk.extensions import CannotLoad, extensions
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.engine.aggregation.registry import BUILT_IN, Installed, Registry, needs_package
from coordinator.engine.plan import Plan, PlanError

RULES_GROUP = "quorate.rules"
OPTIMIZERS_GROUP = "quorate.server_optimizers"

_ELSEWHERE_S = 30.0
"""When a peer asks again, hoping for a replica that has what the plan names."""
_PARTS = {
    "rule": ("needs", "takes_weights", "parameters", "combine"),
    "server_optimizer": ("slots", "parameters", "first", "apply"),
}

FindExtensions = Callable[[Plan], Registry]
"""What of this machine's packages a plan may use. PlanError where one that it names cannot be loaded."""


class MissingExtension(ProblemError):
    """A run of the store names a rule, a server optimizer or a codec that is not installed here in that version. For
    devices and workers the replica is busy: another one may have it."""


def missing(run: str, reason: Exception) -> MissingExtension:
    """The error to raise."""
    detail = f"this coordinator cannot go on with run {run}: {reason}"
    return MissingExtension(problem("busy", detail, retry_after_s=_ELSEWHERE_S).problem)


def installed(plan: Plan) -> Registry:
    """The rule and the server optimizer that the plan names, where packages bring them."""
    if not needs_package(plan.aggregation):
        return BUILT_IN
    return Registry(
        rules=_named(RULES_GROUP, plan.aggregation.rule, "rule"),
        server_optimizers=_named(OPTIMIZERS_GROUP, plan.aggregation.server_optimizer, "server_optimizer"),
    )


def _named(group: str, name: str, field: str) -> dict[str, Installed[Any]]:
    entry = extensions(group).get(name)
    if entry is None:
        return {}
    try:
        made = entry.load()
    except CannotLoad as error:
        raise PlanError(f"aggregation.{field}: {error}") from None
    lacking = [part for part in _PARTS[field] if not hasattr(made, part)]
    if isinstance(made, type) or lacking:
        what = "a class, where an object of it is wanted" if isinstance(made, type) else f"without {lacking[0]}"
        raise PlanError(f"aggregation.{field}: {name} cannot be used: its entry point gives {what}")
    return {name: Installed(str(getattr(made, "version", entry.version)), made)}
