"""The plan's section ``[schedule]``: how rates change from one version of the model to the next.

A rate of the plan is multiplied by a factor that depends on the version that a round begins with, so an abandoned round
changes none. The coordinator evaluates it and sends the result in the task of the assignment. Factors are computed in
decimal arithmetic of 40 digits and the rate is rounded to float32, so every machine gets the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator

from client_sdk.protocol.devices import Task
from coordinator.engine.plan_section import Section

if TYPE_CHECKING:
    from coordinator.engine.plan import Plan

_PI = Decimal("3.14159265358979323846264338327950288419716939937510")
_MOST = 1000.0
"""The largest rate that a plan may set."""


class Curve(Section):
    """The factor of one rate by version. The first versions may warm up; from then on versions are counted from 0."""

    shape: Literal["cosine", "linear", "steps"] = "cosine"
    """*cosine* (Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts) and *linear* fall from 1 to ``last``
    over ``rounds`` versions, and stay there. *steps*: times ``factor`` after each ``every`` versions; exponential with
    ``every = 1``."""
    last: float = Field(default=0.01, ge=0, le=1000, allow_inf_nan=False)
    """*cosine*, *linear*: the factor at the end. It may be above 1."""
    rounds: int | None = Field(default=None, ge=1, le=10_000_000)
    """*cosine*, *linear*: after so many versions ``last`` is reached. None: with the end of ``finish.rounds``."""
    factor: float = Field(default=0.1, gt=0, le=1000, allow_inf_nan=False)
    """*steps*: by what the rate is multiplied."""
    every: int = Field(default=1, ge=1, le=10_000_000)
    """*steps*: after how many versions."""
    warmup: int = Field(default=0, ge=0, le=1_000_000)
    """So many first versions have the factors 1/(warmup + 1), 2/(warmup + 1) and so on (Goyal et al. 2017,
    arXiv:1706.02677, section 2.2)."""

    @model_validator(mode="after")
    def _consistent(self) -> Curve:
        unused = {"factor", "every"} if self.shape != "steps" else {"last", "rounds"}
        defaults = {name: Curve.model_fields[name].default for name in sorted(unused)}
        if given := [name for name, default in defaults.items() if getattr(self, name) != default]:
            raise ValueError(f'the shape "{self.shape}" takes no {" and no ".join(given)}')
        return self

    def rate(self, base: float, version: int, rounds: int) -> float:
        """``base`` times the factor for rounds that begin with this version, rounded to float32; ``rounds``: those of
        the run."""
        return _rate(self, base, version, rounds)

    def rates(self, base: float, rounds: int) -> list[float]:
        """Those of the first round, of the first one after the warmup, and of the last one: no other is larger than
        all, or smaller."""
        return [self.rate(base, version, rounds) for version in (0, self.warmup, rounds - 1)]


@lru_cache(maxsize=4096)
def _rate(curve: Curve, base: float, version: int, rounds: int) -> float:
    with localcontext(Context(prec=40, traps=[])), np.errstate(over="ignore"):
        return float(np.float32(float(Decimal(base) * _factor(curve, version, rounds))))


def _factor(curve: Curve, version: int, rounds: int) -> Decimal:
    if version < curve.warmup:
        return Decimal(version + 1) / (curve.warmup + 1)
    done = version - curve.warmup
    if curve.shape == "steps":
        return Decimal(curve.factor) ** (done // curve.every)
    length = curve.rounds or max(1, rounds - curve.warmup)
    part = Decimal(min(done, length)) / length
    if curve.shape == "cosine" and part < 1:  # at 1 the series would leave a rest
        part = (1 - _cos(part * _PI)) / 2
    return 1 + (Decimal(curve.last) - 1) * part


def _cos(x: Decimal) -> Decimal:
    """By its series; x from 0 to pi."""
    total = term = Decimal(1)
    for k in range(2, 60, 2):
        term *= -x * x / (k * (k - 1))
        total += term
    return total


class Schedule(Section):
    """How rates change from one version of the model to the next. Rounds of a datacenter have rates of their own.

    A rate that is not named here stays as the plan has it."""

    learning_rate: Curve | None = None
    """Of ``task.learning_rate``: the devices' step size. ``learning_rate = { shape = "cosine", last = 0.1 }``"""
    mu: Curve | None = None
    """Of ``task.mu``, FedProx's proximal coefficient."""
    server_learning_rate: Curve | None = None
    """Of ``aggregation.server_learning_rate``. ``server_learning_rate = { shape = "steps", factor = 0.5, every = 20 }``
    """

    def against(self, plan: Plan) -> Iterator[str]:
        if self.mu is not None and not plan.task.mu:
            yield "schedule.mu has nothing to change: set task.mu above 0"
        for name, curve, base in self._curves(plan):
            rounds = plan.finish.rounds
            if curve.warmup >= rounds:
                yield f"schedule.{name}.warmup ({curve.warmup}) is not over when the run ends, after {rounds} rounds"
            rates = curve.rates(base, rounds)
            if max(rates) > _MOST:
                yield f"schedule.{name} reaches {max(rates):g}: the most is {_MOST:g}"
            if name != "mu" and min(rates) <= 0:
                yield f"schedule.{name} reaches 0 before the run ends, and nothing would be learned from then on"

    def said(self, plan: Plan) -> str:
        """The rates of the first and of the last round, for people."""
        rounds = plan.finish.rounds
        found = (
            (name, *(curve.rate(base, at, rounds) for at in (0, rounds - 1)))
            for name, curve, base in self._curves(plan)
        )
        return ", ".join(f"{name} {first:g} in round 1, {last:g} in round {rounds}" for name, first, last in found)

    def task(self, plan: Plan, version: int) -> Task:
        """The task of a round that begins with this version."""
        changed = {
            name: curve.rate(base, version, plan.finish.rounds)
            for name, curve, base in self._curves(plan)
            if name != "server_learning_rate"
        }
        return plan.task.model_copy(update=changed)

    def _curves(self, plan: Plan) -> Iterator[tuple[str, Curve, float]]:
        of_all = (
            ("learning_rate", self.learning_rate, plan.task.learning_rate),
            ("mu", self.mu, plan.task.mu),
            ("server_learning_rate", self.server_learning_rate, plan.aggregation.server_learning_rate),
        )
        return ((name, curve, base) for name, curve, base in of_all if curve is not None)
