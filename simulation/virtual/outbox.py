"""The messages of devices in secure rounds that are only quantized, on their way to the log: many in one transaction.

A device sends when it has its turn, and what it sends depends on what those before it have sent. So each message is
made under the log's lock, from the newest state: the events are those that one transaction for each would give. Where
the round waits for an action of the coordinator, the devices that come after have their turn when it is performed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.state import RunState
from coordinator.runtime.run_log import Make, RunLog
from coordinator.store.port import Transaction
from simulation.virtual.quantizing_device import QuantizingDevice

_MESSAGES = 2
"""The most that a device can send in one turn: the last of an exchange, and the first of the next."""


class Outbox:
    """``add`` a device that has its turn; ``send`` what all of them send. Then ``had(device, state)`` is called for
    each that has had its turn, with the state after it, and ``again`` has those whose turn comes after an action of the
    coordinator."""

    def __init__(self, log: RunLog, had: Callable[[QuantizingDevice, RunState | None], None]) -> None:
        self._log = log
        self._had = had
        self._waiting: dict[QuantizingDevice, float] = {}
        self.again: list[QuantizingDevice] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, device: object) -> bool:
        return device in self._waiting

    @property
    def newest(self) -> float:
        """When the last device was added; it is never empty then."""
        return next(reversed(self._waiting.values()))

    def add(self, device: QuantizingDevice, at: float) -> None:
        self._waiting[device] = at

    def send(self) -> None:
        """Sends the messages in the order in which the devices were added. None in place of a state in which the
        coordinator has something to do first."""
        turns, self._waiting = self._waiting, {}
        batch = _Batch()
        makes: list[Make] = [partial(batch.make, one, at) for one, at in turns.items() for _ in range(_MESSAGES)]
        for made, answer in zip(batch.made, self._log.submit_all(makes), strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if made is not None and not any(isinstance(effect, fx.Refused) for effect in answer):
                device, event = made
                device.accepted(event)
        after = [*batch.before[1:], self._log.state] if turns else []
        for device, state in zip(turns, after, strict=True):
            if device in batch.postponed:
                self.again.append(device)
            else:
                self._had(device, None if coordinators_turn(state) else state)


class _Batch:
    """Messages of one transaction."""

    def __init__(self) -> None:
        self.made: list[tuple[QuantizingDevice, ev.Event] | None] = []
        self.before: list[RunState] = []
        """The state before the turn of each device."""
        self.postponed: set[QuantizingDevice] = set()
        self._turn: QuantizingDevice | None = None
        self._last: QuantizingDevice | None = None
        """Who has sent the last message."""

    def make(
        self, device: QuantizingDevice, at: float, tx: Transaction, state: RunState, now: float
    ) -> ev.Event | None:
        """The next message of this device, or None."""
        event = None
        if device is not self._turn:
            self._turn = device
            self.before.append(state)
        if self._last is None or not coordinators_turn(state):
            event = device.message(state, at)
        elif self._last is not device:
            self.postponed.add(device)
        self.made.append(None if event is None else (device, event))
        if event is not None:
            self._last = device
        return event


def coordinators_turn(state: RunState) -> bool:
    """Whether the round goes on only when the coordinator has performed an action."""
    secure = state.secure
    if secure is None:
        return True
    match state.phase:
        case "collecting":
            return not secure.header
        case "sharing":
            return not secure.roster
        case "unmasking":
            return secure.opening
        case phase:
            return phase not in ("masking", "agreeing")
