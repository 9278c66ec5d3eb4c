"""Deadlines, by the times of the plan and of the log, without the engine's ``step``.

*Not too early*: a ``Tick`` in the log ended something, so its time was over. A cohort was drawn from a pool that was
full, or when its time was over. A federated round that was committed had reached its goal, had nobody left to wait
for, or its time was over.

*Not too late*: an assignment ends when its round does, and no round goes on taking messages for minutes after its
deadline. One message may come after it, before a coordinator that was away or slow looks at its clock.

The beginning of an exchange of a secure round is in no event. It began no sooner than the last message of the exchange
before, which was refused from then on; so the deadline here is the earliest one that the log allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from coordinator.engine.plan import Plan
from coordinator.store.port import ClaimRow, EventRow
from coordinator.verify.logged_round import LoggedRound
from coordinator.verify.violation import RunViolation

_APART_S = 60.0
"""A coordinator that is at work looks at its clock more often."""
_WITNESSES = 3
"""Messages after a deadline, each so long after the one before, by which the deadline was ignored."""
_EXCHANGES = {"Shared": 1, "Masked": 2, "Signed": 3, "Revealed": 4}
_SIGNED = _EXCHANGES["Signed"]
_QUIET = ("Shared", "Masked")
"""The exchanges that ``secure.quiet_s`` may end."""
_RETURN_S = 60.0
"""Seconds that reports have after an outage, at least."""
_ALWAYS = float("inf")


class Deadlines:
    """Of a run's rounds, one after the other. ``add`` takes the next event."""

    def __init__(self, plan: Plan, opened: Mapping[int, float]) -> None:
        """``opened``: round -> when it opened, by its row."""
        self._plan = plan
        self._opened = opened
        self._versions = 0
        self._exhausted = False
        self._fallen_s = 0.0
        """By how much the clock went back since the last event of the round: the next one may have opened before."""
        self._begin(0)

    def _begin(self, number: int) -> None:
        """All times are None, or infinite, where nothing says them yet."""
        self._round = number
        self._phase = ""
        opened, section = self._opened.get(number), self._plan.datacenter
        planned = section is not None and section.every is not None and not (self._versions + 1) % section.every
        self._planned = planned
        self._wait_s = section.wait_s if section is not None and planned else self._plan.cohort.select_s
        since = None if opened is None else opened - self._fallen_s
        self._selected = None if since is None else since + self._plan.cohort.select_s
        self._leased = None if since is None else since + self._wait_s
        self._until: float | None = None
        self._give_up_at = self._expires_at = _ALWAYS
        self._worker = ""
        self._exchange = self._attempt = 0
        self._began = self._next_began = self._last = 0.0
        self._settle_by = 0.0
        """Until when who was accused may answer, and who complained may mask."""
        self._is_over, self._fell = False, self._fallen_s > 0
        self._late: list[float] = []
        self._times: list[float] = []
        """Of the events since the last draw."""

    def add(self, event: EventRow, logged: LoggedRound) -> Iterator[RunViolation]:
        """What speaks against the event. ``logged``: the account of its round, with the event."""
        body: dict[str, Any] = event.body
        number = body.get("round", self._round)
        if event.kind != "Discarded" and number > self._round:
            self._begin(number)
        if event.kind == "Tick" or (event.kind != "Discarded" and body.get("round") == self._round):
            self._fallen_s = 0.0
        self._times.append(event.at)
        for what in self._against(event, body, logged):
            yield RunViolation("deadline", self._round, f"event {event.seq}, {event.kind}: {what}")

    def claims(self, claims: Iterable[ClaimRow]) -> Iterator[RunViolation]:
        """What speaks against the ends of assignments in the round under way. Each lasts as long as the plan says, from
        the draw, or from the event with which a new attempt began; where the clock went back, it may end sooner."""
        secure = self._plan.secure
        for claim in claims:
            again = secure is not None and claim.attempt > 0
            lasts = secure.exchange_s if secure is not None and again else self._plan.cohort.collect_s
            ends = [time + lasts for time in (self._times if again else self._times[:1])]
            if claim.round == self._round and claim.until not in ends and not (self._fell and claim.until < max(ends)):
                what = f"the assignment of {claim.device} ends at {claim.until}, and its plan gives it {lasts:g} s"
                yield RunViolation("deadline", claim.round, what)

    def snapshot(self, snapshot: Mapping[str, Any] | None) -> Iterator[RunViolation]:
        """What speaks against the deadline of a round that selects in the snapshot. It waits as long as the plan says,
        from its opening, or from the last time that too few devices waited; without end where the run is exhausted."""
        found: Any = (snapshot or {}).get("round")
        if self._fell or found is None or found["phase"] != "selecting":
            return
        if found["deadline"] is None and (snapshot or {}).get("exhausted"):
            return
        since = found["opened_at"] if found["missed_at"] is None else found["missed_at"]
        if found["deadline"] != since + self._plan.cohort.select_s:
            what = f"its snapshot waits until {found['deadline']} for devices, since {since}"
            yield RunViolation(
                "deadline", found["number"], f"{what}, and the plan gives {self._plan.cohort.select_s:g} s"
            )

    def _against(self, event: EventRow, body: dict[str, Any], logged: LoggedRound) -> Iterator[str]:
        plan, at = self._plan, event.at
        match event.kind:
            case "Drawn":
                if body["waiting"] < plan.cohort.pool_count:
                    yield from _early(at, self._selected, "its cohort was drawn from a pool that was not full")
                self._selected = None if self._waits(body) else at + plan.cohort.select_s
                self._until, self._late = at + plan.cohort.collect_s, []
                self._is_over, self._exchange, self._attempt, self._times = False, 0, 0, [at]
            case "Tick":
                yield from _early(at, self._deadline, "the time was not over")
                self._is_over, self._late = True, []
                if self._phase == "training":
                    self._phase, self._leased = "leasing", at + self._wait_s
                elif plan.secure is not None and self._until is not None:
                    self._began = self._next_began = at
                    self._until = None
            case "ClockFell":
                self._fall(body["by_s"])
            case "Recovered":
                self._recover(at)
            case "Reported":
                yield from self._taken(at)
            case "UpdateLost" if logged.drawn_at is not None:
                self._until, self._is_over = self._until or logged.drawn_at + plan.cohort.collect_s, False
            case "Committed" if plan.secure is None and not self._is_over and not logged.is_complete(plan):
                have = f"{len(logged.reported)} of {len(logged.cohort)} devices had reported"
                yield f"it was closed before its deadline, when {have} and its goal was {plan.cohort.goal}"
            case "Leased":
                yield from self._lease(at, body)
            case "Heartbeat":
                self._renew(at)
            case "LeaseEnded":
                self._phase, self._leased = "leasing", at + self._wait_s
            case "FleetReturned" if plan.datacenter is not None:
                if self._planned or body["waiting"] < plan.datacenter.devices_back(plan.cohort):
                    yield from _early(at, self._leased, "too few devices waited for it")
            case _ if plan.secure is not None:
                yield from self._exchanged(event, body)
            case _:  # other kinds have no deadline
                pass
        if event.kind in ("Committed", "Delivered"):
            self._versions += 1
            self._exhausted = False
        self._next_began = min(self._next_began, at)

    def _waits(self, body: dict[str, Any]) -> bool:
        """Whether a draw shows that only other devices help a run: it waits for them, without a deadline."""
        fewest, marked = self._plan.fewest_devices, body.get("unspendable", 0) - body.get("barred", 0)
        if len(body["cohort"]) >= fewest:
            self._exhausted = False
        elif marked and body["waiting"] + body["unspendable"] >= fewest:
            self._exhausted = True
        return self._exhausted and body["waiting"] < fewest

    @property
    def _deadline(self) -> float | None:
        """Of what goes on now: the earliest one that the log allows."""
        if self._phase == "training":
            return self._until
        if self._phase == "leasing":
            return self._give_up_at
        secure = self._plan.secure
        if secure is None or (not self._exchange and self._until is not None):
            return self._until
        began = min(self._began, self._next_began)  # by a replica whose clock is behind, the next one
        until = min(began + secure.exchange_s, self._expires_at)
        if self._settle_by:  # a dealer was out by a Tick, and the others have had time to mask since
            until = min(until, began + secure.quiet)
        return until if self._exchange >= _SIGNED else min(until, self._last + secure.quiet)

    def _exchanged(self, event: EventRow, body: dict[str, Any]) -> Iterator[str]:
        """An event of a secure round."""
        at, secure = event.at, self._plan.secure
        if secure is None:
            return
        match event.kind:
            case "Announced":
                self._expires_at, self._exchange, self._late = float(body["expires_at"]), 0, []
                self._attempt = body["attempt"]
                lasts = at + secure.exchange_s if body["attempt"] else self._until or _ALWAYS
                self._until = min(lasts, self._expires_at)
            case "Advertised":
                yield from self._taken(at)
            case "Rostered":
                self._exchange, self._began = 1, at
                self._next_began = self._last = at
                self._until, self._late = min(at + secure.exchange_s, self._expires_at), []
            case kind if kind in _EXCHANGES:
                exchange = _EXCHANGES[kind]
                if exchange > self._exchange:
                    self._exchange, self._began = exchange, min(self._next_began, at)
                    self._next_began = at
                    self._until, self._late = min(at + secure.exchange_s, self._expires_at), []
                elif exchange < _SIGNED:
                    self._next_began = at
                if kind in _QUIET:
                    self._last = at
                    yield from self._taken(at)
            case "Complained" | "PairsOpened":
                self._settle_by = at + secure.quiet
            case _:  # other kinds have no deadline
                pass

    def _recover(self, at: float) -> None:
        """What an outage has taken is given back: an exchange has its time again, reports some of it."""
        secure, collect_s = self._plan.secure, self._plan.cohort.collect_s
        if secure is not None and (self._exchange or self._attempt):
            self._began = self._next_began = self._last = at
            until = at + secure.exchange_s
        else:
            until = min(at + min(collect_s, _RETURN_S), self._times[0] + 2 * collect_s)
        self._until, self._is_over = min(until, self._expires_at), False

    def _lease(self, at: float, body: dict[str, Any]) -> Iterator[str]:
        section = self._plan.datacenter
        if section is None:
            return
        if self._phase == "training" and body["worker"] != self._worker:
            yield f"{body['worker']} took the lease of {self._worker}, which had not ended"
        self._phase, self._worker = "training", body["worker"]
        self._give_up_at = at + section.max_s if self._give_up_at == _ALWAYS else self._give_up_at
        self._renew(at)

    def _renew(self, at: float) -> None:
        if self._plan.datacenter is not None:
            self._until = min(at + self._plan.datacenter.lease_s, self._give_up_at)

    def _taken(self, at: float) -> Iterator[str]:
        """A message that is only taken while its phase lasts."""
        if (
            self._until is None
            or at < max(self._until, self._settle_by)
            or (self._late and at < self._late[-1] + _APART_S)
        ):
            return
        self._late.append(at)
        if len(self._late) == _WITNESSES:
            yield f"it was taken {at - self._until:.0f} s after the deadline, and it was not the first one"

    def _fall(self, by_s: float) -> None:
        """The clock went back, and the times with it."""
        self._fell = True
        self._fallen_s += by_s
        self._selected, self._leased, self._until = (
            None if time is None else time - by_s for time in (self._selected, self._leased, self._until)
        )
        self._give_up_at -= by_s
        self._expires_at -= by_s
        self._began -= by_s
        self._next_began -= by_s
        self._last -= by_s
        self._late = [time - by_s for time in self._late]


def _early(at: float, until: float | None, what: str) -> Iterator[str]:
    if until is not None and at < until:
        yield f"{what}: it came {until - at:.3f} s before the deadline"
