"""How simulated devices behave: how fast they train and send, when they are available, which vanish, which finish only
part of the work.

A model of probabilities and speeds. Every draw is a hash of (seed, what, device, round or day) alone, so round 7 of a
device is the same whatever happened before and whoever else takes part, and nothing is kept for a device that nobody
selects.

The numbers of ``PHONES`` are those of the literature:

=================== ================================================================================================
6 to 10 % drop out  Bonawitz et al. 2019, "Towards Federated Learning at Scale: System Design", arXiv:1902.01046,
                    section 9: more of them by day, when people use their phones
4 to 1 over the day the same section: four times as many devices take part at night as by day, in one time zone
log-normal speeds   FedScale (Lai et al. 2022, arXiv:2105.11367) and Yang et al. 2021, arXiv:2006.06983: phones
                    differ by an order of magnitude. With sigma = 0.6 the slowest of a hundred takes four times as
                    long as the median
=================== ================================================================================================

Availability is a window a day. Let s(t) be the share that is available at the hour t, a cosine from ``available`` at
``best_hour`` to ``available / day_ratio`` twelve hours later. A device draws u uniformly from [0, 1) for each day,
which begins at the worst hour, and is available while u < s(t): one interval around the best hour. So the share is s(t)
at each time, and a device whose interval ends before it has reported vanishes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from numbers import Real
from typing import Literal

from client_sdk.chance import blake2b_word, labelled, normal_of, unit

EXCHANGES = 5
"""Exchanges of a secure round."""
Phase = Literal["fetch", "train", "send"]
"""What a device of a plain round does one after another."""
_PHASES: tuple[Phase, Phase, Phase] = ("fetch", "train", "send")
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
    dropout_worst: float = 0.0
    """Probability of vanishing at the hour at which the fewest devices are available, with ``dropout`` at the best hour
    and a cosine in between. 0: ``dropout`` at each hour; else at least ``dropout``, to 1."""
    dropout_phases: tuple[float, float, float] = (0.0, 1.0, 0.0)
    """In which phase of a plain round these devices vanish: relative weights of fetching the model, training, and
    sending the update. Who vanishes while it fetches has not begun to train. Each from 0, one above 0."""
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
    """Virtual seconds to fetch a checkpoint and to send an update, half each, whatever their sizes; in a secure round
    also of each exchange after the first. From 0."""
    down_mbps: float = 0.0
    """Median megabits a second at which devices fetch the checkpoint, on top of ``network_s``. 0: in no time."""
    up_mbps: float = 0.0
    """Median megabits a second at which devices send the update. 0: in no time."""
    network_sigma: float = 0.0
    """Spread of both between devices, of the form of ``speed_sigma``; one draw for each device's life. 0 to 5."""
    available: float = 1.0
    """Share of the devices that are available at the best hour of a day. Above 0, to 1."""
    day_ratio: float = 1.0
    """How many times as many devices are available at the best hour as at the worst one. From 1: alike all day."""
    best_hour: float = 2.0
    """The hour of the day, in UTC, at which most are available; the worst is twelve hours later. 0 to below 24. Classes
    of devices in several time zones have several."""
    battery_s: float = 0.0
    """Virtual seconds for which a full battery lasts a device that trains. In each round its charge is drawn uniformly
    from (0, 1]; where that is used up before its training ends, it vanishes. 0: devices are at a charger."""

    def __post_init__(self) -> None:
        for field in fields(self):
            for value in self._numbers(field.name):
                if isinstance(value, bool) or not isinstance(value, Real):
                    raise ValueError(f"{field.name}={value!r} must be a number")
        for name in ("dropout", "dropout_worst", "stragglers", "straggler_share", "available"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)} is a probability or a share: from 0 to 1")
        if 0.0 < self.dropout_worst < self.dropout:
            raise ValueError(f"dropout_worst={self.dropout_worst} must be at least dropout={self.dropout}, or 0")
        if not self.available:
            raise ValueError("available=0: no device would ever come")
        weights = self._numbers("dropout_phases")
        if len(weights) != 3 or not all(0.0 <= one < math.inf for one in weights) or not sum(weights):
            raise ValueError(f"dropout_phases={self.dropout_phases!r} are three weights from 0, one of them above 0")
        if self.stragglers and self.straggler_share:
            raise ValueError("stragglers= is a probability and straggler_share= an exact share: give one of them")
        for name in ("speed_sigma", "jitter_sigma", "network_sigma"):
            if not 0.0 <= getattr(self, name) <= 5.0:
                raise ValueError(f"{name}={getattr(self, name)} must be from 0 (all alike) to 5")
        if not (math.isfinite(self.step_s) and self.step_s > 0):
            raise ValueError(f"step_s={self.step_s} must be above 0 seconds")
        for name, unit_of in (("network_s", " seconds"), ("battery_s", " seconds"), ("down_mbps", ""), ("up_mbps", "")):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name}={getattr(self, name)} must be 0{unit_of} or more")
        if not (math.isfinite(self.day_ratio) and self.day_ratio >= 1):
            raise ValueError(f"day_ratio={self.day_ratio} must be from 1 (alike all day)")
        if not 0.0 <= self.best_hour < 24.0:
            raise ValueError(f"best_hour={self.best_hour} is an hour of the day: from 0 to below 24")

    def _numbers(self, name: str) -> Sequence[float]:
        value = getattr(self, name)
        return value if name == "dropout_phases" and isinstance(value, tuple | list) else (value,)

    @property
    def by_day(self) -> bool:
        """Whether it depends on the hour."""
        return self.available < 1.0 or self.day_ratio > 1.0 or self.dropout_worst > 0.0

    def hours_from_worst(self, at: float) -> float:
        """Hours since the last worst hour, 0 to below 24, at ``at`` in Unix seconds: 12 is the best hour."""
        return (at / 3600.0 - self.best_hour - 12.0) % 24.0

    def share_available(self, at: float) -> float:
        """The share of the devices that is available at ``at``, in Unix seconds."""
        return self.available * (1.0 - (1.0 - 1.0 / self.day_ratio) * self._darkness(at))

    def dropout_at(self, at: float) -> float:
        """The probability of vanishing in a round that was drawn at ``at``, in Unix seconds."""
        return self.dropout + max(0.0, self.dropout_worst - self.dropout) * self._darkness(at)

    def _darkness(self, at: float) -> float:
        """0 at the best hour, 1 at the worst, a cosine in between."""
        return (1.0 + math.cos(math.tau * self.hours_from_worst(at) / 24.0)) / 2.0


PHONES = Behaviour(
    dropout=0.06,
    dropout_worst=0.10,
    dropout_phases=(0.2, 0.6, 0.2),
    speed_sigma=0.6,
    network_sigma=0.6,
    down_mbps=20.0,
    up_mbps=5.0,
    day_ratio=4.0,
)
"""Phones by the literature (see above). Their phases and the two rates of the network are round numbers of no paper."""


@dataclass(frozen=True, slots=True)
class Conduct:
    """The behaviour of one device in one round."""

    step_s: float
    """Virtual seconds per optimizer step."""
    fetch_s: float
    """Virtual seconds from its assignment until it has the model."""
    send_s: float
    """Virtual seconds from the end of its training until its report is there."""
    vanishes: bool
    share: float
    """The part of the task's steps that it finishes: 1, or less for a straggler."""
    exchange: int = 0
    """Before which of the five exchanges of a secure round it vanishes, 0 to 4; 0: before it has trained."""
    exchange_s: float = 0.0
    """Virtual seconds of an exchange of a secure round after the first."""
    phase: Phase = "train"
    """In which phase of a plain round it vanishes, where it does."""
    available_s: float = math.inf
    """Virtual seconds from its assignment until it is not available any more."""
    charge_s: float = math.inf
    """Virtual seconds of training until its battery is empty."""
    train_s: float | None = None
    """Virtual seconds of the whole task, where that was recorded; None: ``step_s`` for each step."""
    withdraws: bool = False
    """It says after its training that it will not report."""

    @property
    def network_s(self) -> float:
        """Virtual seconds on the network."""
        return self.fetch_s + self.send_s

    def stays(self, train_s: float) -> bool:
        """Whether it is still there when it has trained for so long and has sent its update."""
        return train_s <= self.charge_s and train_s + self.network_s <= self.available_s

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
        self._bits = 0.0, 0.0

    def carry(self, down_bytes: int, up_bytes: int) -> None:
        """Says how long a checkpoint and an update are, which take time where a behaviour has rates of the network."""
        self._bits = 8.0 * down_bytes, 8.0 * up_bytes

    @property
    def by_day(self) -> bool:
        """Whether anything depends on the hour of the day."""
        return any(own.by_day for own in self._known)

    def available(self, device: str, at: float) -> bool:
        """Whether the device is available at ``at``, in Unix seconds."""
        own = self._of(device)
        return not own.by_day or self._available_s(device, own, at) > 0.0

    @property
    def _known(self) -> Collection[Behaviour]:
        return self._classes.values() if self._one is None else (self._one,)

    @property
    def by_share(self) -> bool:
        """Whether a device's conduct depends on who else is selected: see ``Behaviour.straggler_share``."""
        return any(own.straggler_share for own in self._known)

    def conducts(self, cohort: Collection[str], round: int, at: float = 0.0) -> dict[str, Conduct]:
        """Returns the behaviour of each selected device in this round. ``at``: when they were drawn, in Unix seconds,
        which says the hour of the day. ValueError where the class of one has none."""
        behaviours = {device: self._of(device) for device in cohort}
        slow = self._stragglers(behaviours, round)
        return {device: self._conduct(device, own, device in slow, round, at) for device, own in behaviours.items()}

    def arrival(self, round: int) -> tuple[float, int | None]:
        """(seconds from the opening of this round until devices come, the most that come; None: all needed)."""
        return 0.0, None

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

    def _conduct(self, device: str, own: Behaviour, slow: bool, round: int, at: float) -> Conduct:
        spread = 0.0
        if own.speed_sigma:
            spread += own.speed_sigma * self._normal("speed", device, 0)
        if own.jitter_sigma:
            spread += own.jitter_sigma * self._normal("jitter", device, round)
        fetch_s, send_s = own.network_s / 2, own.network_s / 2
        if own.down_mbps or own.up_mbps:
            slower = math.exp(own.network_sigma * self._normal("network", device, 0)) if own.network_sigma else 1.0
            fetch_s += slower * self._bits[0] / (1e6 * own.down_mbps) if own.down_mbps else 0.0
            send_s += slower * self._bits[1] / (1e6 * own.up_mbps) if own.up_mbps else 0.0
        chance = own.dropout_at(at)
        vanishes = bool(chance) and self.unit("vanishes", device, round) < chance
        return Conduct(
            step_s=own.step_s * math.exp(spread),
            fetch_s=fetch_s,
            send_s=send_s,
            vanishes=vanishes,
            exchange=int(EXCHANGES * self.unit("exchange", device, round)) if vanishes else 0,
            exchange_s=own.network_s,
            phase=self._phase(device, own, round) if vanishes else "train",
            available_s=self._available_s(device, own, at) if own.by_day else math.inf,
            charge_s=own.battery_s * (1.0 - self.unit("charge", device, round)) if own.battery_s else math.inf,
            share=self.unit("share", device, round) if slow else 1.0,
        )

    def _phase(self, device: str, own: Behaviour, round: int) -> Phase:
        *edges, whole = accumulate(own.dropout_phases)
        place = whole * self.unit("phase", device, round)
        return _PHASES[sum(place >= edge for edge in edges)]

    def _available_s(self, device: str, own: Behaviour, at: float) -> float:
        """Seconds for which the device is still available at ``at``; 0: it is not; infinity: beyond the day's end."""
        since = own.hours_from_worst(at)
        share = self.unit("available", device, math.floor((at / 3600.0 - own.best_hour - 12.0) / 24.0)) / own.available
        if share < 1.0 / own.day_ratio:
            return math.inf
        if share >= 1.0:
            return 0.0
        dark = (1.0 - share) / (1.0 - 1.0 / own.day_ratio)
        half = 12.0 - 12.0 / math.pi * math.acos(2.0 * dark - 1.0)
        return 3600.0 * (12.0 + half - since) if abs(since - 12.0) < half else 0.0

    def unit(self, what: str, device: str, round: int) -> float:
        """Uniform on [0, 1): the first 53 bits of a hash."""
        return unit(blake2b_word(labelled("behaviour", what, self._seed, device, round)))

    def _normal(self, what: str, device: str, round: int) -> float:
        return normal_of(self.unit(what, device, round))


def work_done(conduct: Conduct, planned: int, left_s: float, budget_s: float | None) -> tuple[int, float]:
    """Returns (the number of planned steps that a device does, the virtual seconds for which it trains) in its time:
    the task's budget, and the time until the report is due."""
    if conduct.train_s is not None:
        return planned, conduct.train_s
    steps, step_s = planned, conduct.step_s
    if conduct.share < 1.0:
        steps = max(1, math.ceil(conduct.share * planned))
        step_s *= planned / steps
    most = math.ceil((left_s - conduct.network_s - _SURELY_S) / step_s) - 1
    if budget_s is not None:
        most = min(most, math.floor(budget_s / step_s + 1e-9))
    steps = max(0, min(steps, most))
    return steps, steps * step_s
