"""The fleet's behaviour, drawn from a seed: which devices are slow, vanish, or send too late.

Every draw is a hash of (seed, what, device, round), so a device behaves alike in a round, independent of its past.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from client_sdk.chance import labelled, sha256_word, unit
from client_sdk.protocol.secure import Stage

STAGES: tuple[Stage, ...] = get_args(Stage)
SLOWEST = 4.0
"""A slow device takes up to so many times its usual time."""


@dataclass(frozen=True, kw_only=True)
class FleetConduct:
    """What one device does in one round."""

    slowness: float = 1.0
    """How many times as long as usual it takes to train."""
    vanishes: bool = False
    """It stops in the middle, as with an empty battery, and returns in a later round."""
    exchange: Stage = "advertise"
    """In a secure round it vanishes before it sends its message of this exchange."""
    away: float = 0.0
    """How long it is away then, in round durations."""
    late: bool = False
    """It holds the finished update until the round is over, and sends it then."""


@dataclass(frozen=True, kw_only=True)
class FleetHabits:
    """Shares of the fleet, each from 0 to 1. ValueError for other values."""

    slow: float = 0.1
    """Of devices: a slow device, such as an old phone, is slow in every round."""
    vanish: float = 0.05
    """Of a round's devices. In secure rounds they are spread evenly over the exchanges."""
    late: float = 0.03
    """Of a round's devices that do not vanish."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("slow", "vanish", "late"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)} is a share of devices: from 0 to 1")

    def conduct(self, device: int, round: int) -> FleetConduct:
        """What device number ``device`` does in this round."""
        is_slow = self._draw("slow", device, 0) < self.slow
        slowness = 1.5 + (SLOWEST - 1.5) * self._draw("slowness", device, round) if is_slow else 1.0
        if self._draw("vanish", device, round) < self.vanish:
            exchange = STAGES[int(len(STAGES) * self._draw("exchange", device, round))]
            away = 1.0 + self._draw("away", device, round)
            return FleetConduct(slowness=slowness, vanishes=True, exchange=exchange, away=away)
        return FleetConduct(slowness=slowness, late=self._draw("late", device, round) < self.late)

    def _draw(self, what: str, device: int, round: int) -> float:
        """A number from [0, 1): the first 53 bits of a SHA-256."""
        return unit(sha256_word(labelled("habits", what, self.seed, device, round)))
