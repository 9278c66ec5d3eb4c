"""What noise is really worth: canaries whose part in a simulated run is looked for in its models.

As one-shot estimation (Andrew et al. 2023, arXiv:2302.03098), in the setting that is worst for the run: all of a small
cohort are canaries, each is in every round, and each sends a direction of its own, drawn at random, as long as the clip
lets through. Its sign changes from round to round, so that noise that does not is found. What is left of a canary in
the models is the sum of the rounds' steps along its direction, with these signs. Along directions that nobody has sent
the same sum is the noise alone. Both are normal, and how far they lie apart is the epsilon of a Gaussian mechanism
(Balle, Wang 2018, arXiv:1805.06530, theorem 8), with an interval from the spread of so many samples.

The claim holds where the interval's lower end is below it. Nothing is assumed of how the noise is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.privacy.accounting import epsilon_of, rho_of
from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.engine.plan import Plan
from simulation.simulator.simulate import simulate

MOST_ROUNDS = 8
"""Rounds of an audit at most, an even number: the claim is that of so many."""
FEWEST_VALUES = 50_000
_CROSSTALK = 25
"""Canaries disturb each other's sums by at most the noise over this, in variance."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The outcome of an audit. ``low`` and ``high``: of epsilon, each with the stated confidence."""

    rounds: int
    canaries: int
    values: int
    claimed: float
    delta: float
    low: float
    estimate: float
    high: float
    confidence: float

    @property
    def holds(self) -> bool:
        """Whether what was found is no proof against the claim."""
        return self.low <= self.claimed


class Canaries:
    """A learner whose update is a direction of the client's own, ten times as long as the clip, wherever that goes."""

    version = "1"

    def __init__(self, directions: NDArray[np.float32], clip: float) -> None:
        self._directions, self._length = directions, np.float32(10 * clip)

    def train(self, model: Tensors, data: Any, task: Task, *, round: int, **others: Any) -> Update:
        x, _ = data
        sign = np.float32(1 if round % 2 else -1)
        return Update({"w": sign * self._length * self._directions[int(x[0, 0])]}, examples=1, work=Work(steps=1))


def audit(plan: Plan, *, canaries: int = 400, seed: int = 0, confidence: float = 0.95) -> Audited:
    """Audits the noise and the clip of a plan with ``[privacy]``. ValueError for a plan without, or bad numbers."""
    if plan.privacy is None:
        raise ValueError("the plan has no section [privacy]")
    if plan.privacy.mechanism == "distributed":
        raise ValueError("an audit plays plain rounds, and this plan's noise is added by devices of secure ones")
    if plan.privacy.mechanism != "gaussian":
        raise ValueError(
            f'the audit takes independent noise, and privacy.mechanism is "{plan.privacy.mechanism}": audit the same '
            'clip and noise with "gaussian"'
        )
    if not 16 <= canaries <= 2000 or not 0.5 < confidence < 1:
        raise ValueError("an audit takes 16 to 2,000 canaries, and a confidence above 0.5 and below 1")
    noise, delta = plan.privacy.multiplier(plan), plan.privacy.delta
    rounds = max(2, min(MOST_ROUNDS, plan.privacy.participations(plan)) // 2 * 2)
    values = max(FEWEST_VALUES, math.ceil(_CROSSTALK * rounds * canaries / noise**2))
    directions = _directions(2 * canaries, values, seed)
    history = simulate(
        _tight(plan, noise, rounds, canaries),
        Canaries(directions, max(plan.privacy.clip, plan.privacy.bounds_of_clip[1])),
        {f"canary-{k}": (np.full((1, 1), k, np.float32), np.zeros(1)) for k in range(canaries)},
        init={"w": np.zeros(values, np.float32)},
        seed=seed,
        keep_checkpoints="all",
        progress=False,
    )
    models = [history.checkpoint(version)["w"].astype(np.float64) for version in range(rounds + 1)]
    clips = [plan.privacy.clip, *(row.clip_after or plan.privacy.clip for row in history.rounds)]
    signed = np.sum([(-1) ** t * (models[t + 1] - models[t]) / clips[t] for t in range(rounds)], axis=0)
    found = directions.astype(np.float64) @ signed * canaries
    low, estimate, high = _epsilons(found[:canaries], found[canaries:], delta, confidence)
    return Audited(
        rounds=rounds,
        canaries=canaries,
        values=values,
        claimed=epsilon_of(rho_of(noise, rounds), delta),
        delta=delta,
        low=low,
        estimate=estimate,
        high=high,
        confidence=confidence,
    )


def _tight(plan: Plan, noise: float, rounds: int, canaries: int) -> Mapping[str, Any]:
    """The plan's noise and clip, in a cohort of canaries alone."""
    clip, delta, adapt = 0.0, 0.5, None
    if plan.privacy is not None:
        clip, delta, adapt = plan.privacy.clip, plan.privacy.delta, plan.privacy.adapt
    return {
        "name": "audit",
        "task": {"batch_size": 1},
        "cohort": {"select": canaries, "goal": canaries, "quorum": 1.0, "collect_s": 3600, "most_rounds": rounds},
        "aggregation": {"weighting": "equal"},
        "finish": {"rounds": rounds},
        "privacy": {
            "clip": clip,
            "noise": noise,
            "delta": delta,
            **({} if adapt is None else {"adapt": adapt.model_dump()}),
        },
    }


def _directions(count: int, values: int, seed: int) -> NDArray[np.float32]:
    """[count, values]: of norm 1, independent."""
    drawn = np.random.default_rng(seed).standard_normal((count, values), np.float32)
    found: NDArray[np.float32] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return found


def _epsilons(
    sent: NDArray[np.float64], unsent: NDArray[np.float64], delta: float, confidence: float
) -> tuple[float, float, float]:
    """(low, estimate, high): from the gap between two normal samples in units of their common deviation."""
    gap, freedom = float(sent.mean() - unsent.mean()), sent.size + unsent.size - 2
    spread = math.sqrt(float(((sent - sent.mean()) ** 2).sum() + ((unsent - unsent.mean()) ** 2).sum()) / freedom)
    if spread == 0:
        return (math.inf,) * 3 if gap else (0.0,) * 3
    error = spread * math.sqrt(1 / sent.size + 1 / unsent.size)
    z = _NORMAL.inv_cdf(1 - (1 - confidence) / 2)  # gap and spread each take a half of what may be wrong
    wide, narrow = (spread * math.sqrt(freedom / _chi_square(freedom, side * z)) for side in (-1, 1))
    gaps = max(0.0, gap - z * error) / wide, max(0.0, gap) / spread, (max(0.0, gap) + z * error) / narrow
    low, estimate, high = (_epsilon_of_gap(one, delta) for one in gaps)
    return low, estimate, high


def _chi_square(freedom: int, z: float) -> float:
    """The quantile of chi-square at the normal deviate ``z`` (Wilson, Hilferty 1931)."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + z * math.sqrt(part)) ** 3)


def _epsilon_of_gap(gap: float, delta: float) -> float:
    """The epsilon of a Gaussian mechanism whose two outputs lie so many deviations apart."""

    def exceeds(epsilon: float) -> bool:
        above = _NORMAL.cdf(gap / 2 - epsilon / gap)
        return above - math.exp(min(700.0, epsilon)) * _NORMAL.cdf(-gap / 2 - epsilon / gap) > delta

    if gap == 0 or not exceeds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while exceeds(high) and high < 700:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return low
