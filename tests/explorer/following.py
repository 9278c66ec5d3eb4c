"""What the parts of the explorer's model of a run need of each other: ``follow.Followed`` has them all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from coordinator.store.port import EventRow
from tests.explorer.faults import Broken
from tests.explorer.followed_run import FollowedRun
from tests.explorer.round_ending import RoundEnding


class Following(FollowedRun, ABC):
    """The methods that each part calls."""

    __slots__ = ()

    @abstractmethod
    def _abandon(self, short: bool = False, returned: bool = False) -> list[RoundEnding]:
        """The round ends without a checkpoint."""

    @abstractmethod
    def _missed(self) -> list[RoundEnding]:
        """The time of the selection was over, and too few devices waited."""

    @abstractmethod
    def _advance(self, body: dict[str, Any]) -> list[RoundEnding]:
        """The round ends with this checkpoint."""

    @abstractmethod
    def _wait(self) -> None:
        """The phase waits: for devices, or for a worker."""

    @abstractmethod
    def _require_deadline(self, event: EventRow, what: str) -> None:
        """``Broken`` where the phase ends before its deadline."""

    def _odd(self, event: EventRow, why: str) -> Broken:
        return Broken("log", f"{self.run} #{event.seq} {event.kind} {event.body}: {why}")
