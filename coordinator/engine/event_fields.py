"""What several events have: when it happened, in which attempt of which round, and by which device; what was done to
one update before it was counted; and what a commit says of the bytes that its checkpoint was made of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.engine.named_tensors import NamedTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class OfAttempt:
    """An event of one attempt of a round. ``attempt`` of a device's event in a buffered round: the round in which the
    device was drawn."""

    at: float
    round: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfDevice(OfAttempt):
    """What a device did in it."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of the roster of a secure round, with the numbers that its size gives."""

    order: tuple[str, ...]
    """Devices by place: ascending ids."""
    threshold: int
    """t: how many shares rebuild a secret."""
    signers: int
    """How many must have signed a survivor list before anything is revealed under it."""
    fewest: int
    """The shortest survivor list that a device signs."""
    ring: tuple[int, ...] = ()
    """The places around the ring; empty: a complete graph."""
    neighbours: int = 0
    """How many neighbours a device has on the ring, an even number. 0 where there is no ring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Treated:
    """What was done to one update before it was counted: found where it is measured, kept in its event."""

    clipped: bool = False
    """Whether it was scaled down to ``aggregation.clip_norm``."""
    capped: bool = False
    """Whether it weighs less than the examples that its device reports."""
    statistics_cut: bool = False
    """Whether values of statistics were cut to their range."""
    rounding: float = 0.0
    """Half a unit of the exact sum, or half a step of ``float16@1``, relative to the update's largest value, at most 1;
    0 below 0.001."""


UNTREATED = Treated()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a commit says of the bytes that its checkpoint was made of, for an audit to hold against the log: SHA-256 in
    hexadecimal; empty for what there was not."""

    parent: str = ""
    """Of the parent checkpoint's bytes, as they were read."""
    named_tensors: NamedTensors = field(default_factory=dict)
    """Of the bytes of those that go with the parent, as they were read."""
    updates: str = ""
    """``updates_digest``, or ``sum_digest`` in a secure round."""


NO_EVIDENCE = Evidence()


def updates_digest(counted: Iterable[tuple[str, str, int]]) -> str:
    """One digest of (device, digest, weight) of the counted updates, in any order."""
    return _digest([list(item) for item in sorted(counted)])


def sum_digest(header: str, survivors: Iterable[tuple[str, str]], opened: Iterable[str]) -> str:
    """One digest of the attempt's header in hexadecimal, of (device, digest of the masked vector) of the survivors, and
    of the opened sums' digests, all in any order."""
    return _digest([header, [list(item) for item in sorted(survivors)], " ".join(sorted(opened))])


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()
