"""The kinds of rounds: ``federated``, ``secure``, ``datacenter`` and ``buffered`` have a file each, here is what they
have in common.

A new kind is one file with one class, and its line in the table, which ``coordinator.engine.rounds`` fills: it is above
the kinds, and the phases, which are below them, ask the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.refusing import Step
from coordinator.engine.plan import Plan
from coordinator.engine.state import Member, Round, RoundPhase, RunState, membership

Place = tuple[Hashable, ...]
KindEvent = TypeVar("KindEvent", bound=ev.Event)


class RoundKind(ABC, Generic[KindEvent]):
    """How the rounds of one kind go. It has no state: that of the round under way is ``RunState.round``."""

    first_phase: ClassVar[RoundPhase]
    """In which a round opens. What is pending in it is done then."""
    events: ClassVar[tuple[type[ev.Event], ...]] = ()
    """The events that only this kind has. It answers them whatever round is under way."""
    of_devices: ClassVar[bool] = True
    """Whether a cohort of devices makes the model; False: a worker does."""
    masked: ClassVar[bool] = False
    """Whether the devices mask their updates, so that the coordinator sees the sum alone."""
    keeps_claims: ClassVar[bool] = False
    """Whether a device may hold its claim when the round collects no more."""
    coordinator_works: ClassVar[frozenset[RoundPhase]] = frozenset({"committing"})
    """The phases in which the round waits for an action of a coordinator; in others for devices or workers."""

    @property
    def single_updates(self) -> bool:
        """Whether the coordinator has the update of each device, which it keeps for the plan's retention, and people
        see counts that depend on the data of devices. In other rounds these are not known."""
        return self.of_devices and not self.masked

    @abstractmethod
    def happened(self, state: RunState, event: KindEvent) -> Step:
        """The new state and the effects of an event of devices, or of one of ``events``."""

    @abstractmethod
    def time_is_up(self, state: RunState, at: float) -> Step:
        """The deadline of the round's phase, or of the round, has passed."""

    @abstractmethod
    def pending(self, state: RunState) -> list[fx.Action]:
        """What must be in flight in the round's phase."""

    @abstractmethod
    def public(self, state: RunState) -> dict[str, object]:
        """The public view of the round: counts, never which device sent what."""

    @abstractmethod
    def lasts_s(self, plan: Plan, round: Round) -> float:
        """How long the phase lasts from its beginning to its deadline, at most. 0 for those without one."""

    def recovered(self, state: RunState, at: float) -> RunState:
        """The state with the deadline of its phase as it would be now, after an outage that devices have waited for:
        ``lifecycle.recovered`` takes it where it is later."""
        return state

    def against(self, state: RunState, round: int, attempt: int, device: str) -> tuple[str, str] | None:
        """Why this device, which was assigned to this round, has no open place now: (kind, reason), or None."""
        return membership(state, round, attempt, device)

    def addressed(self, state: RunState, event: ev.Event) -> ev.Event:
        """The event of a device, which names the round of its assignment, as it is logged now."""
        return event

    def assigned(self, state: RunState, round: int, device: str) -> tuple[int, float] | None:
        """(version that it trains, deadline) of the device's live assignment of this round; None: it has none."""
        if state.round_number != round or state.phase != "collecting" or state.deadline is None:
            return None
        return state.version, state.deadline

    def drawable(self, round: Round, device: str) -> bool:
        """Whether a device that waits may be drawn for this round, into which none or others were drawn before."""
        return True

    def free(self, state: RunState) -> int:
        """How many devices may be drawn now."""
        return state.plan.places if state.phase == "selecting" else 0

    def opened(self, state: RunState, at: float, kept: Mapping[str, Member]) -> RunState:
        """The state whose round has just opened, with its deadline. ``kept``: as from ``kept`` of the one before."""
        return state.with_round(replace(state.current, deadline=at + self.lasts_s(state.plan, state.current)))

    def kept(self, following: RunState, ended: Round, *, goes_on: bool) -> tuple[Mapping[str, Member], list[fx.Effect]]:
        """The devices that train on when a round has ended, and what becomes of others. ``following``: the state after
        its end; ``goes_on``: whether the next round opens with it."""
        return {}, []

    def releases(self, round: Round) -> list[fx.Effect]:
        """The assignments that end when the round closes."""
        return [fx.Release(round=round.number, devices=None)]

    def awaits(self, state: RunState, device: str) -> bool:
        """Whether this device of the cohort, which has not reported, still can."""
        return state.phase == "collecting"

    def place(self, state: RunState) -> Place | None:
        """Where a run whose rounds with devices are of this kind is, for its devices that wait for an answer: another
        value wherever there may be one for all of them, or the round has ended. None: answers are not waited for."""
        return None

    def awaits_authority(self, state: RunState) -> bool:
        """Whether the round goes on only once the authority vouches for its devices."""
        return False

    def contributions(self, round: Round) -> tuple[fx.Contribution, ...]:
        """The updates that were acknowledged, by device id."""
        return tuple(
            fx.Contribution(
                device=device, digest=member.digest, weight=member.weight, steps=member.steps, metrics=member.metrics
            )
            for device, member in sorted(round.members.items())
            if member.digest is not None
        )

    def blobs(self, round: Round) -> tuple[str, ...]:
        """All that was sent and made in the round and is deleted when it ends, whatever the plan's retention."""
        return ()

    def forget(self, state: RunState) -> list[fx.Effect]:
        """The blobs that are no longer needed when the round ends."""
        ended = state.current.number
        if blobs := self.blobs(state.current):
            return [fx.Discard(round=ended, blobs=blobs)]
        ended -= state.plan.retention.rounds
        return [fx.Discard(round=ended)] if ended >= 1 else []


KINDS: dict[str, RoundKind[Any]] = {}
"""Kind -> how its rounds go."""


def kind_of(round: Round) -> RoundKind[Any]:
    return KINDS[round.kind]
