"""A run as a sequence of events, without a coordinator: events go through ``step``, and its effects are kept.

Knows the engine only. ``log`` holds the events that a RunLog would append, so a story can be folded again from its
start.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple, TypeVar, get_args

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.plan import Plan
from coordinator.engine.state import RunState

E = TypeVar("E")
START = hashlib.sha256(b"the initial checkpoint").hexdigest()
_RECORDS = get_args(fx.Record)


def plan(**sections: Any) -> Plan:
    """Select 4, goal 3, quorum 2; 10 s to wait and 60 s to report. Sections override by key."""
    base: dict[str, Any] = {
        "name": "story",
        "task": {"learner": "tests:story"},
        "cohort": {"select": 4, "goal": 3, "quorum": 0.6, "select_s": 10, "collect_s": 60},
        "finish": {"rounds": 5},
    }
    for name, section in sections.items():
        base[name] = {**base.get(name, {}), **section} if isinstance(section, dict) else section
    return Plan.parse(base)


def digest_of(*words: object) -> str:
    return hashlib.sha256(repr(words).encode()).hexdigest()


FALLBACK: dict[str, Any] = {"data": "proxy", "patience": 1, "lease_s": 40, "max_s": 300}
"""A plan's datacenter section that falls back after one abandoned round."""


class Transition(NamedTuple):
    """One event that changed the state, and the phases before and after it."""

    phase: str
    event: str
    following: str
    ended: bool
    """Whether the round ended with it; ``following`` is of the next one then, or idle."""


class Story:
    """``at`` is the time of the next event. Each method is one happening and returns the effects it had."""

    def __init__(self, **sections: Any) -> None:
        self.start = rounds.begin("story", plan(**sections), START)
        self.state: RunState = self.start
        self.at = 100.0
        self.log: list[ev.Event] = []
        self.effects: list[fx.Effect] = []
        self.steps: list[Transition] = []
        """Of each event that changed the state."""

    def happens(self, event: ev.Event) -> list[fx.Effect]:
        before = self.state
        self.state, effects = rounds.step(before, event)
        refused = any(isinstance(effect, fx.Refused) for effect in effects)
        if self.state is not before:
            number = None if self.state.round is None else self.state.round.number
            ended = before.round is not None and before.round.number != number
            self.steps.append(Transition(before.phase, event.kind, self.state.phase, ended))
        if self.state is not before or (any(isinstance(effect, _RECORDS) for effect in effects) and not refused):
            self.log.append(event)
        self.effects += effects
        return effects

    @property
    def contributions(self) -> tuple[fx.Contribution, ...]:
        current = self.state.current
        return rounds.kind_of(current).contributions(current)

    @property
    def attempt(self) -> int:
        """Of the round under way."""
        return attempt_of(self.state)

    # ------------------------------------------------------------ happenings

    def created(self) -> list[fx.Effect]:
        return self.happens(ev.Created(at=self.at, weight_unit=self.state.plan.weight_unit))

    def drawn(self, *devices: str, examples: int = 10, waiting: int | None = None) -> list[fx.Effect]:
        return self.happens(
            ev.Drawn(
                at=self.at,
                round=self.state.round_number,
                cohort=tuple((device, examples) for device in devices),
                waiting=len(devices) if waiting is None else waiting,
            )
        )

    def started(self, device: str, **more: Any) -> list[fx.Effect]:
        return self.happens(
            ev.TrainingStarted(
                **{"at": self.at, "round": self.state.round_number, "attempt": 0, "device": device, **more}
            )
        )

    def reported(self, device: str, **more: Any) -> list[fx.Effect]:
        number = more.get("round", self.state.round_number)
        usual: dict[str, Any] = {
            "at": self.at,
            "round": number,
            "attempt": 0,
            "device": device,
            "digest": digest_of(device, number),
            "bytes": 100,
            "examples": 10,
            "steps": 4,
            "steps_planned": 4,
            "complete": True,
        }
        return self.happens(ev.Reported(**{**usual, **more}))

    def withdrew(self, device: str, **more: Any) -> list[fx.Effect]:
        usual = {
            "at": self.at,
            "round": self.state.round_number,
            "attempt": 0,
            "device": device,
            "reason": "battery low",
        }
        return self.happens(ev.Withdrew(**{**usual, **more}))

    def committed(self, **more: Any) -> list[fx.Effect]:
        number = self.state.round_number
        usual = {"at": self.at, "round": number, "digest": digest_of("model", number), "bytes": 500}
        return self.happens(ev.Committed(**{**usual, **more}))

    def leased(self, worker: str = "w", **more: Any) -> list[fx.Effect]:
        usual: dict[str, Any] = {
            "at": self.at,
            "round": self.state.round_number,
            "attempt": self.attempt + 1,
            "fence": self.state.fence + 1,
            "worker": worker,
            "instance": "i1",
            "waiting": 0,
        }
        return self.happens(ev.Leased(**{**usual, **more}))

    def _under(self, more: dict[str, Any]) -> dict[str, Any]:
        state = self.state
        lease = None if state.round is None else state.round.lease
        holder = "w" if lease is None else lease.worker
        usual = {"round": state.round_number, "attempt": self.attempt, "fence": state.fence, "worker": holder}
        return {"at": self.at, **usual, **more}

    def heartbeat(self, step: int = 1, **more: Any) -> list[fx.Effect]:
        return self.happens(
            ev.WorkerHeartbeat(**self._under({"step": step, "metrics": {"loss": 1 / (step + 1)}, **more}))
        )

    def lease_ended(self, *, failed: bool, **more: Any) -> list[fx.Effect]:
        return self.happens(ev.LeaseEnded(**self._under({"failed": failed, "reason": "moved", **more})))

    def delivered(self, **more: Any) -> list[fx.Effect]:
        usual = {
            "digest": digest_of("result", self.state.round_number),
            "bytes": 700,
            "steps": 100,
            "examples": 900,
            "metrics": {"loss": 0.25},
        }
        return self.happens(ev.Delivered(**self._under({**usual, **more})))

    def fleet_returned(self, waiting: int, **more: Any) -> list[fx.Effect]:
        return self.happens(
            ev.FleetReturned(**{"at": self.at, "round": self.state.round_number, "waiting": waiting, **more})
        )

    def scored(
        self, version: int, value: float, *, name: str = "accuracy", source: str = "evaluator"
    ) -> list[fx.Effect]:
        return self.happens(ev.Scored(at=self.at, version=version, source=source, examples=50, metrics={name: value}))

    def tick(self, after_s: float = 0.0) -> list[fx.Effect]:
        self.at += after_s
        return self.happens(ev.Tick(at=self.at))

    def commit_failed(self, reason: str = "not finite") -> list[fx.Effect]:
        return self.happens(ev.CommitFailed(at=self.at, round=self.state.round_number, reason=reason))

    def paused(self) -> list[fx.Effect]:
        return self.happens(ev.Paused(at=self.at))

    def resumed(self) -> list[fx.Effect]:
        return self.happens(ev.Resumed(at=self.at))

    def stopped(self) -> list[fx.Effect]:
        return self.happens(ev.Stopped(at=self.at))

    # ------------------------------------------------------------ chapters

    def selecting(self) -> Story:
        self.created()
        return self

    def collecting(self, *devices: str) -> Story:
        if self.state.phase == "idle":
            self.created()
        self.drawn(*(devices or ("a", "b", "c", "d")))
        return self

    def committing(self) -> Story:
        self.collecting()
        for device in ("a", "b", "c"):
            self.reported(device)
        return self

    def leasing(self) -> Story:
        """After one abandoned round, in a plan with patience 1: a datacenter round that waits for a worker."""
        self.created()
        self.drawn()
        return self

    def training(self) -> Story:
        self.leasing()
        self.leased()
        return self

    def whole_round(self) -> Story:
        """A whole round: a, b and c count."""
        self.committing()
        self.committed()
        return self


def attempt_of(state: RunState) -> int:
    return 0 if state.round is None else state.round.attempt


def only(effects: list[fx.Effect], kind: type[E]) -> E:
    """The one effect of this kind."""
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, f"{len(found)} of {kind.__name__} among {effects}"
    return found[0]


def every(effects: list[fx.Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def refusal(effects: list[fx.Effect]) -> str:
    """The kind with which the event was refused."""
    return only(effects, fx.Refused).kind


def ended(effects: list[fx.Effect]) -> tuple[str, str]:
    """Status and reason of the round that ended."""
    row = next(row for row in every(effects, fx.RecordRound) if row.status != "open")
    return row.status, row.reason
