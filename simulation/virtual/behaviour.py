"""How simulated devices behave: how fast they train, which vanish, which finish only part of the work.

A simple model of probabilities and speeds. Every draw is a hash of (seed, what, device, round) alone, so round 7 of a
device is the same whatever happened before and whoever else takes part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from numbers import Real

from client_sdk.chance import blake2b_word, labelled, normal_of, unit

EXCHANGES = 5
"""Exchanges of a secure round."""
_SURELY_S = 1e-6
"""Seconds before the deadline at which a report must arrive: closer times would depend on rounding."""


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """The habits of a class of devices. ValueError for numbers out of range.

    ``Behaviour()`` is an ideal fleet: equally fast devices that never fail, so that only the algorithm matters.
    """

    dropout: float = 0.0
    """Probability that a selected device vanishes before it reports, in each round anew; in a secure round, before one
    of the five exchanges, each alike. 0 to 1."""
    stragglers: float = 0.0
    """Probability that a device finishes only part of its task in a round: in the time of the whole task it does a
    fraction of its steps drawn uniformly, at least one (the system heterogeneity of FedProx, Li et al. 2020,
    arXiv:1812.06127, section 5.2). The plan decides about such work: ``aggregation.partial``. 0 to 1."""
    straggler_share: float = 0.0
    """Stragglers by an exact number in place of a probability: in each round this share of the selected devices of the
    class, rounded to the nearest device, finishes only part of its task (rounded up to whole steps), as in the
    experiments of FedProx (0, 0.5 and 0.9 there). Not together with ``stragglers``. 0 to 1."""
    step_s: float = 0.05
    """Median virtual seconds that one optimizer step takes. Above 0."""
    speed_sigma: float = 0.0
    """Spread of speed between devices: seconds per step are ``step_s * exp(speed_sigma * N(0, 1))``, one draw for each
    device's life. 0: all alike; 1: the slowest of a hundred is about ten times slower than the median. 0 to 5."""
    jitter_sigma: float = 0.0
    """Additional spread from round to round, of the same form. 0 to 5."""
    network_s: float = 2.0
    """Virtual seconds to fetch a checkpoint and to send an update, half each; in a secure round also of each exchange
    after the first. From 0."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ValueError(f"{field.name}={value!r} must be a number")
        for name in ("dropout", "stragglers", "straggler_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)} is a probability or a share: from 0 to 1")
        if self.stragglers and self.straggler_share:
            raise ValueError("stragglers= is a probability and straggler_share= an exact share: give one of them")
        for name in ("speed_sigma", "jitter_sigma"):
            if not 0.0 <= getattr(self, name) <= 5.0:
                raise ValueError(f"{name}={getattr(self, name)} must be from 0 (all alike) to 5")
        if not (math.isfinite(self.step_s) and self.step_s > 0):
            raise ValueError(f"step_s={self.step_s} must be above 0 seconds")
        if not (math.isfinite(self.network_s) and self.network_s >= 0):
            raise ValueError(f"network_s={self.network_s} must be 0 seconds or more")


@dataclass(frozen=True, slots=True)
class Conduct:
    """The behaviour of one device in one round."""

    step_s: float
    """Virtual seconds per optimizer step."""
    network_s: float
    vanishes: bool
    share: float
    """The part of the task's steps that it finishes: 1, or less for a straggler."""
    exchange: int = 0
    """Before which of the five exchanges of a secure round it vanishes, 0 to 4; 0: before it has trained."""

    def trains(self, *, secure: bool) -> bool:
        """Whether it trains in a round of this kind: it stays, or vanishes later than that."""
        return not self.vanishes or (secure and self.exchange > 0)


class Habits:
    """Behaviour by class of device: ``conducts(cohort, round)``.

    ``behaviour``: one for all, or one for each class; ``class_of``: device -> its class.
    """

    def __init__(
        self, behaviour: Behaviour | Mapping[str, Behaviour], class_of: Callable[[str], str], seed: int
    ) -> None:
        self._one = behaviour if isinstance(behaviour, Behaviour) else None
        self._classes = {} if isinstance(behaviour, Behaviour) else dict(behaviour)
        self._class_of = class_of
        self._seed = seed

    @property
    def by_share(self) -> bool:
        """Whether a device's conduct depends on who else is selected: see ``Behaviour.straggler_share``."""
        known = self._classes.values() if self._one is None else (self._one,)
        return any(own.straggler_share for own in known)

    def conducts(self, cohort: Collection[str], round: int) -> dict[str, Conduct]:
        """Returns the behaviour of each selected device in this round. ValueError where the class of one has none."""
        behaviours = {device: self._of(device) for device in cohort}
        slow = self._stragglers(behaviours, round)
        return {device: self._conduct(device, own, device in slow, round) for device, own in behaviours.items()}

    def _of(self, device: str) -> Behaviour:
        own = self._one or self._classes.get(self._class_of(device))
        if own is None:
            known = ", ".join(sorted(self._classes))
            raise ValueError(f"no behaviour is given for the class {self._class_of(device)!r}; given are: {known}")
        return own

    def _stragglers(self, behaviours: Mapping[str, Behaviour], round: int) -> set[str]:
        """The devices that finish only part of their task: by chance each, or an exact share of those of a class: the
        ones with the smallest draws."""
        drawn = {
            device: self.unit("straggles", device, round)
            for device, own in behaviours.items()
            if own.stragglers or own.straggler_share
        }
        found = {device for device, chance in drawn.items() if chance < behaviours[device].stragglers}
        shared: dict[str, list[str]] = {}
        for device in drawn:
            if behaviours[device].straggler_share:
                shared.setdefault("" if self._one else self._class_of(device), []).append(device)
        for devices in shared.values():
            count = math.floor(behaviours[devices[0]].straggler_share * len(devices) + 0.5)
            found.update(sorted(devices, key=lambda device: (drawn[device], device))[:count])
        return found

    def _conduct(self, device: str, own: Behaviour, slow: bool, round: int) -> Conduct:
        spread = 0.0
        if own.speed_sigma:
            spread += own.speed_sigma * self._normal("speed", device, 0)
        if own.jitter_sigma:
            spread += own.jitter_sigma * self._normal("jitter", device, round)
        vanishes = bool(own.dropout) and self.unit("vanishes", device, round) < own.dropout
        return Conduct(
            step_s=own.step_s * math.exp(spread),
            network_s=own.network_s,
            vanishes=vanishes,
            exchange=int(EXCHANGES * self.unit("exchange", device, round)) if vanishes else 0,
            share=self.unit("share", device, round) if slow else 1.0,
        )

    def unit(self, what: str, device: str, round: int) -> float:
        """Uniform on [0, 1): the first 53 bits of a hash."""
        return unit(blake2b_word(labelled("behaviour", what, self._seed, device, round)))

    def _normal(self, what: str, device: str, round: int) -> float:
        return normal_of(self.unit(what, device, round))


def work_done(conduct: Conduct, planned: int, left_s: float, budget_s: float | None) -> tuple[int, float]:
    """Returns (the number of planned steps that a device does, the virtual seconds for which it trains) in its time:
    the task's budget, and the time until the report is due."""
    steps, step_s = planned, conduct.step_s
    if conduct.share < 1.0:
        steps = max(1, math.ceil(conduct.share * planned))
        step_s *= planned / steps
    most = math.ceil((left_s - conduct.network_s - _SURELY_S) / step_s) - 1
    if budget_s is not None:
        most = min(most, math.floor(budget_s / step_s + 1e-9))
    steps = max(0, min(steps, most))
    return steps, steps * step_s
