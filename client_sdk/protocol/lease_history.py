"""The messages of a datacenter round's history: who had its lease, how each lease ended, how fast it trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from client_sdk.protocol.names import Message, WorkerId

LeaseBegin = Literal["first", "restarted", "again", "taken-over"]
"""How a lease came: the round's *first*; the same worker *restarted* while it had the lease, which it got anew;
*again*, the same worker after its lease had ended; *taken-over* by another worker."""
LeaseOutcome = Literal["held", "delivered", "replaced", "silent", "returned", "failed", "over"]
"""How a lease ended: it is *held*; its result was *delivered*; *replaced* by the next one of the same worker; the
worker was *silent* for the plan's ``lease_s``; it *returned* the round; it reported that training *failed*; or the
round was *over* first."""
POINTS_SHOWN = 240
"""Heartbeats of a round that are told: of more, some at even distances and the last."""
LEASES_SHOWN = 100
"""Leases of a round that are told: of more, the last."""


class TrainingPoint(Message):
    """A heartbeat that was stored: at most one in a quarter of the plan's ``lease_s``."""

    at: float
    attempt: int
    step: int
    metrics: dict[str, float] = Field(default_factory=dict)
    """``loss``, ``samples_per_s``, ``communication_share`` (of one process there is none), and ``restarts``: how often
    the group of processes was started again under this lease."""


class LeaseRecord(Message):
    """One lease of a datacenter round."""

    worker: WorkerId
    label: str = ""
    attempt: int
    """Counts the leases of the round."""
    fence: int
    """Counts the leases of the run."""
    began: LeaseBegin
    granted_at: float
    ended_at: float | None = None
    """None: it is held."""
    outcome: LeaseOutcome = "held"
    reason: str = ""
    """Why it ended so, in a sentence. Part of it may be text of the worker."""
    step: int = 0
    """Optimizer steps done when it was last heard, including saved steps of earlier leases."""


class LeasesView(Message):
    """The leases of one round, in order, and what its workers reported while they trained."""

    count: int
    """All leases of the round."""
    restarts: int
    """How many of them were of the same worker after a restart (*restarted*)."""
    leases: list[LeaseRecord] = Field(default_factory=list)
    points: list[TrainingPoint] = Field(default_factory=list)
    """In order of time. Of a delivered round the last one is its result, with the metrics of the whole round."""
