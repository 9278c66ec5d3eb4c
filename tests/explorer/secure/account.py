"""The explorer's own account of a secure round, from the log alone: who has done which exchange, who is awaited, and
when an exchange ends. ``follow_secure`` adds the events to it.

It is written from ``docs/rounds.md``, for complete graphs and for rings (*fast*), and does not import the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

EXCHANGES = ("advertised", "shared", "masked", "signed", "revealed")
SECURE_PHASES = ("sharing", "masking", "agreeing", "unmasking")


@dataclass(slots=True)
class SecureAccount:
    """One attempt of a round. ``cohort``: the devices that were drawn."""

    plan: dict[str, Any]
    cohort: Collection[str]
    attempt: int = 0
    header: str = ""
    expires_at: float = 0.0
    began: float = 0.0
    """When the exchange under way began."""
    recovered_at: float = 0.0
    """When a replica last started and gave the exchange its time again."""
    roster: str = ""
    """Digest of the roster's blob; empty until it is made."""
    threshold: int = 0
    """How many shares rebuild a secret."""
    signers: int = 0
    """How many must have signed a survivor list before anything is revealed."""
    fewest: int = 0
    """The shortest survivor list that a device signs."""
    order: list[str] = field(default_factory=list)
    """Devices by place in the roster."""
    margin: int = 0
    """How many more than must sign are on a list."""
    ring: list[str] = field(default_factory=list)
    """The devices around the ring, each of which has the ``neighbours`` nearest; empty in a complete graph."""
    neighbours: int = 0
    advertised: dict[str, str] = field(default_factory=dict)
    """Device -> digest of its message of *advertise*."""
    shared: dict[str, str] = field(default_factory=dict)
    """Device -> digest of its message of *share*."""
    masked: dict[str, str] = field(default_factory=dict)
    """Device -> digest of its masked vector."""
    signed: dict[str, str] = field(default_factory=dict)
    """Device -> digest of its message of *agree*."""
    revealed: dict[str, str] = field(default_factory=dict)
    """Device -> digest of its message of *unmask*."""
    complained: dict[str, str] = field(default_factory=dict)
    """Device -> digest of its complaint."""
    lines: set[tuple[str, str]] = field(default_factory=set)
    """(device, dealer of whose shares it has complained)."""
    unanswered: set[tuple[str, str]] = field(default_factory=set)
    """Those in which the dealer has not opened the pair."""
    settle_by: float = 0.0
    """Until when masking lasts at least, since somebody has to answer a complaint, or to mask after one."""
    opening: bool = False
    sum: str = ""
    """Digest of the opened sum's blob; empty until it is made."""
    weight: int = 0
    total: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    """The survivors' lanes, added up by the explorer."""
    withdrawn: set[str] = field(default_factory=set)
    excluded: set[str] = field(default_factory=set)
    claimed: set[str] = field(default_factory=set)
    """Devices that can be drawn by no other run."""
    older: set[str] = field(default_factory=set)
    """Blobs of the round that the attempt under way does not name."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Masked vectors of attempts that were given up, by digest: their devices."""
    came: Counter[str] = field(default_factory=Counter)
    """Bytes of the messages of each exchange of this attempt."""

    @property
    def section(self) -> dict[str, Any]:
        return dict(self.plan["secure"])

    @property
    def least(self) -> int:
        """The fewest devices of a roster."""
        return max(quorum_of(self.plan), int(self.section["minimum_cohort"]))

    @property
    def most(self) -> int:
        """The most devices of a roster."""
        return int(self.plan["cohort"]["goal"]) + int(self.section["reserve"])

    @property
    def needed(self) -> int:
        """How many must share, and mask."""
        return max(quorum_of(self.plan), self.threshold, self.fewest)

    def lacks(self, present: Collection[str], wanted: Collection[str]) -> set[str]:
        """Those of ``wanted`` whose secrets too few of those present hold, to rebuild them."""
        there = set(present)
        return {device for device in wanted if len(self._holders(device) & there) < self.threshold}

    def _holders(self, device: str) -> set[str]:
        beside = self._beside(device) if self.ring else set(self.order)
        return {holder for holder in beside if (holder, device) not in self.unanswered}

    def enough(self, present: Collection[str]) -> bool:
        """Whether the attempt can go on with these."""
        return len(present) >= self.needed and not self.lacks(present, self.shared)

    def _beside(self, device: str) -> set[str]:
        """The neighbours of this device on the ring, which hold its shares."""
        place, half = self.ring.index(device), self.neighbours // 2
        return {self.ring[(place + step) % len(self.ring)] for step in range(-half, half + 1)} - {device}

    def here(self, devices: Collection[str]) -> set[str]:
        """Those of the devices that have neither withdrawn nor been left out."""
        return set(devices) - self.withdrawn - self.excluded

    @property
    def accused(self) -> set[str]:
        """Who owes an answer to a complaint."""
        return {dealer for _, dealer in self.unanswered} - self.excluded

    @property
    def disputing(self) -> set[str]:
        """Whose complaint is not settled."""
        return {holder for holder, dealer in self.unanswered if dealer not in self.excluded}

    def grant(self, at: float) -> None:
        """Whoever has to answer a complaint, or to mask after one, has time from now on."""
        quiet_s = self.section.get("quiet_s") or self.section["exchange_s"] / 4
        self.settle_by = max(self.settle_by, min(at + quiet_s, self.expires_at))

    @property
    def blobs(self) -> set[str]:
        """Every blob of the round, of this attempt and of those before."""
        messages: list[Mapping[str, str]] = [getattr(self, name) for name in EXCHANGES]
        found = {digest for one in (*messages, self.complained) for digest in one.values()}
        return {*found, self.roster, self.sum, *self.older} - {""}

    def renewed(self) -> SecureAccount:
        """The next attempt of the round, without those that failed in this one."""
        return SecureAccount(
            self.plan,
            self.cohort,
            attempt=self.attempt + 1,
            withdrawn=self.withdrawn,
            excluded=self.excluded,
            claimed=self.here(self.cohort),
            older=self.blobs,
            given_up={**self.given_up, **{digest: device for device, digest in self.masked.items()}},
        )

    def drop(self, exchange: str, device: str) -> None:
        """What the device sent in this exchange does not count; its blob is still there."""
        digest = getattr(self, exchange).pop(device, None)
        if digest is not None:
            self.older.add(digest)


def quorum_of(plan: dict[str, Any]) -> int:
    """How many reports a round needs."""
    cohort = plan["cohort"]
    return max(1, -int(-(float(cohort["quorum"]) * int(cohort["goal"]) - 1e-9) // 1))


class Numbers(NamedTuple):
    """What a roster's size gives."""

    neighbours: int
    """0 in a complete graph."""
    threshold: int
    signers: int


def numbers_of(section: Mapping[str, Any], n: int) -> Numbers:
    """*strict*: more than two thirds rebuild a secret. *fast*, for so few devices that what may happen does happen: the
    smallest ring in which every device keeps its threshold when ``drop`` vanish, and ``colluding`` of its neighbours
    that give both kinds of share do not reach it, in one round of signatures that two lists cannot both have."""
    if section.get("profile", "strict") == "strict":
        return Numbers(0, 2 * n // 3 + 1, 2 * n // 3 + 1)
    drop, colluding = int(section["drop"]), int(n * (0.1 if section.get("corrupt") is None else section["corrupt"]))
    for neighbours in range(2, n - 1, 2):
        threshold = (neighbours + colluding) // 2 + 1
        if threshold <= neighbours - drop:
            return Numbers(neighbours, threshold, max(n - drop, (n + colluding) // 2 + 1))
    return Numbers(0, (n + colluding) // 2 + 1, (n + colluding) // 2 + 1)


def in_dispute(lines: Collection[tuple[str, str]], known: Collection[tuple[str, str]]) -> set[str]:
    """Whom the next attempt leaves out: of those with a line of this attempt, again and again who is in dispute with
    most others by all lines that are ``known``, as plaintiff or as dealer, and with two at least."""
    now, every = {frozenset(line) for line in lines}, {frozenset(line) for line in (*lines, *known)}
    out: set[str] = set()
    while True:
        concerned = Counter(name for pair in every for name in pair)
        several = {name: concerned[name] for pair in now for name in pair if concerned[name] > 1}
        if not several:
            return out
        worst = {name for name, count in several.items() if count == max(several.values())}
        out |= worst
        now, every = ({pair for pair in of if not worst & pair} for of in (now, every))
