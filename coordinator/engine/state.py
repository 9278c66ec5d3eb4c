"""The state of a run between two events: small, frozen, and nothing but what ``step`` needs to decide the next one.

Tensors are named by digest. The state is written as JSON at the end of each round, so that recovery folds only the tail
of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from coordinator.engine.plan import Plan

Phase = Literal["idle", "selecting", "collecting", "committing"]
Status = Literal["running", "paused", "finished", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One device of the cohort."""

    examples: int
    """What it claimed when it was selected, capped."""
    status: Literal["selected", "training", "reported", "withdrawn"] = "selected"
    digest: str | None = None
    weight: int = 0
    bytes: int = 0
    partial: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)
    held_out_examples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    run: str
    plan: Plan
    checkpoint: str
    """Digest of the current model."""
    version: int = 0
    """Of the current model; each commit adds one, so it is also the number of committed rounds."""
    status: Status = "running"
    reason: str = ""
    ending: tuple[Literal["finished", "stopped"], str] | None = None
    """Set when the run ends while a round is committing: it ends once that is over."""

    phase: Phase = "idle"
    round: int = 0
    attempt: int = 0
    opened_at: float = 0.0
    collecting_at: float | None = None
    deadline: float | None = None
    """When the phase ends by itself, in the coordinator's time."""
    waiting: int = 0
    pool: str | None = None
    """Digest of the blob that lists who waited."""
    members: Mapping[str, Member] = field(default_factory=dict)
    abandoned_in_a_row: int = 0

    best: float | None = None
    """The best value so far of the metric that the plan watches."""
    unimproved: int = 0
    """Scored checkpoints since then."""
    last_scored: int = -1
    """The latest version scored for that metric."""

    def count(self, *statuses: str) -> int:
        """How many members have one of these statuses."""
        return sum(member.status in statuses for member in self.members.values())

    @property
    def over(self) -> bool:
        return self.status in ("finished", "stopped")


_ADAPTER: TypeAdapter[RunState] = TypeAdapter(RunState)


def to_json(state: RunState) -> dict[str, object]:
    body: dict[str, Any] = _ADAPTER.dump_python(state, mode="json")
    return body


def from_json(body: Mapping[str, object]) -> RunState:
    return _ADAPTER.validate_python(body)
