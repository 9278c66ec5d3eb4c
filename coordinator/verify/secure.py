"""Secure rounds, by an account of the log that is made without the engine's ``step``: who signed the list of survivors,
that one sum was opened, and that no message of a round that is over is left. Short messages are rows while their round
lasts: none is stored that the log does not name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.blobs.port import is_digest
from coordinator.folding.refold import Readable, short
from coordinator.store.port import EventRow
from coordinator.verify.violation import RunViolation

_MESSAGES = ("Advertised", "Shared", "Complained", "PairsOpened", "Masked", "Signed", "Revealed")


@dataclass(slots=True)
class LoggedSecure:
    """The events of one secure round; all but ``blobs`` of its last attempt. ``add`` takes the next one."""

    groups: list[dict[str, Any]] = field(default_factory=list)
    """Of the roster, as the log has them."""
    header: str = ""
    signed: set[str] = field(default_factory=set)
    revealed: set[str] = field(default_factory=set)
    opened: dict[int, str] = field(default_factory=dict)
    """Group -> digest of its sum."""
    openings: int = 0
    """How many sums were opened."""
    weight: int = 0
    """Of all of them."""
    blobs: set[bytes] = field(default_factory=set)
    """SHA-256 of every message, roster and sum of the round, of 32 bytes."""

    def add(self, event: EventRow) -> None:
        body: dict[str, Any] = event.body
        if event.kind in (*_MESSAGES, "Rostered", "Opened") and is_digest(body["digest"]):
            self.blobs.add(bytes.fromhex(body["digest"]))
        if event.kind == "Announced" and not self.opened:
            self.header = body.get("header", "")
        match event.kind:
            case "Announced" if body["attempt"] > 0 and not self.opened:
                self.groups = []
                self.signed, self.revealed = set(), set()
            case "Rostered":
                self.groups = body["groups"]
            case "Signed":
                self.signed.add(body["device"])
            case "Revealed":
                self.revealed.add(body["device"])
            case "Opened":
                self.opened[body.get("group", 0)] = body["digest"]
                self.openings += 1
                self.weight += body.get("weight", 0)
            case _:  # other kinds change nothing of this account
                pass

    @property
    def fallen(self) -> set[str]:
        """The devices of groups of which no sum was opened, where there are several."""
        if len(self.groups) < 2:
            return set()
        return {one for number, group in enumerate(self.groups) if number not in self.opened for one in group["order"]}

    @property
    def roster(self) -> frozenset[str]:
        """Its devices."""
        return frozenset(device for group in self.groups for device in group["order"])


def against_secure(round: int, logged: LoggedSecure, survivors: set[str]) -> Iterator[RunViolation]:
    """Findings for a committed secure round. ``survivors``: the devices that count."""
    strangers = sorted(survivors - logged.roster)
    if strangers:
        yield RunViolation("secure", round, f"{', '.join(strangers)} count, and are not in its roster")
        return
    if not logged.revealed <= logged.signed:
        yield RunViolation("secure", round, "devices revealed shares that had not signed the list")
    fewest = len(logged.groups) // 2 + 1
    miscounted = len(logged.opened) < fewest or logged.openings != len(logged.opened)
    if miscounted:
        yield RunViolation("secure", round, f"it was committed, and the log opens {logged.openings} sums")
    for number, group in enumerate(logged.groups):
        devices = set(group["order"])
        if number in logged.opened:
            yield from _against_group(round, group, logged, survivors & devices)
        elif (unsummed := sorted(survivors & devices)) and not miscounted:
            yield RunViolation("secure", round, f"{', '.join(unsummed)} count, and no sum of their group was opened")


def _against_group(
    round: int, group: Mapping[str, Any], logged: LoggedSecure, survivors: set[str]
) -> Iterator[RunViolation]:
    signed, revealed = logged.signed & set(group["order"]), logged.revealed & set(group["order"])
    others = sorted(signed - survivors)
    if others:
        yield RunViolation("secure", round, f"{', '.join(others)} signed the list of survivors, and are not on it")
    listed = len(signed & survivors)
    if listed < group["signers"] or not listed:
        needed = max(group["signers"], 1)
        why = f"{listed} survivors signed the list, and it takes {needed}: a sum was opened"
        yield RunViolation("secure", round, why)
    if len(revealed) < group["threshold"]:
        what = f"{len(revealed)} devices revealed shares, and it takes {group['threshold']} to rebuild a secret"
        yield RunViolation("secure", round, what)


def against_leftovers(blobs: Readable, over: Mapping[int, LoggedSecure], kept: set[str]) -> Iterator[RunViolation]:
    """Findings for the messages of rounds that are ``over`` and whose deletion is in the log. ``kept``: the blobs that
    something else names."""
    for number, logged in over.items():
        for digest in sorted(blob.hex() for blob in logged.blobs):
            if digest not in kept and blobs.has(digest):
                yield RunViolation("secure", number, f"a message of the round is left: {short(digest)}")


def against_messages(
    stored: Mapping[str, int], logged: Mapping[int, LoggedSecure], kept: Collection[int]
) -> Iterator[RunViolation]:
    """Findings for rows of messages. ``stored``: digest -> round; ``kept``: the rounds whose messages may be there."""
    for digest, number in stored.items():
        account = logged.get(number)
        named = isinstance(digest, str) and is_digest(digest)  # SQLite also has bytes in a column of texts
        if account is None or not named or bytes.fromhex(digest) not in account.blobs:
            yield RunViolation("secure", number, f"a message is stored that the log does not name: {short(digest)}")
        elif number not in kept:
            yield RunViolation("secure", number, f"a message of the round is left: {short(digest)}")
