"""Devices in flight in a buffered run, by an account of the log that is made without the engine's ``step``: who trains
which version since when, how stale each report is, and what it weighs.

A place begins with a draw, of as many devices as were free and waited; no device has two, nor one in a round that has
its report, or has refused it. It ends with a report, a withdrawal or a refused update, with a ``Tick`` after its time,
with a commit that leaves its version too far behind, and with the end of a round that none follows. A commit has
exactly the goal's number of reports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.engine.aggregation.section import weight_of
from coordinator.engine.buffered import WHOLE, Buffered
from coordinator.engine.plan import Plan
from coordinator.store.port import ClaimRow, EventRow
from coordinator.verify.logged_round import LoggedRound
from coordinator.verify.violation import RunViolation

_APART_S = 60.0
"""A coordinator that is at work looks at its clock more often."""
_WITNESSES = 3
"""Reports after their time, each so long after the one before and with no ``Tick`` between, by which that time was
ignored. One may come before a coordinator that was away, or whose clock has jumped, looks at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    since: int
    """The round of the draw."""
    version: int
    """The version that it trains."""
    until: float
    begun: bool = False


@dataclass(slots=True)
class _Carried:
    """What a round begins with."""

    since: dict[str, int] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)


class InFlight:
    """``add`` takes the next event of the run; ``complete`` completes the account of its rounds."""

    def __init__(self, plan: Plan, section: Buffered) -> None:
        self._plan = plan
        self._section = section
        self._live: dict[str, _Place] = {}
        self._unit = plan.weight_unit
        self._version = self._round = 0
        self._done: set[str] = set()
        """Whose reports came, or were refused, in this round."""
        self._reports = 0
        self._paused = self._fell = False
        self._late: list[float] = []
        self._carried: dict[int, _Carried] = {}
        self._expired: dict[int, set[str]] = {}

    def add(self, event: EventRow, logged: LoggedRound) -> Iterator[RunViolation]:
        """What speaks against the event. ``logged``: the account of its round, with the event."""
        body: dict[str, Any] = event.body
        number = body.get("round", self._round)
        if event.kind != "Discarded" and number > self._round:
            self._round, self._done, self._reports = number, set(), 0
        for invariant, what in self._against(event, body, logged):
            yield RunViolation(invariant, self._round or 1, f"event {event.seq}, {event.kind}: {what}")

    def complete(self, log: dict[int, LoggedRound], rounds: Collection[int]) -> None:
        """Adds to the account of each round that is stored what it had from the one before."""
        for number in {*self._carried, *self._expired} & set(rounds):
            logged, carried = log.setdefault(number, LoggedRound()), self._carried.get(number, _Carried())
            logged.since = carried.since
            logged.cohort |= carried.since.keys()
            logged.begun |= carried.begun
            logged.expired |= self._expired.get(number, set())

    def claims(self, claims: Iterable[ClaimRow], is_open: bool) -> Iterator[RunViolation]:
        """Each place has its assignment, and there is none without a place. ``is_open``: whether a round is."""
        live, found = self._live if is_open else {}, {claim.device: claim for claim in claims}
        for device in sorted(live.keys() | found.keys()):
            place, claim = live.get(device), found.get(device)
            if place is None and claim is not None:
                yield RunViolation("claims", claim.round, f"{device} has an assignment, and no place by the log")
            elif place is not None and claim is None:
                yield RunViolation("claims", place.since, f"{device} was selected, and has no assignment")
            elif place is not None and claim is not None:
                if (claim.round, claim.attempt) != (place.since, 0):
                    drawn = f"and was drawn in round {place.since}"
                    yield RunViolation("claims", claim.round, f"{device} has an assignment of this round, {drawn}")
                if claim.until != place.until and not self._fell:
                    ends = f"the assignment of {device} ends at {claim.until}"
                    yield RunViolation("deadline", claim.round, f"{ends}, and its time by the plan at {place.until}")

    def _against(self, event: EventRow, body: dict[str, Any], logged: LoggedRound) -> Iterator[tuple[str, str]]:
        device = str(body.get("device", ""))
        match event.kind:
            case "Created":
                self._unit = body.get("weight_unit", 1)
            case "Drawn":
                yield from self._draw(event.at, body, logged)
            case "Started":
                yield from self._is_live(device, body)
                if device in self._live:
                    self._live[device] = replace(self._live[device], begun=True)
            case "Reported":
                yield from self._reported(event.at, device, body, logged)
            case "Withdrew" | "UpdateRefused":
                yield from self._is_live(device, body)
                self._live.pop(device, None)
                self._done |= {device} if event.kind == "UpdateRefused" else set()
            case "UpdateLost":
                self._reports -= 1
                logged.begun.add(device)
            case "Tick":
                over = {name for name, place in self._live.items() if place.until <= event.at}
                self._late = []
                if self._live and not over:
                    yield "deadline", "no place had its time up"
                self._expired.setdefault(self._round or 1, set()).update(over)
                self._live = {name: place for name, place in self._live.items() if name not in over}
            case "ClockFell":
                self._fell, self._late = True, []
                moved = {name: replace(one, until=one.until - body["by_s"]) for name, one in self._live.items()}
                self._live = moved
            case "Committed":
                if self._reports != self._plan.cohort.goal:
                    yield "quorum", f"it has {self._reports} reports, and the goal is {self._plan.cohort.goal}"
                self._version += 1
                self._end()
            case "CommitFailed":
                self._end()
            case "Stopped":
                self._paused = True
                if self._reports < self._plan.cohort.goal:  # else a commit is under way, and ends it
                    self._end()
            case "Paused" | "Resumed":
                self._paused = event.kind == "Paused"
            case _:  # other kinds change nothing of this account
                pass

    def _draw(self, at: float, body: dict[str, Any], logged: LoggedRound) -> Iterator[tuple[str, str]]:
        drawn = [str(device) for device, _ in body["cohort"]]
        wanted = min(self._section.concurrency - len(self._live), body["waiting"])
        if len(drawn) != wanted:
            free = f"{self._section.concurrency - len(self._live)} places were free and {body['waiting']} waited"
            yield "claims", f"{len(drawn)} devices were drawn, when {free}"
        if twice := sorted({name for name in drawn if name in self._live or name in self._done}):
            yield "claims", f"{', '.join(twice)} had a place, or had its turn in this round"
        carried = self._carried.setdefault(self._round, _Carried())
        for name in drawn:  # it may have had a place in this round that has ended
            logged.withdrawn.discard(name)
            logged.begun.discard(name)
            carried.begun.discard(name)
            carried.since.pop(name, None)
            self._expired.get(self._round, set()).discard(name)
        until = at + self._plan.cohort.collect_s
        self._live |= {name: _Place(since=self._round, version=self._version, until=until) for name in drawn}

    def _is_live(self, device: str, body: dict[str, Any]) -> Iterator[tuple[str, str]]:
        place = self._live.get(device)
        if place is None or place.since != body["attempt"]:
            has = "no place" if place is None else f"a place since round {place.since}"
            yield "claims", f"{device} sent it for its place since round {body['attempt']}, and has {has}"

    def _reported(self, at: float, device: str, body: dict[str, Any], logged: LoggedRound) -> Iterator[tuple[str, str]]:
        yield from self._is_live(device, body)
        place = self._live.pop(device, None)
        if place is None:
            return
        self._reports += 1
        self._done.add(device)
        late = self._version - place.version
        if late > self._section.most_stale:
            yield "3", f"the update of {device} is {late} versions behind, and counts"
            return
        if self._reports > self._plan.cohort.goal:
            yield "3", f"it is the report {self._reports} of its round, and the goal is {self._plan.cohort.goal}"
        if at > place.until and not (self._late and at < self._late[-1] + _APART_S):
            self._late.append(at)
            if len(self._late) == _WITNESSES:
                late_s = at - place.until
                yield "deadline", f"the update of {device} came {late_s:.0f} s after its time, and not as the first one"
        work: Mapping[str, Any] = {name: body[name] for name in ("examples", "steps", "steps_planned", "complete")}
        whole = weight_of(self._plan.aggregation, self._unit // WHOLE, **work)
        logged.staleness[device], logged.weights[device] = late, whole * self._section.in_parts[late]

    def _end(self) -> None:
        """The end of the round: who trains goes on, where another round follows and the version is not too old."""
        follows = not self._paused
        oldest = self._version - self._section.most_stale
        self._live = {name: one for name, one in self._live.items() if follows and one.version >= oldest}
        begun = {name for name, one in self._live.items() if one.begun}
        since = {name: one.since for name, one in self._live.items()}
        self._round, self._done, self._reports = self._round + 1, set(), 0
        self._carried[self._round] = _Carried(since, begun)
