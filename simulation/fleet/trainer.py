"""One device's trainer: the learner's training, with the device's habits.

The training is real; the habits decide only when it ends and whether it is reported.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import Any, TypeVar

import httpx2

from client_sdk.chance import labelled, sha256_word, unit
from client_sdk.data import Examples
from client_sdk.device.strategies import DeviceStrategy, Local
from client_sdk.http.client import Notice
from client_sdk.learners import Catalogue, LearnerTrainer
from client_sdk.protocol.devices import Assignment
from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import FIVE_EXCHANGES, Stage
from client_sdk.tensors import Tensors
from client_sdk.update import Update

# ------------------------------------------------------------ habits
# The fleet's behaviour, drawn from a seed: which devices are slow, vanish, or send too late.
#
# Every draw is a hash of (seed, what, device, round), so a device behaves alike in a round, independent of its past.


T = TypeVar("T")
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
            exchange = FIVE_EXCHANGES[int(len(FIVE_EXCHANGES) * self._draw("exchange", device, round))]
            away = 1.0 + self._draw("away", device, round)
            return FleetConduct(slowness=slowness, vanishes=True, exchange=exchange, away=away)
        return FleetConduct(slowness=slowness, late=self._draw("late", device, round) < self.late)

    def _draw(self, what: str, device: int, round: int) -> float:
        """A number from [0, 1): the first 53 bits of a SHA-256."""
        return unit(sha256_word(labelled("habits", what, self.seed, device, round)))


# ------------------------------------------------------------ trainer


LONGEST_HOLD = 2.0
"""A late device waits for the round's end for at most so many round durations: it may never observe the end."""


_MESSAGE = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", Route.SECURE_MESSAGE) + "$")


class Vanished(BaseException):
    """The device stops as after a power loss, without any message. Not an Exception, since no code of the device may
    handle it."""

    def __init__(self, away: float) -> None:
        super().__init__()
        self.away = away
        """Round durations until it returns."""


class VanishesInExchanges:
    """A device that vanishes in an exchange of a secure round: it has stored its message, and is gone before it sends
    it.

    An observer of the device's HTTP requests, so that each of the five exchanges is cut alike, from outside the SDK.
    It is called with each request of device number ``number``, before it is sent. Raises Vanished, at most once a
    round.
    """

    def __init__(self, number: int, habits: FleetHabits) -> None:
        self._number = number
        self._habits = habits
        self._vanished_in: tuple[str, str] | None = None

    def __call__(self, request: httpx2.Request) -> None:
        found = _MESSAGE.search(request.url.path)
        if found is None or request.method != "PUT":
            return
        this_round = (found["run"], found["round"])
        conduct = self._habits.conduct(self._number, int(found["round"]))
        if conduct.vanishes and conduct.exchange == found["stage"] and self._vanished_in != this_round:
            self._vanished_in = this_round
            raise Vanished(conduct.away)


FIRST_GUESS_S = 4.0
"""The assumed duration of a round before one was observed."""
_LOOK_S = 0.1


class RoundTimes:
    """Estimates which rounds are over, and how long a round takes, from the events of one process's devices, which
    share it. It sends no requests. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._newest: dict[str, int] = {}
        self._over: dict[str, int] = {}
        self._opened_at: dict[str, float] = {}
        self._round_s = FIRST_GUESS_S

    @property
    def round_s(self) -> float:
        """Seconds between the starts of the last two rounds."""
        return self._round_s

    def note(self, notice: Notice) -> None:
        """Learn from an event of a device: work in round n shows that earlier rounds are over, a refusal in round n
        that n is over."""
        run, number = notice.run, notice.round
        if run is None or number is None:
            return
        with self._lock:
            if notice.kind == "assigned" and number > self._newest.get(run, 0):
                now = self._clock()
                if self._newest.get(run) == number - 1:
                    self._round_s = now - self._opened_at[run]
                self._newest[run], self._opened_at[run] = number, now
                self._over[run] = max(number - 1, self._over.get(run, 0))
            elif notice.kind in ("refused", "dropped"):
                self._over[run] = max(number, self._over.get(run, 0))

    def is_over(self, run: str, number: int) -> bool:
        return self._over.get(run, 0) >= number

    def wait_over(self, run: str, number: int, at_most_s: float, stop: Event) -> bool:
        """Wait until the round is over. False where ``at_most_s`` passed, or ``stop`` was set, before that was
        known."""
        until = self._clock() + at_most_s
        while not self.is_over(run, number):
            if self._clock() >= until or stop.wait(_LOOK_S):
                return False
        return True


class FleetTrainer(LearnerTrainer):
    """Trains ``shard`` by one learner. ``turn`` is shared: one device of a process trains at a time."""

    def __init__(
        self,
        number: int,
        shard: Examples,
        catalogue: Catalogue,
        *,
        learner: str,
        habits: FleetHabits,
        round_times: RoundTimes,
        turn: Lock,
        stop: Event,
    ) -> None:
        super().__init__(catalogue, shard, seeds=True)
        self._number = number
        self._learner = learner
        self._habits = habits
        self._round_times = round_times
        self._turn = turn
        self._stop = stop
        self._vanished_in: tuple[str, int] | None = None

    @property
    def learners(self) -> dict[str, str]:
        return {self._learner: super().learners[self._learner]}

    def train(self, assignment: Assignment, checkpoint: Tensors, device: str, deadline: Callable[[], float]) -> Update:
        """Train when it is this device's turn, then wait as its habits require. Raises Vanished, at most once a
        round; in a secure round it vanishes later, in an exchange (``VanishesInExchanges``)."""
        return self._in_turn(assignment, partial(super().train, assignment, checkpoint, device, deadline))

    def train_by(self, half: DeviceStrategy, assignment: Assignment, *rest: Any) -> Local:
        """Trains as ``train`` does, by this half of the strategy."""
        return self._in_turn(assignment, partial(super().train_by, half, assignment, *rest))

    def _in_turn(self, assignment: Assignment, train: Callable[[], T]) -> T:
        began = time.monotonic()
        this_round = (assignment.run, assignment.round)
        conduct = self._habits.conduct(self._number, assignment.round)
        if conduct.vanishes and assignment.secure is None and self._vanished_in != this_round:
            self._vanished_in = this_round
            raise Vanished(conduct.away)
        with self._turn:
            made = train()
        if conduct.slowness > 1.0:
            self._stop.wait((conduct.slowness - 1.0) * (time.monotonic() - began))
        if conduct.late:
            self._round_times.wait_over(*this_round, LONGEST_HOLD * self._round_times.round_s, self._stop)
        return made
