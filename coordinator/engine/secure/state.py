"""The state of one attempt of a secure round: which devices' messages of which exchange have arrived, by digest.

It holds ids, digests and public numbers only. Keys, shares, masks and tensors are in blobs that it names by digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from coordinator.engine.event_fields import Group

Exchange = Literal["advertised", "shared", "complained", "opened", "masked", "signed", "revealed"]

FOR_THE_SUM: tuple[Exchange, ...] = ("shared", "masked", "signed", "revealed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Barred:
    """Why a device takes part in no secure round of the run, and for how long."""

    why: str
    until_round: int
    """The first round that it can be selected for again."""


def still_barred(barred: Mapping[str, Barred], round: int) -> Mapping[str, Barred]:
    """Those who are barred in this round too."""
    return {device: found for device, found in barred.items() if found.until_round > round}


@dataclass(frozen=True, kw_only=True)
class SecureRound:
    """One attempt, from its header to its sum. A new attempt begins with an empty one, except for ``older``."""

    header: str = ""
    """Canonical bytes in hexadecimal; empty until it is announced."""
    expires_at: int = 0
    """Unix seconds after which no device signs or reveals anything for it."""
    roster: str = ""
    """Digest of the roster's blob; empty until it is made."""
    groups: tuple[Group, ...] = ()
    """Of the roster, by number."""
    margins: tuple[int, ...] = ()
    """Of each group: how many more than its signers must have masked before its list is shown."""
    fallen: Mapping[int, str] = field(default_factory=dict)
    """Number of a group -> why the round goes on without it. What its devices have sent is in ``older``."""

    advertised: Mapping[str, str] = field(default_factory=dict)
    """Device -> digest of its message of *advertise*."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Device -> digest of its message of *share*. From masking on, its devices are the *sharers*, with whom peers
    mask."""
    masked: Mapping[str, str] = field(default_factory=dict)
    """Device -> digest of its masked vector. From agreeing on, its devices are the *survivors*: the list is fixed from
    then on."""
    signed: Mapping[str, str] = field(default_factory=dict)
    """Device -> digest of its message of *agree*."""
    revealed: Mapping[str, str] = field(default_factory=dict)
    """Device -> digest of its message of *unmask*."""
    complained: Mapping[str, str] = field(default_factory=dict)
    """Device -> digest of its complaint."""
    complaints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Device -> dealers whose rows did not open there."""
    opened: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Dealer -> holder that has complained of it -> digest of the message with its pair, which the holder now holds."""
    settle_by: float = 0.0
    """Until when dealers may answer complaints, and holders mask after that: masking does not end before."""

    opening: bool = False
    """Whether the groups' sums are being opened."""
    sums: Mapping[int, str] = field(default_factory=dict)
    """Number of a group -> digest of the blob of its unmasked sum."""
    weight: int = 0
    """The total weight of those sums."""
    older: tuple[str, ...] = ()
    """Blobs of former attempts and of excluded devices. Deleted when the round ends."""
    began: Mapping[str, float] = field(default_factory=dict)
    """Phase -> when it began; *sharing* begins with the roster."""
    recovered_at: float = 0.0
    """When a coordinator was last there again after an outage that took time from an exchange; 0: none did."""
    bytes: Mapping[str, int] = field(default_factory=dict)
    """Exchange -> bytes that its messages had, for people."""

    def without(self, exchange: Exchange, *devices: str) -> SecureRound:
        """The attempt without what these devices sent in an exchange; it is deleted when the round ends."""
        came: Mapping[str, str] = getattr(self, exchange)
        gone = {device: came[device] for device in devices if device in came}
        if not gone:
            return self
        rest: dict[str, Any] = {exchange: {other: came[other] for other in came if other not in gone}}
        return replace(self, older=(*self.older, *gone.values()), **rest)

    @property
    def standing(self) -> Mapping[int, Group]:
        """Number -> group, of those that the round goes on with."""
        return {number: group for number, group in enumerate(self.groups) if number not in self.fallen}

    @cached_property
    def group_of(self) -> Mapping[str, Group]:
        """Device of the roster -> its group."""
        return {device: group for group in self.groups for device in group.order}

    @property
    def fewest_groups(self) -> int:
        """With how many groups the round can go on, at least: more than half of them, or the only one."""
        return len(self.groups) // 2 + 1

    @property
    def blobs(self) -> tuple[str, ...]:
        """Every blob of this attempt and of the round's attempts before it, sorted."""
        exchanges = (self.advertised, self.shared, self.masked, self.signed, self.revealed, self.complained)
        mine = {digest for messages in (*exchanges, *self.opened.values()) for digest in messages.values()}
        return tuple(sorted({*mine, *self.older, self.roster, *self.sums.values()} - {""}))

    @property
    def lacks(self) -> Mapping[str, tuple[str, ...]]:
        """Device -> dealers whose pair it does not hold: it has complained of their rows, and they have not opened
        it."""
        return {
            holder: without
            for holder, dealers in self.complaints.items()
            if (without := tuple(dealer for dealer in dealers if holder not in self.opened.get(dealer, ())))
        }
