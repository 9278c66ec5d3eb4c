"""The messages of operators: what they ask for, and how runs, rounds, checkpoints, devices and events look to them.

This file knows words, as ``protocol`` does, and the routes are in the same table, ``protocol.Route``. Operators are
people at a command line, dashboards and evaluators; devices and workers send none of this and are sent none of it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from client_sdk.protocol.devices import Score
from client_sdk.protocol.names import NAME_PATTERN, DeviceId, Digest, Message, RunId, WorkerId

Status = Literal["running", "paused", "finished", "stopped"]
"""Of a run."""
Phase = Literal[
    "idle",
    "selecting",
    "collecting",
    "leasing",
    "training",
    "sharing",
    "masking",
    "agreeing",
    "unmasking",
    "committing",
]
"""Of the round under way; idle: there is none."""
Kind = Literal["federated", "secure", "datacenter"]
"""Of a round."""


class CreateRun(Message):
    """Starts a run. The initial checkpoint was uploaded before (``PUT /v1/checkpoints/{digest}``)."""

    plan: dict[str, object]
    """The plan as in its TOML file; validated by the coordinator."""
    init: Digest
    origin: str = Field(default="", max_length=300)
    """Where the initial checkpoint came from, for people: a file's name, or a learner and its version."""


class Funnel(Message):
    """How many devices got how far in one round."""

    waiting: int = 0
    """Eligible devices in the pool when the cohort was drawn."""
    selected: int = 0
    training: int = 0
    """Said that they began to train (and may have reported since)."""
    reported: int = 0
    withdrawn: int = 0
    late: int = 0
    """Sent an update after the round had closed."""
    dropped: int = 0
    """Selected, and not heard of by the time the round closed."""
    refused: int = 0
    """Sent an update that was not accepted for another reason."""


class RunView(Message):
    """A run as operators see it."""

    run: RunId
    name: str
    status: Status
    reason: str
    """Why it has this status: 'reached 20 rounds', 'stopped by the operator'."""
    phase: Phase
    round: int
    """The round under way, or the last one."""
    version: int
    checkpoint: Digest
    rounds_committed: int
    rounds_wanted: int
    plan: dict[str, object]
    plan_digest: Digest
    origin: str
    created_at: float
    """Unix time in seconds, as all ``_at`` fields."""
    seq: int
    """Sequence number of the last event: where to resume the stream."""
    funnel: Funnel
    """Of the round under way, or of the last one."""
    kind: Kind = "federated"
    """Of the round under way, or of the last one."""
    exhausted: str = ""
    """Why secure rounds cannot go on from this checkpoint: too many devices have signed on it. Empty: they can."""

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.status in ("finished", "stopped")


class AdvanceRun(Message):
    """The owner of an exhausted run lets it commit the model moved by one unit, without any contribution."""

    by: str = Field(min_length=1, max_length=120)
    """Who asks, by their own word: it stands in the audit."""


class LeaseView(Message):
    """Who has a datacenter round, or had it last, and how far it is."""

    worker: WorkerId
    attempt: int
    fence: int
    since_at: float
    seen_at: float
    """The last heartbeat that was written down: at most every quarter of the plan's ``lease_s``."""
    step: int
    metrics: dict[str, float] = Field(default_factory=dict)


class RoundView(Message):
    """One round as operators see it."""

    round: int
    attempt: int = 0
    kind: Kind = "federated"
    because: str = ""
    """Why it is a datacenter round; empty for the others."""
    status: Literal["open", "committed", "abandoned"]
    reason: str = ""
    opened_at: float
    collecting_at: float | None = None
    closed_at: float | None = None
    funnel: Funnel = Funnel()
    bytes_in: int = 0
    """Bytes of accepted updates."""
    weight: int = 0
    """Total weight of the counted updates."""
    version: int | None = None
    digest: Digest | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    """Training metrics of the counted updates, averaged by weight; of a datacenter round, the worker's."""
    lease: LeaseView | None = None
    """Of a datacenter round: the lease under way, or the last one."""


class CheckpointView(Message):
    """One checkpoint of a run's line."""

    version: int
    digest: Digest
    parent: Digest | None
    round: int | None
    origin: str
    bytes: int
    created_at: float


class MetricReport(Message):
    """An evaluator's scores for one checkpoint."""

    version: int = Field(ge=0)
    digest: Digest
    """Of the checkpoint that was scored; must be that version's."""
    source: str = Field(default="evaluator", pattern=NAME_PATTERN)
    """Which data: 'test', 'hospital-7'. One value per (version, source, name); reporting again replaces it."""
    score: Score


class MetricView(Message):
    version: int
    source: str
    name: str
    value: float
    examples: int
    at: float


class DeviceView(Message):
    device: DeviceId
    label: str
    examples_cap: int
    enrolled_at: float
    last_seen_at: float | None
    state: Literal["away", "waiting", "assigned"]
    run: str | None = None
    round: int | None = None


class EventView(Message):
    """One event of a run's log, as the stream sends it. SSE: ``id`` is ``seq``, ``event`` is ``kind``."""

    seq: int
    at: float
    kind: str
    body: dict[str, object]
