"""Numbers that a plan sets for a rule or a server optimizer: how each is declared and how a plan's values are checked.

A declaration is data, so a mistake in a plan is one sentence that names the parameter, its range and its value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

Settings = Mapping[str, float]
"""Every declared parameter with its value: the plan's, or the default."""


class ExtensionError(ValueError):
    """A rule or a server optimizer of a plan is missing, or does not support what the plan asks for: one sentence."""


@contextmanager
def failures(what: str, made: object) -> Iterator[None]:
    """Raises an error inside as an ExtensionError, and one where ``made`` itself has changed: it serves all runs and
    replicas, and a run that goes on later would have other bits. A lack of memory is the machine's, and passes."""
    before = dict(getattr(made, "__dict__", {}))
    try:
        yield
    except (ExtensionError, MemoryError):
        raise
    except Exception as error:
        raise ExtensionError(f"the {what} failed: {type(error).__name__}: {error}") from error
    after = getattr(made, "__dict__", {})
    if changed := [name for name, one in before.items() if after.get(name, before) is not one]:
        raise ExtensionError(f"the {what} has changed its own {changed[0]}: it must keep nothing itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One number. A default never changes under the same version: plans that leave the number out depend on it."""

    meaning: str
    """For people, in the reference of plans."""
    default: float | None = None
    """The value where the plan sets none; None: the plan must set one."""
    least: float = -math.inf
    below: float = math.inf
    """Accepted values: ``least <= value < below``."""
    whole: bool = False
    """Whether only whole numbers are accepted."""

    @property
    def range(self) -> str:
        """The accepted values, as text."""
        bounds = []
        if self.least > -math.inf:
            bounds.append(f"from {self.least:g}")
        if self.below < math.inf:
            bounds.append(f"below {self.below:g}")
        return ("whole, " if self.whole else "") + (" and ".join(bounds) or "any finite number")

    def takes(self, value: float) -> bool:
        """Whether ``value`` is in range."""
        fits = math.isfinite(value) and self.least <= value < self.below
        return fits and (not self.whole or value == math.floor(value))


def settings(what: str, field: str, declared: Mapping[str, Parameter], given: Mapping[str, float]) -> Settings:
    """All declared parameters with their values. ExtensionError for one that is unknown, missing or out of range.

    ``what``: whose parameters they are; ``field``: where the plan sets them.
    """
    for name, value in given.items():
        parameter = declared.get(name)
        if parameter is None:
            known = ", ".join(declared) or "none"
            raise ExtensionError(f"{field}: {what} has no parameter {name!r}; it has {known}")
        if not parameter.takes(value):
            raise ExtensionError(f"{field}: {name} ({value:g}) of {what} must be {parameter.range}")
    found: dict[str, float] = {}
    for name, parameter in declared.items():
        default = parameter.default
        if name not in given and default is None:
            raise ExtensionError(f"{field}: {what} needs {name}, a number {parameter.range}: {parameter.meaning}")
        found[name] = float(given.get(name, default if default is not None else math.nan))
    return found
