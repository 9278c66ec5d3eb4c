"""The fields of the explorer's own model of a run, which ``follow`` changes event by event; what its parts share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from coordinator.store.port import EventRow, RunRow
from tests.explorer.faults import Broken
from tests.explorer.private import PrivateAccount, Spent
from tests.explorer.round_ending import RoundEnding
from tests.explorer.secure.account import SecureAccount, fewest_of


class Scores:
    """The rule of a plan by which scores finish a run, from the page about plans: a target, or a number of scores
    without an improvement. ``says_finished`` takes each score of a run, in the order of its log. ``finish``: the plan's
    section, as JSON.
    """

    def __init__(self, finish: Any) -> None:
        self._finish = finish
        self._best: float | None = None
        self._in_vain = 0
        self._newest = -1

    def says_finished(self, version: int, source: str, metrics: Mapping[str, float]) -> bool:
        """Whether the run is finished with this score of a version."""
        finish = self._finish
        name = finish.get("metric")
        if name is None or source != finish.get("source") or name not in metrics:
            return False
        sign = -1.0 if finish.get("better") == "lower" else 1.0
        value = sign * metrics[name]
        if finish.get("target") is not None and value >= sign * finish["target"]:
            return True
        if version <= self._newest:
            return False
        self._newest = version
        if self._best is None or value - self._best > finish["min_delta"]:
            self._best, self._in_vain = value, 0
            return False
        self._in_vain += 1
        return finish.get("patience") is not None and self._in_vain >= finish["patience"]


@dataclass
class MuAccount:
    """The proximal mu of a plan with the strategy of ``plans.STRATEGY``: 0.1 more when the loss rises from one
    committed round to the next, and 0.1 less, to 0 at the least, when it falls."""

    steps: int = 0
    loss: Fraction | None = None

    def committed(self, losses: Iterable[tuple[int, float]]) -> None:
        """A round of devices counts these, as (weight, loss)."""
        known = list(losses)
        if not known:
            return
        loss = sum((weight * Fraction(one) for weight, one in known), Fraction()) / sum(weight for weight, _ in known)
        before, self.loss = self.loss, loss
        if before is not None and loss != before:
            self.steps = self.steps + 1 if loss > before else max(0, self.steps - 1)

    @property
    def mu(self) -> float:
        return float(np.float32(0.1 * self.steps))


@dataclass(frozen=True, slots=True)
class Place:
    """A device's place in a buffered run."""

    since: int
    """The round in which it was drawn."""
    version: int
    examples: int
    until: list[float]
    """When its time is up, by the clock of the log; the last one holds, after the clock went back."""
    begun: bool = False


@dataclass(slots=True)
class FollowedRun:
    """What the log of one run says of it."""

    row: RunRow
    clocks_jump: bool = True
    """Whether clocks may jump in this schedule; they differ by less than the product allows in any case."""
    flipped: Collection[str] = ()
    """Digests of the blobs that have been damaged."""
    run: str = field(init=False)
    plan: dict[str, Any] = field(init=False)
    head: int = 0
    status: str = "running"
    phase: str = "idle"
    round: int = 0
    version: int = 0
    digest: str = ""
    size: int = 0
    """Of the current model's file, in bytes."""
    cohort: dict[str, int] = field(default_factory=dict)
    reported: dict[str, tuple[str, int]] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    invalid: set[str] = field(default_factory=set)
    """Devices that left the round because their update was refused as invalid."""
    lost: set[str] = field(default_factory=set)
    """Devices that were asked for another update, since theirs was damaged."""
    asked_again: set[str] = field(default_factory=set)
    """Those of them that have sent none yet."""
    lost_digests: set[str] = field(default_factory=set)
    """Of the updates in whose place they were asked for others, of all rounds."""
    reopened: bool = False
    """Whether they were asked when the round had closed: it waits for them alone."""
    mu: MuAccount = field(default_factory=MuAccount)
    drawn_at: float = 0.0
    in_parts: bool = False
    """Whether the run's first event says in how many parts of an example it counts: a run that was paused before it
    began has no such event, and counts whole examples."""
    ended: dict[int, RoundEnding] = field(default_factory=dict)
    ending: str = ""
    pools: dict[int, str] = field(default_factory=dict)
    kind: str = "federated"
    fence: int = 0
    attempt: int = 0
    lease: tuple[str, int, int] = ("", 0, 0)
    """(worker, attempt, fence) of the datacenter round's last lease."""
    in_vain: int = 0
    """Federated rounds abandoned in a row."""
    failed: int = 0
    """Rounds of any kind abandoned in a row, but for those that went back to the devices."""
    tried: bool = False
    """Whether the run has fallen back since its last commit, or since it was resumed."""
    installation: str = ""
    """The installation that holds, or held, the round's lease."""
    planned: bool = False
    """Whether the datacenter round is the datacenter's by plan."""
    away: bool = False
    refused: int = 0
    """Datacenter rounds in a row that a worker reported as impossible to train."""
    rests_until: float | None = None
    at: float = 0.0
    """Unix time of the last event."""
    fleet_first: bool = False
    renewed_at: float = 0.0
    """When the lease was granted, or its last heartbeat recorded, by the clock of the log."""
    give_up_at: float | None = None
    deadline: float | None = None
    """When the phase under way ends, by the clock of the log; while *leasing*, when a quorum of devices ends it. None
    where nothing ends it, and in training."""
    deadlines: list[float] = field(default_factory=list)
    """Every value that the deadline of the phase under way has had."""
    waiting: int = 0
    """Eligible devices at the draw."""
    began: set[str] = field(default_factory=set)
    """Devices that began to train."""
    reports: dict[str, EventRow] = field(default_factory=dict)
    """The events of the updates in ``reported``, by device."""
    scores: Scores = field(init=False)
    """What the plan's rule for scores makes of those in the log."""
    secure: SecureAccount | None = None
    """Of a secure round, from the draw to its end."""
    marks: dict[bytes, set[str]] = field(default_factory=dict)
    """Model -> devices that have signed on it, by the logs of all runs: they contribute to it no more."""
    spent: Spent = field(default_factory=lambda: defaultdict(dict))
    """What devices have lost in each ledger, by the logs of all runs."""
    private: PrivateAccount | None = None
    """Of a run with noise."""
    declined: set[str] = field(default_factory=set)
    """Devices that take part in no round of this run on this model any more, without having signed on it."""
    vouched: tuple[int, str] | None = None
    """The last version that somebody has signed, and the signature, right or not."""
    made_in: int = 0
    """The round that made this model; 0: it is the first one."""
    tensors: bytes = b""
    """What tells the run's model from others, whatever its file."""
    barred: dict[str, int] = field(default_factory=dict)
    """Device -> the first round for which it can be drawn again."""
    disputes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Device -> dealer of whose shares it has complained -> the last round in which it did."""
    suspicion: dict[str, int] = field(default_factory=dict)
    """Device -> in how many of 64 rounds it rests, since sums of its groups were bad."""
    left_out: set[str] = field(default_factory=set)
    """Who could not be drawn at the last draw."""
    lists_lost: list[int] = field(default_factory=list)
    """Of each list that was shown: how many thousandths of its devices vanished."""
    short: int = 0
    """Attempts that failed for want of the margin, since a list had it."""
    recoveries: int = 0
    """How often replicas that started gave time back."""
    exhausted: bool = False
    """Whether too few devices are left for this checkpoint."""
    advancing: str = ""
    """Who lets the round commit the model moved by one unit."""
    advances: int = 0
    """How many rounds have done so."""
    undeleted: dict[int, set[str]] = field(default_factory=dict)
    """Secure round that has ended -> its blobs, until the log says that they are deleted."""
    places: dict[str, Place] = field(default_factory=dict)
    """Of a buffered run: the devices that train."""
    since: dict[str, Place] = field(default_factory=dict)
    """Device -> the place from which its update of this round came."""
    went: dict[tuple[int, str], int] = field(default_factory=dict)
    """(round of its draw, device) -> the round that has its update."""
    bases: dict[int, tuple[int, str, int]] = field(default_factory=dict)
    """Version -> (version, digest, size), of those that devices were given."""
    drawn_in: dict[str, int] = field(default_factory=dict)
    """Of a buffered run: device -> the last round in which it was drawn."""
    drawn_again: set[str] = field(default_factory=set)
    """Those that the last draw has drawn in a round in which they had been drawn before."""
    draws: int = 0
    """In the buffered round under way."""
    drawing: tuple[int, int] = (0, 0)
    """(places that were free, draws before) of the last draw of a buffered round."""
    moments: list[Any] = field(default_factory=list)
    """The server optimizer's vectors after the last commit, computed by hand; see ``marks``."""

    def __post_init__(self) -> None:
        self.run, self.plan = self.row.run, self.row.plan
        self.scores = Scores(self.plan["finish"])
        self.private = PrivateAccount.of(self.run, self.plan, self.spent)

    @property
    def left(self) -> set[str]:
        """Devices that have left the round without an update."""
        return self.withdrawn | self.invalid

    @property
    def awaited(self) -> set[str]:
        """The devices that work for the round."""
        if self.secure is not None:
            return self.secure.claimed
        if self.buffered:
            return set(self.places)
        if self.reopened:
            return self.asked_again if self.phase == "collecting" else set()
        return self.cohort.keys() - self.reported.keys() - self.left if self.phase == "collecting" else set()

    @property
    def unfit(self) -> set[str]:
        """Devices that cannot be drawn for a round on this checkpoint."""
        unfit = self.marks.get(self.tensors, set()) | self.declined | self.barred.keys()
        return unfit if self.private is None else unfit | self.private.out(self.version)

    def set_deadline(self, at: float | None) -> None:
        """A phase begins, which ends at this time at the latest."""
        self.deadline = at
        self.deadlines = [] if at is None else [at]

    @property
    def over(self) -> bool:
        return self.status in ("finished", "stopped")

    @property
    def lease_ends_at(self) -> float:
        """When the lease ends without another heartbeat, by the clock of the log."""
        ends_at = self.renewed_at + float(self.plan["datacenter"]["lease_s"])
        return ends_at if self.give_up_at is None else min(ends_at, self.give_up_at)

    @property
    def buffered(self) -> bool:
        return "buffered" in self.plan

    def report(self, round: int, device: str) -> EventRow | None:
        """Returns the event that counts the device's update in this round."""
        ending = self.ended.get(number := self.went.get((round, device), round))
        if ending is None and number != self.round:
            return None
        return (self.reports if ending is None else ending.reports).get(device)

    @property
    def quorum(self) -> int:
        cohort: dict[str, Any] = self.plan["cohort"]
        return max(1, math.ceil(float(cohort["quorum"]) * int(cohort["goal"]) - 1e-9))

    @property
    def fewest(self) -> int:
        """How many waiting devices begin a round: a quorum, and in secure rounds the smallest cohort too."""
        return fewest_of(self.plan) if "secure" in self.plan else self.quorum

    def known(self, round: int, device: str) -> tuple[str, int] | None:
        """Returns (digest, weight) of the update in the log for this device and round."""
        if self.buffered and (round, device) not in self.went:
            return None
        number = self.went.get((round, device), round)
        if number == self.round:
            found = self.reported.get(device)
            if found is not None:
                return found
        ending = self.ended.get(number)
        return ending.reported.get(device) if ending is not None else None

    def counted(self, round: int, device: str) -> str | None:
        """Returns the digest of the update that counts for this device in a committed round."""
        ending = self.ended.get(self.went.get((round, device), 0 if self.buffered else round))
        if ending is None or not ending.committed or device not in ending.reported:
            return None
        return ending.reported[device][0]


class Following(FollowedRun, ABC):
    """What the parts of the model need of each other: ``follow.TrackedRun`` has them all."""

    __slots__ = ()

    @abstractmethod
    def _abandon(self, short: bool = False, returned: bool = False) -> list[RoundEnding]:
        """The round ends without a checkpoint."""

    @abstractmethod
    def _missed(self, waits: bool = False) -> list[RoundEnding]:
        """The time of the selection was over, and too few devices waited. ``waits``: only other devices help."""

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
