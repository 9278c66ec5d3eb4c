"""The role of a tensor: a *parameter*, which training moves along gradients, or a *statistic* of the data or the
weights, such as BatchNorm's running mean, which a model keeps beside them.

An update's flat vector has the parameters first, in the order of their names, then the statistics in the order of
theirs. So what is for parameters alone (a norm, a lossy codec, a server optimizer) sees a prefix of it. A model without
statistics has the vector that it would have without roles.

A *non-negative* statistic, such as a running variance, is never committed below 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, cast

from client_sdk.tensors.manifest import FLOATING, Manifest, ManifestMismatch, named

StatisticRole = Literal["statistic", "non-negative"]
Roles = Mapping[str, StatisticRole]
"""The statistics of a model by name. The tensors that it does not name are parameters. Those of a run are the
statistics that its plan averages."""

BY_NAME: Roles = {
    "*running_mean": "statistic",
    "*running_var": "non-negative",
    "*moving_mean": "statistic",
    "*moving_var": "non-negative",
    "*moving_variance": "non-negative",
}
"""Shell patterns of names by which statistics are known where nobody says: those of PyTorch and of Keras."""


@dataclass(frozen=True)
class Layout:
    """The flat vector of an update: which tensors it has, in which order, and which of them are statistics."""

    parameters: Manifest
    """All F32, in the order of their names."""
    statistics: Manifest
    """All F32, in the order of their names."""
    non_negative: frozenset[str]
    """Which statistics are non-negative."""

    @classmethod
    def of(cls, model: Manifest, averaged: Iterable[str], roles: Roles) -> Layout:
        """The layout for the tensors of ``model`` that ``averaged`` chooses (``Manifest.select``). ManifestMismatch
        where it chooses none."""
        return cls.of_delta(model.select(averaged), roles)

    @classmethod
    def of_delta(cls, delta: Manifest, roles: Roles) -> Layout:
        """The layout of deltas, in the order of their names."""
        whole = delta.as_float32()
        return cls(
            parameters=Manifest({name: spec for name, spec in whole.items() if name not in roles}),
            statistics=Manifest({name: spec for name, spec in whole.items() if name in roles}),
            non_negative=frozenset(name for name, role in roles.items() if role == "non-negative" and name in whole),
        )

    @cached_property
    def whole(self) -> Manifest:
        """All tensors, in the vector's order."""
        return Manifest({**self.parameters, **self.statistics})

    @property
    def roles(self) -> dict[str, StatisticRole]:
        """The statistics in it."""
        return {name: "non-negative" if name in self.non_negative else "statistic" for name in self.statistics}

    @cached_property
    def elements(self) -> int:
        """Values of the vector."""
        return self.whole.elements


def digest_of(model: Manifest, roles: Roles) -> str:
    """SHA-256, in hexadecimal, over (name, dtype, shape, role) of all tensors in the order of their names: what a
    device agrees to. Empty where all are parameters: names, dtypes and shapes are those of the checkpoint, which has a
    digest of its own."""
    if not roles:
        return ""
    rows = [[name, spec.dtype, list(spec.shape), roles.get(name, "parameter")] for name, spec in sorted(model.items())]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def by_name(model: Manifest) -> dict[str, StatisticRole]:
    """The statistics that the names of a model's floating-point tensors tell."""
    found = {name: role for pattern, role in BY_NAME.items() for name in _floating(model) if fnmatchcase(name, pattern)}
    return dict(sorted(found.items()))


def stated(model: Manifest, said: Mapping[str, StatisticRole]) -> dict[str, StatisticRole]:
    """The statistics of a model of which somebody says roles by names, or by shell patterns of names, as ``named``
    takes them. Where both roles are said of a tensor, it is non-negative. ManifestMismatch for a pattern that matches
    no floating-point tensor, and as ``as_roles``."""
    found: dict[str, StatisticRole] = {}
    for pattern, role in as_roles(said).items():
        for name in named(_floating(model), (pattern,)):
            found[name] = "non-negative" if "non-negative" in (role, found.get(name)) else "statistic"
    return dict(sorted(found.items()))


def as_roles(said: Any) -> Roles:
    """What a user or a learner says of roles, as it is. ManifestMismatch unless it maps texts to roles: an unknown role
    would make a running variance a plain statistic, which may be committed below 0."""
    if not isinstance(said, Mapping):
        raise ManifestMismatch(
            f"a {type(said).__name__} says no roles: give a dict of names and roles, such as "
            '{"*.mean": "statistic", "*.var": "non-negative"}'
        )
    for name, role in said.items():
        if not isinstance(name, str) or role not in ("statistic", "non-negative"):
            raise ManifestMismatch(f"{name!r}: {role!r} is no name and role; roles are 'statistic' and 'non-negative'")
    return cast("Roles", said)


def _floating(model: Manifest) -> list[str]:
    return [name for name, spec in model.items() if spec.dtype in FLOATING]


def doubted(model: Manifest, roles: Roles) -> str:
    """A sentence where a learner's ``roles`` leave out tensors whose names are those of statistics; empty where they do
    not."""
    left = [name for name in by_name(model) if name not in roles]
    if not left:
        return ""
    more = f" and {len(left) - 4} more" if len(left) > 4 else ""
    return (
        f"The learner's roles() leave out {', '.join(left[:4])}{more}, named as statistics are: server optimizers and "
        "clipping will treat them as parameters."
    )


def told(roles: Roles, why: str = "By their names") -> str:
    """A sentence for people about roles that nobody has said."""
    names = [name + (" (never below 0)" if role == "non-negative" else "") for name, role in sorted(roles.items())]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{why} these tensors are statistics, not parameters: {', '.join(names[:4])}{more}."
