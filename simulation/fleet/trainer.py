"""One device's trainer: the learner's own work, with the device's habits put around it.

The work is real; only when it ends, and whether it is reported, is acted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Lock

from client_sdk.data import Examples
from client_sdk.learners import Catalogue, LearnerTrainer
from client_sdk.protocol.devices import Assignment
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from simulation.fleet.habits import FleetHabits
from simulation.fleet.pulse import Pulse

LONGEST_HOLD = 2.0
"""A late device gives up waiting for the round's end after so many rounds' durations: it may never learn of it."""


class Vanished(BaseException):
    """The device stops as if it had lost power: nobody hears of it. Not an Exception, since no code of the
    device may handle it."""

    def __init__(self, away: float) -> None:
        super().__init__()
        self.away = away
        """Rounds' durations until it comes back."""


class FleetTrainer:
    """A ``client_sdk.learners.Trainer``. ``turn`` is shared: one device of a process trains at a time."""

    def __init__(
        self,
        number: int,
        shard: Examples,
        catalogue: Catalogue,
        *,
        learner: str,
        habits: FleetHabits,
        pulse: Pulse,
        turn: Lock,
        stop: Event,
    ) -> None:
        self._number = number
        self._inner = LearnerTrainer(catalogue, shard)
        self._learner = learner
        self._habits = habits
        self._pulse = pulse
        self._turn = turn
        self._stop = stop
        self._vanished_in: tuple[str, int] | None = None

    @property
    def learners(self) -> dict[str, str]:
        return {self._learner: self._inner.learners[self._learner]}

    @property
    def examples(self) -> int:
        return self._inner.examples

    def train(self, assignment: Assignment, checkpoint: Tensors, device: str, deadline: Callable[[], float]) -> Update:
        """Train, once it is this device's turn, then take as long as its habits say. Raises Vanished, once a round."""
        began = time.monotonic()
        this_round = (assignment.run, assignment.round)
        conduct = self._habits.conduct(self._number, assignment.round)
        if conduct.vanishes and self._vanished_in != this_round:
            self._vanished_in = this_round
            raise Vanished(conduct.away)
        with self._turn:
            update = self._inner.train(assignment, checkpoint, device, deadline)
        if conduct.slowness > 1.0:
            self._stop.wait((conduct.slowness - 1.0) * (time.monotonic() - began))
        if conduct.late:
            self._pulse.wait_over(*this_round, LONGEST_HOLD * self._pulse.round_s, self._stop)
        return update
