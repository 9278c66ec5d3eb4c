"""The fields that many events have: when it happened, in which attempt of which round, and by which device."""

from __future__ import annotations

from dataclasses import dataclass


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
