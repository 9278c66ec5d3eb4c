"""What noise is really worth: canaries whose part in a simulated run is looked for in its models.

As one-shot estimation (Andrew et al. 2023, arXiv:2302.03098), in the setting that is worst for the run: all of a small
cohort are canaries, each is in every round, and each sends a direction of its own, drawn at random, as long as the clip
lets through. Its sign changes from round to round, so that noise that does not is found. What is left of a canary in
the models is the sum of the rounds' steps along its direction, with these signs. Along directions that nobody has sent
the same sum is the noise alone. Both are normal, and how far they lie apart is the epsilon of a Gaussian mechanism
(Balle, Wang 2018, arXiv:1805.06530, theorem 8), with an interval from the spread of so many samples.

Where noise is correlated over rounds, the steps are what C g + z becomes by the inverse of the strategy's matrix C
(``client_sdk.privacy.correlated``), so whoever has the models has C g + z. A canary that was in rounds with the signs u
is C u times its direction there, under independent noise z: what is left of it is the sum of the rows along its
direction, with the weights C u / |C u|. Of the canaries that are in the earliest rounds, and as often as they may, most
have one sign in all rounds, which is worst for sound noise, and one of four has signs that change.

Noise may lack in a part of a model. So the same is done in each of 16 parts of it, and the lower end is the highest of
all that were found, whose confidences share the stated one: the whole has a half of the doubt, the parts the other.

The claim holds where the interval's lower end is below it. Nothing is assumed of how the noise is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.privacy.accounting import epsilon_of
from client_sdk.privacy.correlated import Strategy
from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.engine.plan import Plan
from coordinator.engine.privacy import Privacy
from simulation.simulator.simulate import simulate

MOST_ROUNDS = 8
"""Rounds of an audit at most, an even number: the claim is that of so many."""
FEWEST_VALUES = 50_000
_PARTS = 16
_TURNS = 4
"""One canary of so many changes its sign, where noise is correlated."""
_UNITS = 40
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

    def __init__(self, directions: NDArray[np.float32], clip: float, apart: int, *, all_turn: bool) -> None:
        self._directions, self._length, self._apart, self._all_turn = directions, 10 * clip, apart, all_turn

    def signs(self, canary: int, rounds: int) -> list[int]:
        """Of a canary that is in the first round, and in each that it may be in: 0 in the others."""
        turns = [self.sign(canary, number) for number in range(1, rounds + 1)]
        return [sign if place % self._apart == 0 else 0 for place, sign in enumerate(turns)]

    def sign(self, canary: int, round: int) -> int:
        turns = self._all_turn or canary % _TURNS == 0
        return -1 if turns and (round - 1) // self._apart % 2 else 1

    def train(self, model: Tensors, data: Any, task: Task, *, round: int, **others: Any) -> Update:
        canary = int(data[0][0, 0])
        length = np.float32(self.sign(canary, round) * self._length)
        return Update({"w": length * self._directions[canary]}, examples=1, work=Work(steps=1))


def audit(plan: Plan, *, canaries: int = 400, seed: int = 0, confidence: float = 0.95) -> Audited:
    """Audits the noise and the clip of a plan with ``[privacy]``. ValueError for a plan without, or bad numbers."""
    if plan.privacy is None:
        raise ValueError("the plan has no section [privacy]")
    if plan.privacy.mechanism == "distributed":
        raise ValueError("an audit plays plain rounds, and this plan's noise is added by devices of secure ones")
    if not 16 <= canaries <= 2000 or not 0.5 < confidence < 1:
        raise ValueError("an audit takes 16 to 2,000 canaries, and a confidence above 0.5 and below 1")
    tight = _tight(plan, plan.privacy, canaries)
    privacy, rounds, apart = tight.privacy or plan.privacy, tight.finish.rounds, tight.cohort.apart or 1
    clients, rho = canaries * apart, privacy.rho(tight)
    values = max(FEWEST_VALUES, math.ceil(_CROSSTALK * 2 * rho * clients))
    directions = _directions(clients + canaries, values, seed)
    longest = max(privacy.clip, privacy.bounds_of_clip[1])
    learner = Canaries(directions, longest, apart, all_turn=not privacy.correlated)
    history = simulate(
        tight,
        learner,
        {f"canary-{k}": (np.full((1, 1), k, np.float32), np.zeros(1)) for k in range(clients)},
        init={"w": np.zeros(values, np.float32)},
        seed=seed,
        keep_checkpoints="all",
        progress=False,
    )
    models = np.array([history.checkpoint(version)["w"] for version in range(rounds + 1)], np.float64)
    matrix = np.linalg.inv(_noise_of(privacy.strategy(tight), rounds))
    bodies: list[Any] = [row.body for row in history._store.rounds(history.run)]
    clips = [privacy.clip, *(body.get("clip_after", privacy.clip) for body in bodies)]
    steps = np.diff(models, axis=0) / np.array(clips[:rounds])[:, None]
    released = matrix @ steps * canaries  # C g + z
    early = [int(item.device.split("-")[1]) for item in history._store.contributions(history.run, 1)]
    kinds = [[k for k in early if learner.sign(k, apart + 1) == sign] for sign in (-1, 1)]
    kinds = [sent for sent in kinds if len(sent) > 1]
    bounds, whole = list[float](), list[tuple[float, float, float]]()
    for sent in kinds:
        seen = matrix @ learner.signs(sent[0], rounds)
        left = seen @ released / np.linalg.norm(seen)
        for part in (slice(None), *(slice(at, at + values // _PARTS) for at in range(0, values, values // _PARTS))):
            traces = directions[:, part].astype(np.float64) @ left[part]
            doubt = (1 - confidence) / len(kinds) / (2 if part == slice(None) else 2 * (_PARTS + 1))
            low, estimate, high = _epsilons(traces[sent], traces[clients:], privacy.delta, 1 - doubt)
            bounds.append(low)
            whole += [(estimate, low, high)] if part == slice(None) else []
    estimate, _, high = max(whole)
    return Audited(
        rounds=rounds,
        canaries=canaries,
        values=values,
        claimed=epsilon_of(rho, privacy.delta),
        delta=privacy.delta,
        low=max(bounds),
        estimate=estimate,
        high=high,
        confidence=confidence,
    )


def _tight(plan: Plan, privacy: Privacy, canaries: int) -> Plan:
    """The plan's noise and clip, in cohorts of canaries alone. Where noise is correlated, half of them rest while the
    others are in a round."""
    rounds = max(2, min(MOST_ROUNDS, privacy.participations(plan)) // 2 * 2)
    apart = 2 if privacy.correlated and (plan.cohort.apart or 1) > 1 else 1
    rests = {"apart": apart} if apart > 1 else {}
    return Plan.parse(
        {
            "name": "audit",
            "task": {"learner": plan.task.learner, "batch_size": 1},
            "cohort": {
                "select": canaries, "goal": canaries, "quorum": 1.0, "collect_s": 3600, "most_rounds": rounds, **rests
            },
            "aggregation": {"weighting": "equal"},
            "finish": {"rounds": rounds * apart},
            "privacy": {
                "mechanism": privacy.mechanism, "clip": privacy.clip, "noise": privacy.multiplier(plan),
                "delta": privacy.delta, **({} if privacy.adapt is None else {"adapt": privacy.adapt.model_dump()}),
            },
        }
    )  # fmt: skip


def _noise_of(strategy: Strategy, steps: int) -> NDArray[np.float64]:
    """The inverse of C: row t is w_t, of C w = z, by what each z_s adds to it."""
    one = np.eye(steps, dtype=np.int64) << _UNITS
    noise = [strategy.noise(step, lambda drawn, level: one[drawn - 1]) for step in range(1, steps + 1)]
    return np.array(noise) / 2.0**_UNITS


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
