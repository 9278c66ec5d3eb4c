"""The explorer's own account of a secure round, from the log alone: who has done which exchange, in which group, who is
awaited, and when an exchange ends. ``follow_secure`` adds the events to it.

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


@dataclass(slots=True, eq=False)
class GroupAccount:
    """One group of a roster, with threshold, list and sum of its own."""

    order: list[str]
    """Devices by place."""
    threshold: int
    """How many shares rebuild a secret."""
    signers: int = 0
    """How many must have signed the group's list before anything is revealed."""
    fewest: int = 0
    """The shortest list that a device signs."""
    margin: int = 0
    """How many more than must sign are on the list."""
    ring: list[str] = field(default_factory=list)
    """The devices around the ring, each of which has the ``neighbours`` nearest; empty in a complete graph."""
    neighbours: int = 0
    fallen: bool = False
    """Whether the round goes on without it."""
    sum: str = ""
    """Digest of the opened sum's blob; empty until it is made."""
    total: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    """The lanes of those on the list, added up by the explorer."""

    def among(self, devices: Collection[str]) -> set[str]:
        """Those of the devices that are in the group."""
        return {device for device in self.order if device in devices}

    def least(self, *, listed: bool = False) -> int:
        """With how many devices the group can go on. ``listed``: to the list, with its margin."""
        return max(self.threshold, self.fewest, self.signers + self.margin if listed else 0)

    def holders(self, device: str) -> set[str]:
        """Who has shares of the device: all of a complete graph, on a ring the neighbours."""
        if not self.ring:
            return set(self.order)
        place, half = self.ring.index(device), self.neighbours // 2
        return {self.ring[(place + step) % len(self.ring)] for step in range(-half, half + 1)} - {device}


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
    groups: list[GroupAccount] = field(default_factory=list)
    """Of the roster, by number."""
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
    weight: int = 0
    """Of the sums that are opened."""
    withdrawn: set[str] = field(default_factory=set)
    excluded: set[str] = field(default_factory=set)
    claimed: set[str] = field(default_factory=set)
    """Devices that can be drawn by no other run."""
    older: set[str] = field(default_factory=set)
    """Blobs of the round that the attempt under way does not name."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Masked vectors of attempts that were given up and of groups that fell, by digest: their devices."""
    came: Counter[str] = field(default_factory=Counter)
    """Bytes of the messages of each exchange of this attempt."""

    @property
    def section(self) -> dict[str, Any]:
        return dict(self.plan["secure"])

    @property
    def least(self) -> int:
        """The fewest devices of a roster."""
        return fewest_of(self.plan)

    @property
    def most(self) -> int:
        """The most devices of a roster."""
        return int(self.plan["cohort"]["goal"]) + int(self.section["reserve"])

    @property
    def order(self) -> list[str]:
        """The devices of the roster."""
        return [device for group in self.groups for device in group.order]

    @property
    def standing(self) -> list[GroupAccount]:
        """The groups with which the round goes on."""
        return [group for group in self.groups if not group.fallen]

    @property
    def fewest_groups(self) -> int:
        """More than half of them."""
        return len(self.groups) // 2 + 1

    def needed(self, *, listed: bool = False) -> int:
        """How many must share, or mask (``listed``): a quorum, and what the fewest groups take."""
        least = sorted(group.least(listed=listed) for group in self.groups)
        return max(quorum_of(self.plan), sum(least[: self.fewest_groups]))

    def lacks(self, present: Collection[str], wanted: Collection[str]) -> set[str]:
        """Those of ``wanted`` whose secrets too few of those present hold, to rebuild them."""
        there = set(present)
        return {
            device
            for group in self.standing
            for device in group.among(wanted)
            if sum((one, device) not in self.unanswered for one in group.holders(device) & there) < group.threshold
        }

    def complete(self, present: Collection[str], *, listed: bool = False) -> list[GroupAccount]:
        """The groups that can go on with these."""
        lacking = self.lacks(present, self.shared)
        able = [group for group in self.standing if len(group.among(present)) >= group.least(listed=listed)]
        return [group for group in able if lacking.isdisjoint(group.order)]

    def enough(self, groups: Collection[GroupAccount], present: Collection[str]) -> bool:
        """Whether the round can go on with these groups alone: they are most of all, and have a quorum."""
        have = sum(len(group.among(present)) for group in groups)
        return len(groups) >= self.fewest_groups and have >= quorum_of(self.plan)

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
        return {*found, self.roster, *self.older, *(group.sum for group in self.groups)} - {""}

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


def fewest_of(plan: dict[str, Any]) -> int:
    """With how many devices a secure round begins: a quorum, and the smallest cohort in each group."""
    section = plan["secure"]
    return max(quorum_of(plan), int(section["minimum_cohort"]) * int(section.get("groups", 1)))


class Numbers(NamedTuple):
    """What a group's size gives."""

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
